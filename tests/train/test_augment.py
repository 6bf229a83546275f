from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import v2

from idmetric.train import augment
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
        assert augment.idsim(image, generator(place), size=(32, 32)).tobytes() == wanted


def test_ilgen_is_mocos_first_version() -> None:
    theirs = T.Compose([
        T.RandomResizedCrop(32, (0.2, 1.0), interpolation=BICUBIC, antialias=True), T.RandomGrayscale(0.2),
        T.ColorJitter(0.4, 0.4, 0.4, 0.4), T.RandomHorizontalFlip(),
    ])  # fmt: skip
    for place in range(20):
        torch.manual_seed(int(generator(place).integers(2**63)))
        wanted = theirs(picture(place)).tobytes()
        assert augment.ilgen(picture(place), generator(place), size=(32, 32)).tobytes() == wanted


def test_a_crop_keeps_the_shape_and_nearly_all_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    ramps = np.zeros((300, 900, 3), np.float32)
    ramps[..., 0], ramps[..., 1] = np.linspace(0, 255, 900), np.linspace(0, 255, 300)[:, None]
    monkeypatch.setattr(v2, "RandomApply", lambda *_: v2.Identity())  # neither jitter nor blur
    for place in range(20):
        found = np.asarray(augment.idsim(Image.fromarray(ramps.astype(np.uint8)), generator(place), size=(300, 300)))
        shares = [np.ptp(found[..., axis].astype(int)) / 255 for axis in (0, 1)]
        assert shares[0] == pytest.approx(shares[1], abs=0.01)
        assert 0.93 < shares[0] <= 1


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
