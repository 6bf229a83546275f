"""The papers' augmentations: small steps on an image and its mask, each drawing from a given generator.

    augment = idsim((448, 448))
    view = augment(View(image, mask), generator(seed, step, place))

Every step draws the same random numbers in the same order as torchvision's transform of that kind, and applies them
with torchvision's own functions on 8-bit images: with torch's random numbers the results are equal. Steps that move
pixels also move the mask; the others do not change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class View(NamedTuple):
    """An RGB image, and its mask (mode L, 255 = subject) of the same size, or None."""

    image: Image.Image
    mask: Image.Image | None = None

    def both(self, move: Callable[[Image.Image], Image.Image]) -> View:
        """The view with the image and the mask moved in the same way."""
        return View(move(self.image), None if self.mask is None else move(self.mask))


Augment = Callable[[View, Generator], View]
_RESAMPLE = {name: Image.Resampling[name.upper()] for name in ("bicubic", "bilinear", "lanczos")}


def _need(good: bool, says: str) -> None:
    if not good:
        raise ValueError(f"augmentation: {says}")


def _need_range(given: Range, name: str, most: float = math.inf) -> None:
    limit = "" if most == math.inf else f" to {most:g}"
    _need(0 < given[0] <= given[1] <= most, f"{name} {given} is not a range above 0{limit}")


@dataclass(frozen=True)
class Chain:
    """Steps one after the other."""

    steps: tuple[Augment, ...]

    def __call__(self, view: View, rng: Generator) -> View:
        for step in self.steps:
            view = step(view, rng)
        return view


@dataclass(frozen=True)
class Sometimes:
    """A step that is taken with probability `p`."""

    step: Augment
    p: float

    def __post_init__(self) -> None:
        _need(0 <= self.p <= 1, f"{self.p} is not a probability in [0, 1]")

    def __call__(self, view: View, rng: Generator) -> View:
        return self.step(view, rng) if rng.random() < self.p else view


# Steps that move pixels


@dataclass(frozen=True)
class Resize:
    """The whole image at another size (height, width): squashed, as the models see it."""

    size: Size
    interpolation: str = "bicubic"

    def __call__(self, view: View, rng: Generator) -> View:
        return _resize(view, self.size, self.interpolation)


@dataclass(frozen=True)
class ResizedCrop:
    """A random part of the image at one size (torchvision's RandomResizedCrop).

    Args:
        size: (height, width) of the result.
        scale: range of the part's share of the image's area.
        ratio: range of the part's width / height, drawn uniformly in its logarithm.
        keep_shape: measure `ratio` in units of the image's own width / height, as if the image were first squashed to a
            square. Otherwise, as in torchvision, ratio 1 cuts squares: a photo of 3:4 then always becomes its central
            square at scales above 0.75, although the models see whole photos, squashed.
    """

    size: Size
    scale: Range
    ratio: Range = (3 / 4, 4 / 3)
    keep_shape: bool = False
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        _need_range(self.scale, "the crop's scale", 1)
        _need_range(self.ratio, "the crop's ratio")

    def __call__(self, view: View, rng: Generator) -> View:
        width, height = view.image.size
        unit = width / height if self.keep_shape else 1.0
        top, left, high, wide = crop_box(height, width, self.scale, (self.ratio[0] * unit, self.ratio[1] * unit), rng)
        box = (left, top, left + wide, top + high)
        return _resize(view.both(lambda x: x.crop(box)), self.size, self.interpolation)


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


@dataclass(frozen=True)
class Flip:
    """Mirror the image left to right."""

    def __call__(self, view: View, rng: Generator) -> View:
        return view.both(lambda x: x.transpose(Image.Transpose.FLIP_LEFT_RIGHT))


@dataclass(frozen=True)
class ShiftScale:
    """Move and scale the image within its frame, which is black elsewhere (torchvision's RandomAffine).

    Args:
        shift: largest move, as a share of width and of height.
        scale: range of the factor.
    """

    shift: float = 0.1
    scale: Range = (0.9, 1.1)

    def __post_init__(self) -> None:
        _need(0 <= self.shift <= 1, f"shift {self.shift} is not a share in [0, 1]")
        _need_range(self.scale, "scale")

    def __call__(self, view: View, rng: Generator) -> View:
        width, height = view.image.size
        right = round(rng.uniform(-self.shift * width, self.shift * width))
        down = round(rng.uniform(-self.shift * height, self.shift * height))
        factor = rng.uniform(*self.scale)
        smooth = InterpolationMode.BILINEAR
        return view.both(lambda x: F.affine(x, 0.0, [right, down], factor, [0.0, 0.0], smooth, 0))


def _resize(view: View, size: Size, interpolation: str) -> View:
    _need(interpolation in _RESAMPLE, f"unknown interpolation {interpolation!r}: choose {', '.join(_RESAMPLE)}")
    wanted = (size[1], size[0])
    image, mask = view
    if image.size != wanted:
        image = image.resize(wanted, _RESAMPLE[interpolation])
    if mask is not None and mask.size != wanted:
        mask = mask.resize(wanted, Image.Resampling.BOX)  # shares of covered area
    return View(image, mask)


# Steps that change colors


@dataclass(frozen=True)
class Jitter:
    """Change brightness, contrast, saturation and hue at random, in random order (torchvision's ColorJitter).

    The first three are multiplied by a factor within 1 - x .. 1 + x (never below 0), the hue is moved by -x .. x turns
    of the color circle; 0 leaves it unchanged.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        _need(min(self.brightness, self.contrast, self.saturation) >= 0, "jitter strengths are 0 or more")
        _need(0 <= self.hue <= 0.5, f"jitter's hue {self.hue} does not lie in [0, 0.5]")

    def __call__(self, view: View, rng: Generator) -> View:
        order = rng.permutation(4)
        factors = [
            rng.uniform(max(0.0, 1 - x), 1 + x) if x else None
            for x in (self.brightness, self.contrast, self.saturation)
        ]
        factors.append(rng.uniform(-self.hue, self.hue) if self.hue else None)
        image = view.image
        for k in order:
            if (factor := factors[k]) is not None:
                image = _COLOR[k](image, factor)
        return view._replace(image=image)


_COLOR: Sequence[Callable[[Image.Image, float], Image.Image]] = (
    F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue,
)  # fmt: skip


@dataclass(frozen=True)
class Grey:
    """Remove the image's colors; it stays RGB."""

    def __call__(self, view: View, rng: Generator) -> View:
        return view._replace(image=F.rgb_to_grayscale(view.image, num_output_channels=3))


@dataclass(frozen=True)
class Blur:
    """Gaussian blur with a random standard deviation in pixels, limited to a square kernel of `kernel` pixels."""

    kernel: int = 7
    sigma: Range = (0.05, 0.6)

    def __post_init__(self) -> None:
        _need(self.kernel > 0 and self.kernel % 2 == 1, f"blur's kernel {self.kernel} is not an odd number of pixels")
        _need_range(self.sigma, "blur's sigma")

    def __call__(self, view: View, rng: Generator) -> View:
        return view._replace(image=F.gaussian_blur(view.image, [self.kernel] * 2, [rng.uniform(*self.sigma)] * 2))


def add_noise(pixels: Tensor, strength: float, rng: Generator) -> Tensor:
    """Pixels (3, H, W) in [0, 1] with Gaussian noise of this standard deviation, clamped to [0, 1].

    ID-Sim's section 4.1 names it among the augmentations, without a number; its list in C.4 lacks it.

    Raises:
        ValueError: if the strength is negative.
    """
    if strength < 0:
        raise ValueError(f"noise has a strength of 0 or more, got {strength}")
    if strength == 0:
        return pixels
    noise = torch.from_numpy(rng.standard_normal(tuple(pixels.shape), dtype=np.float32))
    return (pixels + strength * noise.to(pixels)).clamp(0, 1)


# The papers' augmentations


def idsim(
    size: Size,
    *,
    scale: Range = (0.9, 1.0),
    jitter: tuple[float, float, float] = (0.2, 0.2, 0.08),
    jitter_p: float = 0.8,
    blur_p: float = 0.5,
    keep_shape: bool = True,
    interpolation: str = "bicubic",
) -> Chain:
    """ID-Sim, C.4: random resized crop (ratio 1), color jitter (brightness, contrast, saturation), Gaussian blur.

    `keep_shape`: see `ResizedCrop`. The paper doesn't say whether its crop sees the image squashed to a square (as its
    metric does; the default) or in its own shape (False). For square images the two are the same.
    """
    return Chain((
        ResizedCrop(size, scale, (1.0, 1.0), keep_shape, interpolation),
        Sometimes(Jitter(*jitter), jitter_p),
        Sometimes(Blur(7, (0.05, 0.6)), blur_p),
    ))  # fmt: skip


def nearid(
    size: Size,
    *,
    flip: float = 0.5,
    jitter: tuple[float, float, float, float] = (0.2, 0.2, 0.2, 0.05),
    jitter_p: float = 1.0,
    shift: float = 0.1,
    scale: Range = (0.9, 1.1),
    shift_p: float = 1.0,
    interpolation: str = "bilinear",
) -> Chain:
    """NearID, section 4.1: "standard augmentations (color jitter, flipping, translation/scale) are applied per slot".

    The paper gives no numbers. Strengths are those of the released code, which has all three switched off. As usual in
    torchvision they apply to every image, and flipping to half of them. They come after the foreground masking, as in
    the release.
    """
    return Chain((
        Resize(size, interpolation), Sometimes(Flip(), flip), Sometimes(Jitter(*jitter), jitter_p),
        Sometimes(ShiftScale(shift, scale), shift_p),
    ))  # fmt: skip


def ilgen(
    size: Size,
    *,
    scale: Range = (0.2, 1.0),
    grey_p: float = 0.2,
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.4),
    flip: float = 0.5,
    interpolation: str = "bicubic",
) -> Chain:
    """ILGen, training details: "random cropping, resizing, flipping, color jitter, and mapping to grayscale".

    The paper cites He et al. 2020 (MoCo) for it; numbers and order are those of MoCo's published code, version 1.
    """
    return Chain((
        ResizedCrop(size, scale, interpolation=interpolation), Sometimes(Grey(), grey_p),
        Sometimes(Jitter(*jitter), 1.0), Sometimes(Flip(), flip),
    ))  # fmt: skip
