"""The papers' augmentations, as functions of an image and a random generator.

    augment = partial(idsim, size=(448, 448))
    image = augment(image, generator(seed, step, place))

They are torchvision's transforms of 8-bit images. These draw from torch's global generator, which is seeded by the
given one for the time of a call, and then as it was; threads take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from numpy.random import Generator
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode

Size = tuple[int, int]  # height, width
Range = tuple[float, float]
Augment = Callable[[Image.Image, Generator], Image.Image]
_DRAWING = Lock()  # torch's global generator


def idsim(
    image: Image.Image,
    rng: Generator,
    *,
    size: Size,
    interpolation: str = "bicubic",
) -> Image.Image:
    """ID-Sim, C.4: random resized crop (ratio 1), color jitter (brightness, contrast, saturation), Gaussian blur.

    Crops have the image's own shape, as if it were first squashed to a square, as the metric does: at a scale of 0.9 a
    photo of 3:4 has no square crop. The paper doesn't say which; for square images the two are the same.
    """
    ratio = image.width / image.height
    return _transformed(
        image,
        rng,
        v2.RandomResizedCrop(size, (0.9, 1.0), (ratio, ratio), InterpolationMode(interpolation)),
        v2.RandomApply([v2.ColorJitter(0.2, 0.2, 0.08)], 0.8),
        v2.RandomApply([v2.GaussianBlur(7, (0.05, 0.6))], 0.5),
    )


def nearid(
    image: Image.Image,
    rng: Generator,
    *,
    size: Size,
    interpolation: str = "bilinear",
) -> Image.Image:
    """NearID, section 4.1: "standard augmentations (color jitter, flipping, translation/scale) are applied per slot".

    The paper gives no numbers. Strengths are those of the released code, which has all three switched off. As usual in
    torchvision they apply to every image, and flipping to half of them. They come after the foreground masking, as in
    the release.
    """
    return _transformed(
        image,
        rng,
        v2.Resize(size, InterpolationMode(interpolation)),
        v2.RandomHorizontalFlip(0.5),
        v2.ColorJitter(0.2, 0.2, 0.2, 0.05),
        v2.RandomAffine(0, (0.1, 0.1), (0.9, 1.1), interpolation=InterpolationMode.BILINEAR),
    )


def ilgen(
    image: Image.Image,
    rng: Generator,
    *,
    size: Size,
    scale: Range = (0.2, 1.0),
    gray_p: float = 0.2,
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.4),
    interpolation: str = "bicubic",
) -> Image.Image:
    """ILGen, training details: "random cropping, resizing, flipping, color jitter, and mapping to grayscale".

    The paper cites He et al. 2020 (MoCo) for it; numbers and order are those of MoCo's published code, version 1.
    """
    return _transformed(
        image,
        rng,
        v2.RandomResizedCrop(size, scale, interpolation=InterpolationMode(interpolation)),
        v2.RandomGrayscale(gray_p),
        v2.ColorJitter(*jitter),
        v2.RandomHorizontalFlip(0.5),
    )


def _transformed(image: Image.Image, rng: Generator, *steps: Callable[[Any], Any]) -> Image.Image:
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        for step in steps:
            image = step(image)
    return image
