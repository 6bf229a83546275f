"""A model's own preprocessing: images and masks of any kind become the pixels that it sees."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import get_args

import torch
from PIL import Image
from torch import Tensor

from idmetric.metric.images.fit import SQUASH, Fit
from idmetric.metric.images.kinds import WHITE, Color, Sides
from idmetric.metric.images.masks import MaskLike
from idmetric.metric.images.read import (
    ImageLike,
    ImageReadError,
    Outside,
    Preprocessing,
    Reading,
    describe,
    picture_pixels,
    read_image,
    to_pixels,
)

LoadedImage = tuple[Tensor, Tensor | None]  # pixels (3, h, w), and how much of each the subject's mask covers (h, w)


class Preprocessor:
    """How a model sees images: their size and normalization.

    Args:
        image_size: height and width of the encoder's input.
        mean, std: per-channel normalization of pixels in [0, 1].
        interpolation: "bicubic" or "bilinear", antialiased.
        background: RGB color (0-255) that shows through transparent images.
        preprocessing: how files and PIL images become RGB, "standard" or "release" (see `idmetric.metric.images`).
        fit: how images of other shapes are brought to `image_size`; squashed by default, not cropped.

    Attributes:
        sizes: from an image's height and width to those at which the model sees it; None: always `image_size`.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: str = "bicubic",
        background: Color = WHITE,
        preprocessing: Preprocessing = "standard",
        fit: Fit = SQUASH,
    ) -> None:
        if preprocessing not in get_args(Preprocessing):
            raise ValueError(f"unknown preprocessing {preprocessing!r}: choose {' or '.join(get_args(Preprocessing))}")
        self.image_size = image_size
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self.interpolation = interpolation
        self.background = background
        self.preprocessing = preprocessing
        self.fit = fit
        self.sizes: Callable[[int, int], Sides] | None = None

    @property
    def mark(self) -> str:
        """The part of a model's label with the settings that are not the usual ones."""
        mark = ""
        if self.preprocessing != "standard":
            mark += f"[{self.preprocessing} preprocessing]"
        if self.fit != SQUASH:
            mark += f"[{self.fit}, {self.interpolation}]"
        return mark

    def about(self) -> dict[str, str]:
        """The settings on which embeddings depend, for keys of caches."""
        seen = f"{self.image_size} {self.mean} {self.std} {self.interpolation} {self.background}"
        if self.fit != SQUASH:
            seen += f" {self.fit}"
        return {"seen": seen}

    # Pixels

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which this model sees an image of that size; ValueError if it cannot."""
        if self.sizes is not None:
            return self.sizes(height, width)
        return self.image_size

    def fit_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at the size at which this model sees them, antialiased, differentiably."""
        size = self.size_for(pixels.shape[-2], pixels.shape[-1])
        return self.fit.pixels(pixels, size, self.interpolation, self.background)

    def normalize(self, pixels: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(pixels - mean) / std of (..., 3, H, W) on the device of a model, in float32 or better whatever its dtype."""
        computed = torch.promote_types(dtype, torch.float32)
        computed = torch.promote_types(computed, pixels.dtype)
        x = pixels.to(device, computed)
        mean = torch.tensor(self.mean, dtype=computed, device=x.device).view(3, 1, 1)
        std = torch.tensor(self.std, dtype=computed, device=x.device).view(3, 1, 1)
        return (x - mean).div_(std)

    # Files and images in memory

    @property
    def decoding(self) -> Hashable:
        """What the pixels of `read_image` depend on: models with equal values share a decoded image."""
        return self.background, self.preprocessing

    @property
    def reading(self) -> Reading:
        """How files become pixels: options of `idmetric.metric.images.read.to_pixels`."""
        return {
            "background": self.background,
            "interpolation": self.interpolation,
            "preprocessing": self.preprocessing,
            "fit": self.fit,
        }

    def read_image(self, image: ImageLike) -> Image.Image:
        """One image as 8-bit RGB at its own size, as this model's preprocessing reads it; see `images.read_image`."""
        return read_image(image, background=self.background, preprocessing=self.preprocessing)

    def load_image(
        self,
        image: ImageLike,
        mask: MaskLike | None = None,
        outside: Outside = "black",
    ) -> LoadedImage:
        """One image as this model sees it, and its mask.

        Args:
            image, mask, outside: as for `embed`.

        Returns:
            Pixels (3, h, w) in [0, 1], h and w from `size_for`; how much of each pixel the mask covers (h, w), or None
            without a mask.

        Raises:
            ImageReadError: if one of them cannot be read, the mask selects nothing, or the model reads images as its
                release does, which knows no masks.
        """
        if mask is None:
            return to_pixels(image, self.size_for, **self.reading), None
        from idmetric.metric.images.regions import cut_out  # masks of any format

        self.check_mask(mask)
        subject, cover = cut_out(image, mask, outside, background=self.background)
        try:
            return self.fitted(subject, cover)
        except ImageReadError as error:  # it knows the cut-out alone
            raise ImageReadError(describe(image), error.reason) from error

    def fitted(self, picture: Image.Image | Tensor, cover: Tensor | None = None) -> LoadedImage:
        """A picture that was read, and its mask, as this model sees them.

        Args:
            picture: RGB, as `read_image` gives it, or float pixels (3, H, W) in [0, 1].
            cover: how much of each pixel the mask covers (H, W).

        Returns:
            As `load_image`.

        Raises:
            ImageReadError: for a picture of a shape that the model does not take, or if nothing is left of its mask.
        """
        if isinstance(picture, Tensor):
            pixels = to_pixels(picture, self.size_for, **self.reading)
        else:
            pixels = picture_pixels(picture, self.size_for, **self.reading)
        if cover is None:
            return pixels, None

        _, height, width = pixels.shape
        cover = self.fit.cover(cover, (height, width), isinstance(picture, Tensor))
        if not cover.any():
            raise ImageReadError(describe(picture), "its mask selects nothing of the part of the image that is seen")
        return pixels, cover.to(pixels.device, pixels.dtype)

    def check_mask(self, mask: MaskLike) -> None:
        """Refuse a mask if this model reads images as its release does, which knows none: ImageReadError."""
        if self.preprocessing == "release":
            raise ImageReadError(
                describe(mask),
                "preprocessing='release' follows the release, which takes no masks: leave the masks out, or load the "
                "model with preprocessing='standard'",
            )
