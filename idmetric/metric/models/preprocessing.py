"""A model bound to its own preprocessing: images and masks of any kind become the pixels that it sees."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import get_args

import torch
from PIL import Image
from torch import Tensor

from idmetric.metric.calibration.calibrated import Calibrated
from idmetric.metric.checkpoints.hub import Files
from idmetric.metric.images.fit import SQUASH, Fit
from idmetric.metric.images.kinds import WHITE, Color
from idmetric.metric.images.masks import MaskId, MaskLike
from idmetric.metric.images.opening import Decode, checked, mark_of
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
from idmetric.metric.images.regions import cut_out

LoadedImage = tuple[Tensor, Tensor | None]  # pixels (3, h, w), and how much of each the subject's mask covers (h, w)


class Preprocessed(Calibrated):
    """A model that reads images in its own way.

    Args:
        name: the name by which the user opened it, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`).
        image_size: height and width of the encoder's input.
        mean, std: per-channel normalization of pixels in [0, 1].
        interpolation: "bicubic" or "bilinear", antialiased.
        background: RGB color (0-255) that shows through transparent images.
        preprocessing: how files and PIL images become RGB, "standard" or "release" (see `idmetric.metric.images`).
        fit: how images of other shapes are brought to `image_size`; squashed by default, not cropped.
        files: the folder or repository that it was loaded from, perhaps with a calibration.
    """

    scales_files = True  # whether images are resized with antialiasing, before which files may be scaled
    _decode: Decode = "exact"

    def __init__(
        self,
        *,
        name: str,
        revision: str,
        image_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: str = "bicubic",
        background: Color = WHITE,
        preprocessing: Preprocessing = "standard",
        fit: Fit = SQUASH,
        files: Files | None = None,
    ) -> None:
        if preprocessing not in get_args(Preprocessing):
            raise ValueError(f"unknown preprocessing {preprocessing!r}: choose {' or '.join(get_args(Preprocessing))}")
        super().__init__(name, revision, image_size, files)
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self.interpolation = interpolation
        self.background = background
        self.preprocessing = preprocessing
        self.fit = fit

    # Names

    @property
    def label(self) -> str:
        """Class and name, and every other setting of a model that changes its scores."""
        label = super().label
        if self.preprocessing != "standard":
            label += f"[{self.preprocessing} preprocessing]"
        label += mark_of(self._decode)
        if self.fit != SQUASH:
            label += f"[{self.fit}, {self.interpolation}]"
        return label

    def about(self, outside: Outside | None = None, mask_id: MaskId | None = None) -> dict[str, str]:
        """Everything that this model's embeddings depend on, the exact weights in memory included.

        Args:
            outside: what becomes of pixels outside masks; None for whole images.
            mask_id: which label of the masks is the subject, if one was chosen.
        """
        facts = super().about()
        facts["seen"] = f"{self.image_size} {self.mean} {self.std} {self.interpolation} {self.background}"
        if self.fit != SQUASH:
            facts["seen"] += f" {self.fit}"
        facts["outside"] = outside or "all"
        if self.decode != "exact":
            facts["decode"] = self.decode
        if mask_id is not None:
            facts["mask_id"] = str(mask_id)
        return facts

    @property
    def decode(self) -> str:  # not Decode, on which jedi fails: IPython would complete no name of a metric
        """How files are decoded, a setting that `idmetric.load` takes too.

        "exact" decodes all pixels; "fast" decodes large JPEG files at a smaller size, which moves distances a little
        (`idmetric.metric.images.opening`). Images with a mask, other formats, and decoded images keep all pixels.

        Raises:
            ValueError: for another name, or "fast" where the model needs all pixels.
        """
        return self._decode

    @decode.setter
    def decode(self, decode: str) -> None:
        if checked(decode) == "fast" and not self.scales_files:
            raise ValueError(f"{self.name!r} needs all pixels of a file: leave out --decode fast (decode='fast')")
        self._decode = checked(decode)

    # Pixels

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which this model sees an image of that size; ValueError if it cannot."""
        return self.image_size

    def fit_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at the size at which this model sees them, antialiased, differentiably."""
        size = self.size_for(pixels.shape[-2], pixels.shape[-1])
        return self.fit.pixels(pixels, size, self.interpolation, self.background)

    def normalize(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std of (..., 3, H, W) on the model's device, in float32 or better whatever its dtype."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        dtype = torch.promote_types(dtype, pixels.dtype)
        x = pixels.to(self.device, dtype)
        mean = x.new_tensor(self.mean).view(3, 1, 1)
        std = x.new_tensor(self.std).view(3, 1, 1)
        return (x - mean).div_(std)

    # Files and images in memory

    def decoding(self, whole: bool) -> Hashable:
        """What the pixels of `read_image` depend on: models with equal values share a decoded image."""
        shared = (self.background, self.preprocessing)
        if whole or self.decode == "exact":
            return shared
        return *shared, id(self)  # each model leaves out other pixels

    @property
    def reading(self) -> Reading:
        """How files become pixels: options of `idmetric.metric.images.read.to_pixels`."""
        return {
            "background": self.background,
            "interpolation": self.interpolation,
            "preprocessing": self.preprocessing,
            "fit": self.fit,
            "decode": self._decode,
        }

    def read_image(self, image: ImageLike, *, whole: bool = True) -> Image.Image:
        """One image as 8-bit RGB at its own size, as this model's preprocessing reads it; see `images.read_image`.

        Args:
            whole: False leaves out the pixels that `embed` does not decode without a mask (see `decode`).
        """

        def resized_shape(height: int, width: int) -> tuple[int, int]:
            size = self.size_for(height, width)
            shape, _ = self.fit.plan(height, width, size)
            return shape

        needed = None if whole or self.decode == "exact" else resized_shape
        return read_image(image, background=self.background, preprocessing=self.preprocessing, needed=needed)

    def load_image(
        self,
        image: ImageLike,
        mask: MaskLike | None = None,
        outside: Outside = "black",
        *,
        mask_id: MaskId | None = None,
    ) -> LoadedImage:
        """One image as this model sees it, and its mask.

        Args:
            image, mask, outside, mask_id: as for `embed`.

        Returns:
            Pixels (3, h, w) in [0, 1], h and w from `size_for`; how much of each pixel the mask covers (h, w), or None
            without a mask.

        Raises:
            ImageReadError: if one of them cannot be read, the mask selects nothing, or the model reads images as its
                release does, which knows no masks.
        """
        if mask is None:
            return to_pixels(image, self.size_for, **self.reading), None
        self.check_mask(mask)
        subject, cover = cut_out(image, mask, outside, mask_id=mask_id, background=self.background)
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
