"""Subject masks of any encoding to coverage in [0, 1], however they are stored: the one reader of masks.

The subject of a mask depends on how the mask is stored:

| mask | subject |
|---|---|
| 0 and one other value, of any bit depth (0/1, 0/7, 0/255, 16-bit 0/255, ...), bool | the other value |
| gray values up to the format's maximum (255; 16 bits: 65,535), more than 16 or most of them there | value / maximum |
| floats in [0, 1] | soft, as they are |
| palette (P) | by index, not by color; index 0 is background |
| transparency that varies over one color, or over a picture (a cut-out) | alpha |
| colors on black | the color, if there is one |
| several values, indices or colors | none until `mask_id` names one: 3, or "#ff0000" |

A soft value is the share of the pixel that belongs to the subject. Anything else is refused with the values found.

A mask belongs to the pixels of its image. Of an image that EXIF turns, a mask of exactly the stored width and height is
turned the same way, and a mask of the upright size is used as it is; any other size must have the image's shape (see
`same_shape`). A mask with an EXIF orientation of its own is turned by that alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from idmetric.metric import paths
from idmetric.metric.images import (
    WHITE,
    Array,
    Color,
    ImageLike,
    ImageReadError,
    Outside,
    Picture,
    Sides,
    average_to,
    channels_last,
    check_pixels,
    describe,
    is_array,
    is_float,
    is_image_like,
    naming,
    open_image,
    read_picture,
    stored_orientation,
)
from idmetric.metric.images import MaskId as MaskId

_MOST_LABELS = 16  # a gray mask of no more values is a map of labels, unless most of its subject has the maximum


class MaskWarning(UserWarning):
    """A mask that can be used, but probably selects something else than was meant."""


# Masks in any arrangement: one for each image, a batch, a folder of them


@dataclass(frozen=True)
class Labeled:
    """A mask and the label of its subject: takes the place of a mask wherever one is given."""

    source: Any
    mask_id: MaskId


MaskLike = ImageLike | Labeled
Images = ImageLike | Sequence[ImageLike]
Masks = MaskLike | Sequence[MaskLike | None] | None


def labeled(masks: Any, mask_id: MaskId | None) -> Any:
    """Masks in any arrangement that `Embedder.embed` takes, each with its label; unchanged without one."""
    if masks is None or mask_id is None or isinstance(masks, Labeled):
        return masks
    if not _are_several(masks):
        return Labeled(masks, mask_id)
    return [labeled(mask, mask_id) for mask in masks]


def _are_several(masks: Any) -> TypeGuard[Iterable[Any]]:
    if isinstance(masks, Tensor):
        return masks.ndim in (3, 4)
    return isinstance(masks, Iterable) and not is_image_like(masks)


def split_masks(masks: Masks, images: Sequence[Any]) -> list[MaskLike | None]:
    """A mask, or None, for each image; of a folder of masks, the ones at the images' paths (`paths.mask_of`).

    Raises:
        ValueError: if there are more or fewer, or two images would share a mask of a folder.
        ImageReadError: naming an image without a mask in the folder.
    """
    if masks is None:
        return [None] * len(images)

    # a folder, perhaps with a label for all masks in it
    folder, mask_id = _without_label(masks)
    if isinstance(folder, str | os.PathLike) and os.path.isdir(folder):
        mask_files = paths.masks_of(folder, images)
        if None in mask_files:
            raise ImageReadError(*paths.absent_mask(folder, images[mask_files.index(None)]))
        return [labeled(mask, mask_id) for mask in mask_files]

    mask_list: list[Any] = list(masks) if _are_several(masks) else [masks]
    if len(mask_list) != len(images):
        counts = f"{len(mask_list)} masks for {len(images)} images"
        raise ValueError(f"{counts}: give one for each (None where there is none)")
    return mask_list


def _without_label(mask: Any) -> tuple[Any, MaskId | None]:
    if isinstance(mask, Labeled):
        return mask.source, mask.mask_id
    return mask, None


# One mask


def read_mask(
    source: MaskLike,
    size: Sides | None = None,
    *,
    image: Picture | None = None,
    mask_id: MaskId | None = None,
) -> Tensor:
    """A subject mask as coverage (height, width), float32 in [0, 1] on the CPU, 1 = subject; without graph.

    Args:
        source: as for `read_image`; tensors may also be (H, W). The module's table lists what counts as the subject.
        size: (height, width) to average to, so that values are exact fractions of covered area; None keeps its own.
        image: the mask's image, as `read_image` gives it, or pixels (3, H, W): the mask is turned as the image was,
            and must have its shape.
        mask_id: the label that is the subject, where there are several.

    Raises:
        ImageReadError: as `read_image`; for several labels without `mask_id`, a mask that does not hold it, or one that
            does not fit its image.
    """
    stored, label = _without_label(source)
    if label is None:
        label = mask_id
    with naming(stored):
        orientation = None
        if is_array(stored):
            values = _of_array(channels_last(stored), label)
        else:
            opened = open_image(stored)
            orientation = stored_orientation(opened)
            values = _of_image(opened, label)
        array = np.array(values, np.float32)
        mask = torch.from_numpy(array)
        if image is not None:
            mask = _turned_as(image, mask, orientation, describe(stored))
    return mask if size is None else average_to(mask, size)


def same_shape(a: Sides, b: Sides) -> bool:
    """Whether two sizes (height, width) are one shape scaled, each side of the smaller rounded by up to a pixel."""
    difference = abs(a[0] * b[1] - a[1] * b[0])
    return difference <= max(sum(a), sum(b))


# Encodings: coverage (H, W) in [0, 1], as bool or floats


def _of_image(image: Image.Image, mask_id: MaskId | None) -> Array:
    """An image of any of Pillow's modes."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        alpha = np.asarray(rgba.getchannel("A"))
        if alpha.min() < alpha.max():
            _check_colors(rgba, mask_id)
            return alpha / np.float32(255)
    if image.mode == "P":
        return _of_values(np.asarray(image), None, mask_id)
    if image.mode in ("1", "L", "F") or image.mode.startswith("I"):
        return _of_array(np.array(image)[..., None], mask_id)

    # colors as one number each, #rrggbb, unless all are gray
    rgb = image.convert("RGB")
    if rgb.getcolors(256) is None:
        raise ValueError("it holds more than 256 colors, as a photo or a JPEG does: save it as a gray PNG")
    channels = np.asarray(rgb, np.int64)
    red, green, blue = np.moveaxis(channels, 2, 0)
    is_gray = (red == green).all() and (green == blue).all()
    if is_gray and not str(mask_id).startswith("#"):
        return _of_values(red, 255, mask_id)
    colors = red << 16 | green << 8 | blue
    return _of_values(colors, None, mask_id, "#{:06x}")


def _check_colors(rgba: Image.Image, mask_id: MaskId | None) -> None:
    """Refuse a mask whose visible part has a few colors, or whose label is asked for: they may be the mask too."""
    counts: Any = rgba.getcolors(256) or []
    visible_colors = {color[:3] for _, color in counts if color[3]}
    if mask_id is not None or len(visible_colors) > 1:
        raise ValueError("its transparency and its colors may both be the mask: save one of them as a gray PNG")


def _of_array(array: Array, mask_id: MaskId | None) -> Array:
    """Values (H, W, C): floats are shares, integers are labels or gray values."""
    if array.shape[2] > 1:
        if array.dtype != np.uint8:
            raise ValueError(f"a mask of {array.dtype} has one channel: choose one, or convert it to uint8")
        return _of_image(Image.fromarray(array), mask_id)
    values = array[..., 0]
    if not is_float(array):
        return _of_values(values, 255 if array.dtype == np.uint8 else 65535, mask_id)
    if mask_id is not None:
        raise ValueError("a mask of floats holds shares, not labels: leave mask_id out, or give integers")
    check_pixels(torch.from_numpy(values))
    return values.clip(0, 1)


def _of_values(values: Array, full: int | None, mask_id: MaskId | None, label_format: str = "{}") -> Array:
    """Numbers (H, W): one label, or a soft mask if there are many gray values up to `full`.

    Args:
        full: the maximum of the format; None where values do not mean brightness.
        label_format: how messages write a number.
    """
    labels = [label for label in np.unique(values).tolist() if label]
    if labels and labels[0] < 0:
        raise ValueError(f"a mask holds no negative values, found {labels[0]}: use 0 for the background")
    if mask_id is None and len(labels) <= 1:
        return values > 0
    if mask_id is None and labels[-1] == full:
        # a few values, most of them below the maximum, are more likely objects, and the maximum marks unknown pixels
        is_full = values == full
        if len(labels) > _MOST_LABELS or 2 * is_full.sum() >= np.count_nonzero(values):
            return values / np.float32(full)

    names = [label_format.format(label) for label in labels]
    shown = ", ".join(names[:8]) or "none, as it is empty"
    if mask_id is None:
        raise ValueError(
            f"it holds {len(names)} values ({shown}), and any may be the subject: choose one with mask_id (--mask-id "
            f"'{names[0]}'), or save a mask of 0 and 255"
        )
    text = str(mask_id)
    label = int(text[1:], 16) if text.startswith("#") else int(text)
    if label not in labels:
        raise ValueError(f"it does not hold {mask_id}: its values are {shown}")
    is_subject: Array = values == label
    return is_subject


# The image of a mask


def _turned_as(image: Picture, mask: Tensor, own_orientation: int | None, name: str) -> Tensor:
    """The mask turned as its image was; it must then have the image's shape.

    Args:
        own_orientation: the mask's EXIF orientation, by which it has been turned; None without one.
        name: of the mask, for a warning.
    """
    height, width = _size_of(image)
    orientation = 1
    if isinstance(image, Image.Image):
        orientation = stored_orientation(image) or 1
    is_sideways = orientation >= 5
    if orientation > 1 and own_orientation is None:
        if mask.shape == (height, width) and (height == width or not is_sideways):
            message = (
                f"EXIF turns the photo of the mask {name} (orientation {orientation}), and the mask has no orientation "
                "of its own: it is taken as upright; turn it if it was made from the stored pixels"
            )
            warnings.warn(message, MaskWarning, stacklevel=2)
        elif is_sideways and mask.shape == (width, height):
            mask = mask.mT
            if orientation in (6, 7):
                mask = mask.flip(1)
            if orientation in (7, 8):
                mask = mask.flip(0)
    _check_shape(mask, image)
    return mask


def _check_shape(masks: Tensor, images: Picture) -> None:
    mask_size = _size_of(masks)
    size = _size_of(images)
    if not same_shape(mask_size, size):
        sizes = f"{mask_size[1]}x{mask_size[0]} pixels and its image {size[1]}x{size[0]}"
        raise ValueError(f"the mask has {sizes}, another shape: resize it to that (EXIF may turn the photo)")


def _size_of(image: Picture) -> Sides:
    if isinstance(image, Image.Image):
        return image.height, image.width
    return image.shape[-2], image.shape[-1]


# The subject of one image of any kind, and of each image in a batch of pixels

Cut = tuple[int, int, int, int]


def cut_out(
    image: ImageLike,
    mask: MaskLike,
    outside: Outside = "black",
    *,
    background: Color = WHITE,
) -> tuple[Picture, Tensor]:
    """The subject of an image: the pixels outside its mask painted over or cut off, at the image's own size.

    Args:
        image, background: as for `read_image`. mask: as for `read_mask`.
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
    picture = read_picture(image, background=background)
    cover = read_mask(mask, _size_of(picture), image=picture)
    if not cover.any():
        raise ImageReadError(describe(_without_label(mask)[0]), "it is empty: white marks the subject")
    if isinstance(picture, Tensor):
        [subject], [subject_cover] = subject_of(picture[None], cover[None], outside)
        return subject, subject_cover
    if outside == "keep":
        return picture, cover

    around = 255 - (cover * 255).round().byte()
    paint = "white" if outside == "white" else "black"
    picture.paste(paint, mask=Image.fromarray(around.numpy()))
    if outside != "crop":
        return picture, cover
    box = box_of(cover)
    cut = picture.crop(box)
    cut.filename = describe(picture)  # type: ignore[attr-defined]  # for messages
    return cut, cut_to(cover, box)


def box_of(cover: Tensor) -> Cut:
    """Left, top, right and bottom of the pixels of (H, W) that are covered by half; at all, if none is."""
    inside = cover >= 0.5
    if not inside.any():
        inside = cover > 0
    rows = inside.any(1).nonzero().flatten().tolist()
    columns = inside.any(0).nonzero().flatten().tolist()
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def cut_to(x: Tensor, cut: Cut) -> Tensor:
    """The part of (..., H, W) within left, top, right, bottom."""
    left, top, right, bottom = cut
    return x[..., top:bottom, left:right]


def subject_of(x: Tensor, masks: Tensor, outside: Outside = "black") -> tuple[list[Tensor], list[Tensor]]:
    """The pixels of each image that show the subject, with their graph.

    Args:
        x: pixels (B, 3, H, W) in [0, 1].
        masks: (B, h, w) or (B, 1, h, w), bool or in [0, 1]; averaged to the pixels' size.
        outside: what becomes of pixels outside of a mask: see `cut_out`.

    Returns:
        Images (3, h, w), and their masks (h, w).

    Raises:
        ValueError: for masks that do not fit, or select nothing.
    """
    cover = coverage(masks, x)
    if outside != "keep":
        x = x * cover[:, None]
    if outside == "white":
        x = x + (1 - cover[:, None])
    if outside != "crop":
        return list(x), list(cover)

    images = []
    covers = []
    for image, image_cover in zip(x, cover, strict=True):
        box = box_of(image_cover.detach())
        images.append(cut_to(image, box))
        covers.append(cut_to(image_cover, box))
    return images, covers


def coverage(masks: Tensor, x: Tensor) -> Tensor:
    """Masks as how much of each pixel of x is subject, (B, H, W)."""
    cover = masks
    if masks.ndim == 4 and masks.shape[1] == 1:
        cover = masks[:, 0]
    count = len(x)
    if cover.ndim != 3 or len(cover) != count:
        raise ValueError(f"masks must have shape ({count}, h, w) or ({count}, 1, h, w), got {tuple(masks.shape)}")
    _check_shape(cover, x)

    cover = cover.to(x.device, x.dtype)
    if not torch.compiler.is_compiling():  # looking at values would break the graph
        check_pixels(cover)
        is_empty = cover.detach().amax((1, 2)) <= 0
        if is_empty.any():
            empty = is_empty.nonzero().flatten().tolist()
            raise ValueError(f"the masks of images {empty} are empty: leave these images out, or give others")
    return average_to(cover, _size_of(x))
