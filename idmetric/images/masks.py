"""Subject masks of any encoding to coverage in [0, 1], and cut-outs by them: the one reader of masks.

The subject of a mask depends on how the mask is stored:

| mask | subject |
|---|---|
| 0 and one other value, of any bit depth (0/1, 0/7, 0/255, 16-bit 0/255, ...), bool | the other value |
| many grey values up to the format's maximum (255; 16 bits: 65,535), as JPEG leaves them | soft: value / maximum |
| floats in [0, 1] | soft, as they are |
| palette (P) | by index, not by colour; index 0 is background |
| transparency that varies over one colour, or over a picture (a cut-out) | alpha |
| colours on black | the colour, if there is one |
| several values, indices or colours | none until `mask_id` names one: 3, or "#ff0000" |

A soft value is the share of the pixel that belongs to the subject. Anything else is refused with the values found.

A mask belongs to the pixels of its image. Of an image that EXIF turns, a mask of exactly the stored width and height is
turned the same way, and a mask of the upright size is used as it is; any other size must have the image's shape (see
`same_shape`). A mask with an EXIF orientation of its own is turned by that alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from idmetric.images.arrays import channels_last, float_pixels, is_float
from idmetric.images.coverage import BLOCK, average_to, box_of, same_shape
from idmetric.images.kinds import MAX_PIXELS, STORED, WHITE, Color, ImageLike, ImageReadError, Outside, describe
from idmetric.images.mask_id import MaskId, parse_mask_id
from idmetric.images.mask_values import MaskWarning, SeveralLabelsError, of_floats, of_image, of_integers
from idmetric.images.opening import open_image
from idmetric.images.read import read_image

__all__ = [
    "Labelled",
    "MaskId",
    "MaskLike",
    "MaskWarning",
    "SeveralLabelsError",
    "cut_out",
    "labelled",
    "parse_mask_id",
    "read_indices",
    "read_mask",
]

LEAST_SHARE = 0.001  # of an image: a mask that selects less gets a warning


@dataclass(frozen=True)
class Labelled:
    """A mask and the label of its subject: takes the place of a mask wherever one is given."""

    source: Any
    mask_id: MaskId


MaskLike = ImageLike | Labelled


def labelled(masks: Any, mask_id: MaskId | None) -> Any:
    """Masks in any arrangement that `Embedder.embed` takes, each with its label; unchanged without one."""
    if masks is None or mask_id is None or isinstance(masks, Labelled):
        return masks
    if isinstance(masks, list | tuple) or (isinstance(masks, Tensor) and masks.ndim in (3, 4)):
        return [labelled(mask, mask_id) for mask in masks]
    return Labelled(masks, mask_id)


def read_mask(
    source: MaskLike,
    size: tuple[int, int] | None = None,
    *,
    image: Image.Image | Tensor | None = None,
    mask_id: MaskId | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """A subject mask as coverage (height, width), float32 in [0, 1] on the CPU, 1 = subject; without graph.

    Args:
        source: as for `read_image`; tensors may also be (H, W). The module's table lists what counts as the subject.
        size: (height, width) to average to, so that values are exact fractions of covered area; None keeps its own.
        image: the mask's image, as `read_image` gives it, or pixels (3, H, W): the mask is turned as the image was,
            and must have its shape; a mask that selects almost nothing or all of it gets a warning.
        mask_id: the label that is the subject, where there are several.
        max_pixels: as for `read_image`.

    Raises:
        ImageReadError: as `read_image`; for several labels without `mask_id`, and where that is not among them; for a
            mask that does not fit its image.
    """
    values, full = _read(source, image, mask_id, max_pixels)
    if values.dtype.kind != "f" and values.dtype != np.uint8:
        values = values.astype(np.int32)  # torch knows neither all types nor foreign byte orders
    mask = torch.from_numpy(values if values.flags.writeable else values.copy())
    if size is not None and tuple(size) != tuple(mask.shape):
        return average_to(mask, size, full)
    return mask.float() if full == 1 else mask.float().div_(full)


def read_indices(source: ImageLike, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint16]:
    """The object numbers (height, width) of an indexed mask: palette indices, or grey values as they are stored.

    Args:
        source, max_pixels: as for `read_image`.

    Raises:
        ImageReadError: as `read_image`, and for images with more than one channel.
    """
    name = describe(source)
    image = open_image(source, max_pixels)
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise ImageReadError(name, f"its mode {image.mode} holds no object numbers: save it as a palette or grey PNG")
    values = np.asarray(image)
    if image.mode.startswith("I") and (values.min() < 0 or values.max() > 65535):
        raise ImageReadError(name, f"object numbers must lie in [0, 65535], found [{values.min()}, {values.max()}]")
    return values.astype(np.uint16)


def cut_out(
    image: ImageLike,
    mask: MaskLike,
    outside: Outside = "black",
    *,
    mask_id: MaskId | None = None,
    background: Color = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Image.Image | Tensor, Tensor]:
    """The subject of an image: the pixels outside its mask painted over or cut off, at the image's own size.

    Args:
        image, background, max_pixels: as for `read_image`. mask, mask_id: as for `read_mask`.
        outside: "black" or "white" paints, "crop" paints black and cuts to the box of the pixels that the mask
            covers by half (or at all, if none is), "keep" leaves the image as it is.

    Returns:
        The image, a float tensor (3, h, w) with its graph for float images, else a PIL image; and the mask's coverage
        (h, w).

    Raises:
        ImageReadError: if one of them cannot be read, they do not fit, or the mask selects nothing.
        ValueError: for another `outside`.
    """
    if outside not in get_args(Outside):
        raise ValueError(f"unknown outside {outside!r}: choose one of {', '.join(get_args(Outside))}")
    subject: Image.Image | Tensor
    if isinstance(image, Tensor | np.ndarray) and is_float(image):
        subject = float_pixels(image, describe(image), background)
        size = (subject.shape[1], subject.shape[2])
    else:
        subject = read_image(image, background=background, max_pixels=max_pixels)
        size = (subject.height, subject.width)
    cover = read_mask(mask, size, image=subject, mask_id=mask_id, max_pixels=max_pixels)
    if not cover.any():
        raise ImageReadError(_name(mask), "it is empty: a mask must select something, white = subject")

    if outside != "keep":
        subject = _painted(subject, cover, 255 if outside == "white" else 0)
    if outside == "crop":
        left, top, right, bottom = box_of(cover)
        cover = cover[top:bottom, left:right]
        if isinstance(subject, Tensor):
            subject = subject[:, top:bottom, left:right]
        else:
            subject = subject.crop((left, top, right, bottom))
    return subject, cover


def _name(mask: MaskLike) -> str:
    return describe(mask.source if isinstance(mask, Labelled) else mask)


def _painted(subject: Image.Image | Tensor, cover: Tensor, fill: int) -> Image.Image | Tensor:
    """The subject on black (0) or white (255); a PIL image is painted in place."""
    if isinstance(subject, Tensor):
        weight = cover.to(subject.device, subject.dtype)
        return subject * weight + fill / 255 * (1 - weight)
    outside = np.empty(cover.shape, np.uint8)
    step = max(1, BLOCK // cover.shape[1])
    for start in range(0, len(outside), step):
        outside[start : start + step] = 255 - (cover[start : start + step].numpy() * 255).round()
    subject.paste((fill, fill, fill), mask=Image.fromarray(outside))
    return subject


# Reading: values (H, W), and the value that means wholly covered


def _read(
    source: MaskLike, image: Image.Image | Tensor | None, mask_id: MaskId | None, max_pixels: int
) -> tuple[NDArray[Any], float]:
    given: ImageLike = source.source if isinstance(source, Labelled) else source
    mask_id = source.mask_id if isinstance(source, Labelled) else mask_id
    name, own = describe(given), None
    if isinstance(given, Tensor | np.ndarray):
        values = channels_last(given, name)
        read = of_floats if values.dtype.kind == "f" else of_integers
        values, full = read(values, name, mask_id)
    else:
        opened = open_image(given, max_pixels)
        own = opened.info.get(STORED)
        values, full = of_image(opened, name, mask_id)
    if image is None:
        return values, full
    values = _fit(values, own, image, name)
    if not (isinstance(given, Tensor) and is_float(given)):  # coverage that was computed, as `read_mask` gives it
        _warn_of_share(values, full, name)
    return values, full


# Fitting


def _fit(values: NDArray[Any], own: int | None, image: Image.Image | Tensor, name: str) -> NDArray[Any]:
    """The mask turned as its image was; it must then have the image's shape.

    Args:
        own: the mask's EXIF orientation, by which it has been turned; None without one.
    """
    if isinstance(image, Tensor):
        size, turn = (image.shape[-2], image.shape[-1]), 1
    else:
        size, turn = (image.height, image.width), image.info.get(STORED, 1)
    stored = size[::-1] if turn >= 5 else size
    own_size = (values.shape[0], values.shape[1])
    if values.shape == size:
        if turn > 1 and stored == size and own is None:
            message = (
                f"EXIF turns the photo of the mask {name} (orientation {turn}), and the mask has no orientation of its "
                "own: it is taken as upright; turn it if it was made from the stored pixels"
            )
            warnings.warn(message, MaskWarning, stacklevel=5)
        return values
    if values.shape == stored and own in (None, 1):
        return np.ascontiguousarray(_TURNED[turn](values))
    if same_shape(own_size, size):
        return values
    advice = f"resize it to {size[1]}x{size[0]}"
    if same_shape(own_size, stored):
        advice = f"EXIF turns the image, so {advice}, or to the stored {stored[1]}x{stored[0]}"
    raise ImageReadError(
        name,
        f"the mask has {values.shape[1]}x{values.shape[0]} pixels and its image {size[1]}x{size[0]}, another shape: "
        f"{advice}",
    )


_TURNED: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {  # EXIF's orientations that swap width and height
    5: lambda x: x.T,
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).T,
    8: np.rot90,
}


def _warn_of_share(values: NDArray[Any], full: float, name: str) -> None:
    if values.min() >= full:
        message = f"the mask {name} selects all of its image: without a mask the result is the same"
    else:
        share = float(values.mean(dtype=np.float64)) / full
        if not 0 < share < LEAST_SHARE:
            return
        message = f"the mask {name} selects only {100 * share:.2g} % of its image: is it the right one?"
    warnings.warn(message, MaskWarning, stacklevel=5)
