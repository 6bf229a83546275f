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

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from torch import Tensor
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
    scale: Range = (0.9, 1.0),
    jitter: tuple[float, float, float] = (0.2, 0.2, 0.08),
    jitter_p: float = 0.8,
    blur_p: float = 0.5,
    keep_shape: bool = True,
    interpolation: str = "bicubic",
) -> Image.Image:
    """ID-Sim, C.4: random resized crop (ratio 1), color jitter (brightness, contrast, saturation), Gaussian blur.

    Args:
        keep_shape: crop in the image's own shape, as if it were first squashed to a square, as the metric does.
            Otherwise crops are squares: a photo of 3:4 then always becomes its central square at scales above 0.75.
            The paper doesn't say which; for square images the two are the same.
    """
    ratio = image.width / image.height if keep_shape else 1.0
    return _transformed(
        image, rng,
        v2.RandomResizedCrop(size, scale, (ratio, ratio), InterpolationMode(interpolation)),
        v2.RandomApply([v2.ColorJitter(*jitter)], jitter_p),
        v2.RandomApply([v2.GaussianBlur(7, (0.05, 0.6))], blur_p),
    )  # fmt: skip


def nearid(
    image: Image.Image,
    rng: Generator,
    *,
    size: Size,
    flip: float = 0.5,
    jitter: tuple[float, float, float, float] = (0.2, 0.2, 0.2, 0.05),
    shift: float = 0.1,
    scale: Range = (0.9, 1.1),
    interpolation: str = "bilinear",
) -> Image.Image:
    """NearID, section 4.1: "standard augmentations (color jitter, flipping, translation/scale) are applied per slot".

    The paper gives no numbers. Strengths are those of the released code, which has all three switched off. As usual in
    torchvision they apply to every image, and flipping to half of them. They come after the foreground masking, as in
    the release.
    """
    return _transformed(
        image, rng,
        v2.Resize(size, InterpolationMode(interpolation)),
        v2.RandomHorizontalFlip(flip),
        v2.ColorJitter(*jitter),
        v2.RandomAffine(0, (shift, shift), scale, interpolation=InterpolationMode.BILINEAR),
    )  # fmt: skip


def ilgen(
    image: Image.Image,
    rng: Generator,
    *,
    size: Size,
    scale: Range = (0.2, 1.0),
    gray_p: float = 0.2,
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.4),
    flip: float = 0.5,
    interpolation: str = "bicubic",
) -> Image.Image:
    """ILGen, training details: "random cropping, resizing, flipping, color jitter, and mapping to grayscale".

    The paper cites He et al. 2020 (MoCo) for it; numbers and order are those of MoCo's published code, version 1.
    """
    return _transformed(
        image, rng,
        v2.RandomResizedCrop(size, scale, interpolation=InterpolationMode(interpolation)),
        v2.RandomGrayscale(gray_p),
        v2.ColorJitter(*jitter),
        v2.RandomHorizontalFlip(flip),
    )  # fmt: skip


def _transformed(image: Image.Image, rng: Generator, *steps: Callable[[Any], Any]) -> Image.Image:
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        for step in steps:
            image = step(image)
    return image


def add_noise(pixels: Tensor, strength: float, rng: Generator) -> Tensor:
    """Pixels (3, H, W) in [0, 1] with Gaussian noise of this standard deviation, clamped to [0, 1].

    ID-Sim's section 4.1 names it among the augmentations, without a number; its list in C.4 lacks it.
    """
    noise = torch.from_numpy(rng.standard_normal(tuple(pixels.shape), dtype=np.float32))
    return (pixels + strength * noise.to(pixels)).clamp(0, 1)
