from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from idmetric.train import augment
from idmetric.train.augment import add_noise
from idmetric.train.batches import generator
from tests.train_parts import picture

BICUBIC = T.InterpolationMode.BICUBIC


def test_idsim_is_its_appendix_c4_for_square_images() -> None:
    theirs = T.Compose([
        T.RandomResizedCrop(32, (0.9, 1.0), (1.0, 1.0), interpolation=BICUBIC, antialias=True),
        T.RandomApply([T.ColorJitter(0.2, 0.2, 0.08)], 0.8),
        T.RandomApply([T.GaussianBlur(7, (0.05, 0.6))], 0.5),
    ])  # fmt: skip
    image = picture(0, 50, 50)
    for place in range(20):
        torch.manual_seed(int(generator(place).integers(2**63)))
        wanted = theirs(image).tobytes()
        for keep_shape in (True, False):
            assert augment.idsim(image, generator(place), size=(32, 32), keep_shape=keep_shape).tobytes() == wanted


def test_ilgen_is_mocos_first_version() -> None:
    theirs = T.Compose([
        T.RandomResizedCrop(32, (0.2, 1.0), interpolation=BICUBIC, antialias=True), T.RandomGrayscale(0.2),
        T.ColorJitter(0.4, 0.4, 0.4, 0.4), T.RandomHorizontalFlip(),
    ])  # fmt: skip
    for place in range(20):
        torch.manual_seed(int(generator(place).integers(2**63)))
        wanted = theirs(picture(place)).tobytes()
        assert augment.ilgen(picture(place), generator(place), size=(32, 32)).tobytes() == wanted


@pytest.mark.parametrize(("keep_shape", "wide"), [(True, 0.95), (False, 1 / 3)])
def test_a_crop_that_keeps_the_shape_cuts_the_same_share_of_both_sides(keep_shape: bool, wide: float) -> None:
    ramps = np.zeros((300, 900, 3), np.float32)
    ramps[..., 0], ramps[..., 1] = np.linspace(0, 255, 900), np.linspace(0, 255, 300)[:, None]
    image = Image.fromarray(ramps.astype(np.uint8))
    plain = {"size": (300, 300), "jitter_p": 0.0, "blur_p": 0.0, "scale": (0.9, 0.9) if keep_shape else (0.9, 1.0)}
    for place in range(20):
        found = np.asarray(augment.idsim(image, generator(place), keep_shape=keep_shape, **plain)).astype(int)
        shares = [np.ptp(found[..., axis]) / 255 for axis in (0, 1)]
        assert shares == pytest.approx([wide, 0.95 if keep_shape else 1], abs=0.02)


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
