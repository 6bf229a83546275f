from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from idmetric.train import augment
from idmetric.train.augment import Augment, add_noise, blur, color_jitter, crop_box, resized_crop, shift_scale
from idmetric.train.batches import generator
from tests.train_parts import picture


class TorchDraws:
    """Draws torch's random numbers where a NumPy generator is expected: the oracle is then torchvision itself."""

    def random(self) -> float:
        return torch.rand(1).item()

    def uniform(self, low: float, high: float) -> float:
        return torch.empty(1).uniform_(low, high).item()

    def integers(self, end: int) -> int:
        return int(torch.randint(0, end, size=(1,)).item())

    def permutation(self, count: int) -> Any:
        return torch.randperm(count).numpy()


def pixels(image: Image.Image) -> Any:
    return np.asarray(image).astype(int)


def equals_torchvision(
    ours: Augment, theirs: Callable[[Any], Any], image: Image.Image, seed: int, unused: int = 0
) -> bool:
    """Whether a step with torch's random numbers gives exactly torchvision's image.

    Args:
        unused: numbers that torchvision draws first, and does not use.
    """
    torch.manual_seed(seed)
    wanted = theirs(image)
    torch.manual_seed(seed)
    torch.rand(unused)
    found = ours(image, TorchDraws())  # type: ignore[arg-type]  # it draws as a generator does
    return np.array_equal(pixels(found), pixels(wanted))


BICUBIC, BILINEAR = T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR
TWINS: dict[str, tuple[Augment, Callable[[Any], Any]]] = {
    "crop": (
        partial(resized_crop, size=(32, 40), scale=(0.3, 1.0)),
        T.RandomResizedCrop((32, 40), (0.3, 1.0), interpolation=BICUBIC, antialias=True),
    ),
    "square crop": (
        partial(resized_crop, size=(32, 32), scale=(0.9, 1.0), ratio=(1.0, 1.0)),
        T.RandomResizedCrop(32, (0.9, 1.0), (1.0, 1.0), interpolation=BICUBIC, antialias=True),
    ),
    "jitter": (
        partial(color_jitter, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2), T.ColorJitter(0.4, 0.4, 0.4, 0.2)
    ),
    "jitter without hue": (
        partial(color_jitter, brightness=0.2, contrast=1.5, saturation=0.08), T.ColorJitter(0.2, 1.5, 0.08)
    ),
    "blur": (partial(blur, kernel=7, sigma=(0.05, 0.6)), T.GaussianBlur(7, (0.05, 0.6))),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("shape", [(60, 44), (44, 60), (48, 48), (90, 20)])
def test_each_step_is_torchvisions_with_torchs_random_numbers(name: str, shape: tuple[int, int]) -> None:
    for seed in range(12):
        assert equals_torchvision(*TWINS[name], picture(0, *shape), seed), seed


def test_shift_and_scale_are_torchvisions_affine_without_turning() -> None:
    image = picture(0)
    theirs = T.RandomAffine(0, translate=(0.1, 0.1), scale=(0.9, 1.1), interpolation=BILINEAR, fill=0)
    for seed in range(12):
        # torchvision draws the angle even if it can only be 0
        assert equals_torchvision(shift_scale, theirs, image, seed, unused=1)
    moved = [shift_scale(image, generator(seed)).tobytes() != image.tobytes() for seed in range(12)]
    assert sum(moved) >= 11


def test_idsim_is_its_appendix_c4_for_square_images() -> None:
    theirs = T.Compose([
        T.RandomResizedCrop(32, (0.9, 1.0), (1.0, 1.0), interpolation=BICUBIC, antialias=True),
        T.RandomApply([T.ColorJitter(0.2, 0.2, 0.08)], 0.8),
        T.RandomApply([T.GaussianBlur(7, (0.05, 0.6))], 0.5),
    ])  # fmt: skip
    for keep_shape in (True, False):
        ours = partial(augment.idsim, size=(32, 32), keep_shape=keep_shape)
        assert all(equals_torchvision(ours, theirs, picture(0, 50, 50), seed) for seed in range(20))


def test_ilgen_is_mocos_first_version() -> None:
    theirs = T.Compose([
        T.RandomResizedCrop(32, (0.2, 1.0), interpolation=BICUBIC, antialias=True), T.RandomGrayscale(0.2),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.4)], 1.0), T.RandomHorizontalFlip(),
    ])  # fmt: skip
    ours = partial(augment.ilgen, size=(32, 32))
    assert all(equals_torchvision(ours, theirs, picture(seed), seed) for seed in range(20))


def test_a_crop_that_keeps_the_shape_cuts_the_same_share_of_both_sides() -> None:
    shares = []
    for place in range(200):
        rng = generator(0, place)
        top, left, h, w = crop_box(300, 900, (0.9, 1.0), (3.0, 3.0), rng)  # what keep_shape makes of ratio 1
        assert 0 <= top <= 300 - h
        assert 0 <= left <= 900 - w
        assert w / 900 == pytest.approx(h / 300, abs=0.004)
        shares.append(h * w / (300 * 900))
    assert 0.89 < min(shares) < 0.91
    assert 0.99 < max(shares) < 1.005
    assert np.mean(shares) == pytest.approx(0.95, abs=0.01)
    # torchvision's reading of ratio 1 would always cut the central square
    assert crop_box(300, 900, (0.9, 1.0), (1.0, 1.0), generator(0)) == (0, 300, 300, 300)


def test_keeping_the_shape_is_cropping_the_squashed_image() -> None:
    wide = picture(0, 160, 80)
    squashed = wide.resize((80, 80), Image.Resampling.BICUBIC)
    for place in range(5):
        found = pixels(resized_crop(wide, generator(place), (40, 40), (0.5, 0.6), (1.0, 1.0), keep_shape=True))
        rng = generator(place)
        top, left, h, w = crop_box(80, 160, (0.5, 0.6), (2.0, 2.0), rng)
        box = (left / 2, top, (left + w) / 2, top + h)
        wanted = pixels(squashed.resize((40, 40), Image.Resampling.BICUBIC, box=box))
        assert np.abs(found - wanted).mean() < 2  # but for the two interpolations instead of one


def test_draws_keep_to_their_ranges() -> None:
    gray = Image.new("RGB", (8, 8), (100, 100, 100))
    values = [np.asarray(color_jitter(gray, generator(place), 0.2, 0, 0))[0, 0, 0] / 100 for place in range(400)]
    assert 0.79 <= min(values) < 0.82
    assert 1.18 < max(values) <= 1.21


PAPERS = {"idsim": augment.idsim, "nearid": augment.nearid, "ilgen": augment.ilgen}


@pytest.mark.parametrize("name", PAPERS)
def test_an_augmentation_follows_from_its_generator_alone(name: str) -> None:
    chain = partial(PAPERS[name], size=(32, 32))
    image = picture(0)
    before = image.tobytes()
    first = [chain(image, generator(0, 5, place)).tobytes() for place in range(6)]
    torch.manual_seed(123)
    np.random.default_rng(3)
    again = [pickle.loads(pickle.dumps(chain))(image, generator(0, 5, place)).tobytes()
             for place in reversed(range(6))]  # fmt: skip
    assert first == again[::-1]
    assert len(set(first)) == 6
    assert image.tobytes() == before
    assert chain(image, generator(0)).size == (32, 32)


def test_noise_has_its_strength_and_stays_in_range() -> None:
    gray = torch.full((3, 64, 64), 0.5)
    noisy = add_noise(gray, 0.1, generator(0))
    assert (noisy - gray).std().item() == pytest.approx(0.1, rel=0.05)
    assert (noisy - gray).mean().abs().item() < 0.01
    assert noisy.equal(add_noise(gray, 0.1, generator(0)))
    extreme = add_noise(torch.zeros(3, 8, 8), 0.5, generator(0))
    assert extreme.min() == 0
    assert extreme.max() <= 1
