"""Subject masks of any encoding to coverage in [0, 1], however they are stored: the one reader of masks.

The subject of a mask depends on how the mask is stored:

| mask | subject |
|---|---|
| 0 and one other value, of any bit depth (0/1, 0/7, 0/255, 16-bit 0/255, ...), bool | the other value |
| gray values up to the format's maximum (255; 16 bits: 65,535), more than 16 or most of them there | value / maximum |
| floats in [0, 1] | soft, as they are |
| palette (P) | by index, not by color; index 0 is background |
| transparency that varies over one color, or over a picture of more than 256 (a cut-out) | alpha |
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
from collections.abc import Callable, Iterable, Sequence
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
    Sides,
    average_to,
    channels_last,
    check_pixels,
    color_of,
    convert,
    describe,
    is_array,
    is_float,
    is_image_like,
    naming,
    number_of,
    open_image,
    read_picture,
    stored_orientation,
)
from idmetric.metric.images import MaskId as MaskId

_LEAST_SHARE = 0.001  # of an image: a mask that selects less gets a warning
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
    """A mask, or None, for each image; of a folder of masks, the ones at the images' paths.

    Raises:
        ValueError: if there are more or fewer, or for a folder if an image is not a file or two would share a mask.
        ImageReadError: naming an image without a mask in the folder.
    """
    if masks is None:
        return [None] * len(images)

    # a folder, perhaps with a label for all masks in it
    folder, mask_id = _without_label(masks)
    is_path = isinstance(folder, str | os.PathLike)
    if is_path and os.path.isdir(folder):
        files = []
        for image in images:
            if isinstance(image, str | os.PathLike):
                files.append(os.fspath(image))
        if len(files) != len(images):
            raise ValueError(f"masks in the folder {os.fspath(folder)!r} are found by the images' paths: give files")
        mask_files = paths.masks_of(folder, files)
        if None in mask_files:
            raise ImageReadError(*paths.absent_mask(folder, files[mask_files.index(None)]))
        return [labeled(mask, mask_id) for mask in mask_files]

    mask_list: list[Any] = [masks]
    if _are_several(masks):
        mask_list = list(masks)
    if len(mask_list) != len(images):
        raise ValueError(
            f"{len(mask_list)} masks for {len(images)} images: give one for each (None where there is none)"
        )
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
    image: Image.Image | Tensor | None = None,
    mask_id: MaskId | None = None,
) -> Tensor:
    """A subject mask as coverage (height, width), float32 in [0, 1] on the CPU, 1 = subject; without graph.

    Args:
        source: as for `read_image`; tensors may also be (H, W). The module's table lists what counts as the subject.
        size: (height, width) to average to, so that values are exact fractions of covered area; None keeps its own.
        image: the mask's image, as `read_image` gives it, or pixels (3, H, W): the mask is turned as the image was,
            and must have its shape; a mask that selects almost nothing or all of it gets a warning.
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
        if image is not None:
            values = _turned_as(image, values, orientation, stored)

    array = np.array(values, np.float32)
    mask = torch.from_numpy(array)
    is_computed = isinstance(stored, Tensor) and is_float(stored)  # coverage, as this function returns it
    if image is not None and not is_computed:
        _warn_of_share(mask, stored)
    return mask if size is None else average_to(mask, size)


def same_shape(a: Sides, b: Sides) -> bool:
    """Whether two sizes (height, width) are one shape scaled, each side of the smaller rounded by up to a pixel."""
    difference = abs(a[0] * b[1] - a[1] * b[0])
    return difference <= max(sum(a), sum(b))


# Encodings: coverage (H, W) in [0, 1], as bool or floats


def _of_array(array: Array, mask_id: MaskId | None) -> Array:
    """Values (H, W, C): floats are shares, integers are labels or gray values."""
    if array.shape[2] > 1 and array.dtype == np.uint8:
        return _of_image(Image.fromarray(array), mask_id)
    if array.shape[2] > 1:
        raise ValueError(f"a mask of {array.dtype} has one channel: choose one, or convert it to uint8")
    values = array[..., 0]
    if not is_float(array):
        full = {"uint8": 255, "uint16": 65535}.get(array.dtype.name)
        return _of_values(values, full, mask_id)
    if mask_id is not None:
        raise ValueError("a mask of floats holds shares, not labels: leave mask_id out, or give integers")
    check_pixels(torch.from_numpy(values))
    return values.clip(0, 1)


def _of_image(image: Image.Image, mask_id: MaskId | None) -> Array:
    """An image of any of Pillow's modes."""
    if image.has_transparency_data:
        rgba = convert(image, "RGBA")
        if len(set(rgba.getchannel("A").getextrema())) > 1:
            return _of_transparent(rgba, mask_id)
    if image.mode == "F":
        return _of_array(np.array(image)[..., None], mask_id)
    if image.mode == "P":
        return _of_values(np.asarray(image), None, mask_id, "palette indices")
    if image.mode in ("1", "L") or image.mode.startswith("I"):
        full = 255 if image.mode == "L" else 65535
        return _of_values(np.asarray(image), full, mask_id)
    return _of_colors(convert(image, "RGB"), mask_id)


def _of_transparent(image: Image.Image, mask_id: MaskId | None) -> Array:
    """The alpha of an RGBA image whose visible part is a picture, or has one color."""
    alpha = image.getchannel("A")
    visible = Image.new("RGBA", image.size)
    is_visible = alpha.point(lambda value: 255 * bool(value))
    visible.paste(image.convert("RGB"), mask=is_visible)
    counts: Any = visible.getcolors(256) or []
    visible_colors = [color for _, color in counts if color[3]]
    if mask_id is not None or len(visible_colors) > 1:
        raise ValueError("its transparency and its colors may both be the mask: save one of them as a gray PNG")
    shares: Array = np.asarray(alpha) / np.float32(255)
    return shares


def _of_colors(image: Image.Image, mask_id: MaskId | None) -> Array:
    """An RGB image: gray where its channels agree, else its colors are labels, and black is background."""
    counts: Any = image.getcolors(256)
    if counts is None:
        raise ValueError(
            "it holds more than 256 colors, as a photo or a lossy file does, which does not show the subject's: "
            "save it as a gray PNG, white = subject"
        )
    colors = [color for _, color in counts if any(color)]
    colors.sort()
    is_gray = all(len(set(color)) == 1 for color in colors)
    if is_gray and not str(mask_id).startswith("#"):
        return _of_values(np.asarray(image.getchannel("R")), 255, mask_id)
    label = _label(color_of, mask_id, colors, "colors")
    is_subject: Array = (np.asarray(image) == label).all(-1)
    return is_subject


def _of_values(array: Array, full: int | None, mask_id: MaskId | None, kind: str = "values") -> Array:
    """Integers (H, W): one label, or a soft mask if there are gray values up to `full`.

    Args:
        full: the maximum of the format; None where values do not mean brightness.
        kind: how messages call them.
    """
    low = int(array.min())
    if low < 0:
        raise ValueError(f"a mask holds no negative values, found {low}: use 0 for the background")
    values = np.unique(array).tolist()
    labels = [value for value in values if value]
    if mask_id is None and not labels:
        return array.astype(np.bool_)

    # a few values, most of them below the maximum, are more likely objects, and the maximum marks unknown pixels
    if mask_id is None and len(labels) > 1 and labels[-1] == full:
        count_at_maximum = np.count_nonzero(array == full)
        has_many_at_maximum = 2 * count_at_maximum >= np.count_nonzero(array)
        if len(labels) > _MOST_LABELS or has_many_at_maximum:
            shares: Array = array / np.float32(full)
            return shares
    label = _label(number_of, mask_id, labels, kind)
    is_subject: Array = array == label
    return is_subject


def _label(parse: Callable[[MaskId], Any], mask_id: MaskId | None, labels: list[Any], kind: str) -> Any:
    """The label that is asked for, which the mask must hold; without `mask_id` its only one."""
    if mask_id is None and len(labels) == 1:
        return labels[0]
    names = []
    for label in labels[:8]:
        name = str(label)
        if not isinstance(label, int):
            name = "#{:02x}{:02x}{:02x}".format(*label)
        names.append(name)
    listed = ", ".join(names) or "none, as it is empty"
    if mask_id is None:
        raise ValueError(
            f"it holds {len(labels)} {kind} ({listed}), and any may be the subject: choose one with mask_id "
            f"(--mask-id '{names[0]}'), or save a mask of 0 and 255 (rescaled to the format's maximum, if it is soft)",
        )
    label = parse(mask_id)
    if label not in labels:
        raise ValueError(f"it does not hold {mask_id}: the mask's {kind} are {listed}")
    return label


# Masks that do not fit, or that probably select something else than was meant


def _turned_as(image: Image.Image | Tensor, values: Array, mask_orientation: int | None, source: Any) -> Array:
    """The mask turned as its image was; it must then have the image's shape.

    Args:
        mask_orientation: the mask's EXIF orientation, by which it has been turned; None without one.
        source: of the mask, for a warning.
    """
    size = _size_of(image)
    orientation = 1
    if isinstance(image, Image.Image):
        orientation = stored_orientation(image) or 1
    mask_size = (values.shape[0], values.shape[1])
    stored_size = size[::-1] if orientation >= 5 else size

    if mask_size == stored_size != size and mask_orientation in (None, 1):
        values = values.T
        if orientation in (6, 7):
            values = values[:, ::-1]
        return values[::-1] if orientation in (7, 8) else values
    if not same_shape(mask_size, size):
        turned = f" (stored as {_by(stored_size)}, EXIF turns it)" if stored_size != size else ""
        raise ValueError(
            f"the mask has {_by(mask_size)} pixels and its image {_by(size)}{turned}, another shape: resize it to that"
        )
    if mask_size == size == stored_size and orientation > 1 and mask_orientation is None:
        message = (
            f"EXIF turns the photo of the mask {describe(source)} (orientation {orientation}), and the mask has no "
            "orientation of its own: it is taken as upright; turn it if it was made from the stored pixels"
        )
        warnings.warn(message, MaskWarning, stacklevel=3)
    return values


def _size_of(image: Image.Image | Tensor) -> Sides:
    if isinstance(image, Image.Image):
        return image.height, image.width
    return image.shape[-2], image.shape[-1]


def _by(size: Sides) -> str:
    return f"{size[1]}x{size[0]}"


def _warn_of_share(mask: Tensor, source: Any) -> None:
    share = mask.mean(dtype=torch.float64).item()
    if 0 < share < _LEAST_SHARE or share == 1:
        message = f"the mask {describe(source)} selects {100 * share:.2g} % of its image: is it the right one?"
        warnings.warn(message, MaskWarning, stacklevel=3)


# The subject of one image of any kind, and of each image in a batch of pixels

Cut = tuple[int, int, int, int]


def cut_out(
    image: ImageLike,
    mask: MaskLike,
    outside: Outside = "black",
    *,
    background: Color = WHITE,
) -> tuple[Image.Image | Tensor, Tensor]:
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
        subjects, covers = subject_of(picture[None], cover[None], outside)
        assert covers is not None
        return subjects[0][0], covers[0][0]
    if outside == "keep":
        return picture, cover

    around = 255 - (cover * 255).round().byte()
    paint = "white" if outside == "white" else "black"
    around_mask = Image.fromarray(around.numpy())
    picture.paste(paint, mask=around_mask)
    if outside == "crop":
        box = box_of(cover)
        cut = picture.crop(box)
        cut.filename = describe(picture)  # type: ignore[attr-defined]  # for messages
        return cut, cut_to(cover, box)
    return picture, cover


def box_of(cover: Tensor) -> Cut:
    """Left, top, right, bottom (both excluded) of the pixels that a mask (H, W) covers by half, else at all."""
    inside = cover >= 0.5  # faint edges, as compression makes them, do not count
    if not inside.any():
        inside = cover > 0
    rows = inside.any(1).nonzero().flatten().tolist()
    columns = inside.any(0).nonzero().flatten().tolist()
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def cut_to(x: Tensor, cut: Cut) -> Tensor:
    """The part of (..., H, W) within left, top, right, bottom."""
    left, top, right, bottom = cut
    return x[..., top:bottom, left:right]


def subject_of(x: Tensor, masks: Tensor | None, outside: Outside = "black") -> tuple[list[Tensor], list[Tensor] | None]:
    """The pixels of each image that show the subject, with their graph.

    Args:
        x: pixels (B, 3, H, W) in [0, 1].
        masks: (B, h, w) or (B, 1, h, w), bool or in [0, 1]; averaged to the pixels' size.
        outside: what becomes of pixels outside of a mask: see `cut_out`.

    Returns:
        The whole batch in a list of one, or, with "crop", a list of images (1, 3, h, w); and their masks (B, H, W) or
        (1, h, w), None without.

    Raises:
        ValueError: for masks that do not fit, or select nothing.
    """
    if masks is None:
        return [x], None
    cover = coverage(masks, x)
    if outside != "keep":
        weight = cover[:, None]
        x = x * weight
        if outside == "white":
            x = x + (1 - weight)
    if outside != "crop":
        return [x], [cover]

    images = []
    covers = []
    for number, image_cover in enumerate(cover):
        box = box_of(image_cover.detach())
        images.append(cut_to(x[number : number + 1], box))
        covers.append(cut_to(image_cover[None], box))
    return images, covers


def coverage(masks: Tensor, x: Tensor) -> Tensor:
    """Masks as how much of each pixel of x is subject, (B, H, W)."""
    cover = masks
    if masks.ndim == 4 and masks.shape[1] == 1:
        cover = masks[:, 0]
    count = len(x)
    if cover.ndim != 3 or len(cover) != count or not cover.numel():
        raise ValueError(f"masks must have shape ({count}, h, w) or ({count}, 1, h, w), got {tuple(masks.shape)}")
    size = _size_of(x)
    mask_size = _size_of(cover)
    if not same_shape(mask_size, size):
        raise ValueError(f"masks of {_by(mask_size)} pixels have another shape than images of {_by(size)}")

    cover = cover.to(x.device, x.dtype)
    if not torch.compiler.is_compiling():  # looking at values would break the graph
        check_pixels(cover)
        is_empty = cover.detach().amax((1, 2)) <= 0
        empty = is_empty.nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"the masks of images {empty} are empty: leave these images out, or give others")
    return average_to(cover, size)
