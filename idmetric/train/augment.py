"""The papers' augmentations, as functions of an image and a random generator.

    augment = partial(idsim, size=(448, 448))
    image = augment(image, generator(seed, step, place))

Every step draws the same random numbers in the same order as torchvision's transform of that kind, and applies them
with torchvision's own functions on 8-bit images: with torch's random numbers the results are equal. (torchvision's
transforms take no generator, and torch's global one cannot serve the threads that read images.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

Size = tuple[int, int]  # height, width
Range = tuple[float, float]
Box = tuple[int, int, int, int]  # top, left, height, width
Augment = Callable[[Image.Image, Generator], Image.Image]


# The papers' augmentations


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

    `keep_shape`: see `resized_crop`. The paper doesn't say whether its crop sees the image squashed to a square (as its
    metric does; the default) or in its own shape (False). For square images the two are the same.
    """
    image = resized_crop(image, rng, size, scale, (1.0, 1.0), keep_shape=keep_shape, interpolation=interpolation)
    if rng.random() < jitter_p:
        image = color_jitter(image, rng, *jitter)
    return blur(image, rng, 7, (0.05, 0.6)) if rng.random() < blur_p else image


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
    image = _resize(image, size, interpolation)
    if rng.random() < flip:
        image = F.horizontal_flip(image)
    rng.random()  # jitter and shift each have a probability of 1
    image = color_jitter(image, rng, *jitter)
    rng.random()
    return shift_scale(image, rng, shift, scale)


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
    image = resized_crop(image, rng, size, scale, interpolation=interpolation)
    if rng.random() < gray_p:
        image = F.rgb_to_grayscale(image, num_output_channels=3)
    rng.random()  # jitter has a probability of 1
    image = color_jitter(image, rng, *jitter)
    return F.horizontal_flip(image) if rng.random() < flip else image


# Their steps


def resized_crop(
    image: Image.Image,
    rng: Generator,
    size: Size,
    scale: Range,
    ratio: Range = (3 / 4, 4 / 3),
    *,
    keep_shape: bool = False,
    interpolation: str = "bicubic",
) -> Image.Image:
    """A random part of the image at one size (torchvision's RandomResizedCrop).

    Args:
        size: (height, width) of the result.
        scale: range of the part's share of the image's area.
        ratio: range of the part's width / height, drawn uniformly in its logarithm.
        keep_shape: measure `ratio` in units of the image's own width / height, as if the image were first squashed to a
            square. Otherwise, as in torchvision, ratio 1 cuts squares: a photo of 3:4 then always becomes its central
            square at scales above 0.75, although the models see whole photos, squashed.
    """
    width, height = image.size
    unit = width / height if keep_shape else 1.0
    top, left, high, wide = crop_box(height, width, scale, (ratio[0] * unit, ratio[1] * unit), rng)
    return _resize(image.crop((left, top, left + wide, top + high)), size, interpolation)


def crop_box(height: int, width: int, scale: Range, ratio: Range, rng: Generator) -> Box:
    """Top, left, height and width of a random part, drawn as torchvision's RandomResizedCrop draws it.

    Ten tries; if no part of the drawn area and ratio fits, the largest central one of the nearest ratio.
    """
    area, low, high = height * width, math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        target = area * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


def shift_scale(image: Image.Image, rng: Generator, shift: float = 0.1, scale: Range = (0.9, 1.1)) -> Image.Image:
    """Move and scale the image within its frame, which is black elsewhere (torchvision's RandomAffine).

    Args:
        shift: largest move, as a share of width and of height.
        scale: range of the factor.
    """
    width, height = image.size
    right = round(rng.uniform(-shift * width, shift * width))
    down = round(rng.uniform(-shift * height, shift * height))
    factor = rng.uniform(*scale)
    moved: Image.Image = F.affine(image, 0.0, [right, down], factor, [0.0, 0.0], InterpolationMode.BILINEAR, 0)
    return moved


def color_jitter(
    image: Image.Image, rng: Generator, brightness: float, contrast: float, saturation: float, hue: float = 0.0
) -> Image.Image:
    """Change brightness, contrast, saturation and hue at random, in random order (torchvision's ColorJitter).

    The first three are multiplied by a factor within 1 - x .. 1 + x (never below 0), the hue is moved by -x .. x turns
    of the color circle; 0 leaves it unchanged.
    """
    order = rng.permutation(4)
    factors = [rng.uniform(max(0.0, 1 - x), 1 + x) if x else None for x in (brightness, contrast, saturation)]
    factors.append(rng.uniform(-hue, hue) if hue else None)
    change = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    for k in order:
        if (factor := factors[k]) is not None:
            image = change[k](image, factor)
    return image


def blur(image: Image.Image, rng: Generator, kernel: int = 7, sigma: Range = (0.05, 0.6)) -> Image.Image:
    """Gaussian blur with a random standard deviation in pixels, limited to a square kernel of `kernel` pixels."""
    blurred: Image.Image = F.gaussian_blur(image, [kernel] * 2, [rng.uniform(*sigma)] * 2)
    return blurred


def add_noise(pixels: Tensor, strength: float, rng: Generator) -> Tensor:
    """Pixels (3, H, W) in [0, 1] with Gaussian noise of this standard deviation, clamped to [0, 1].

    ID-Sim's section 4.1 names it among the augmentations, without a number; its list in C.4 lacks it.
    """
    noise = torch.from_numpy(rng.standard_normal(tuple(pixels.shape), dtype=np.float32))
    return (pixels + strength * noise.to(pixels)).clamp(0, 1)


def _resize(image: Image.Image, size: Size, interpolation: str) -> Image.Image:
    return image.resize((size[1], size[0]), Image.Resampling[interpolation.upper()])
