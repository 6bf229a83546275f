"""Subject masks of any encoding to coverage in [0, 1], however they are stored: the one reader of masks.

The subject of a mask depends on how the mask is stored:

| mask | subject |
|---|---|
| 0 and one other value, of any bit depth (0/1, 0/7, 0/255, 16-bit 0/255, ...), bool | the other value |
| many gray values up to the format's maximum (255; 16 bits: 65,535), as JPEG leaves them | soft: value / maximum |
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

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops
from torch import Tensor

from idmetric.metric import paths as inputs
from idmetric.metric.images import (
    WHITE,
    Array,
    Color,
    ImageLike,
    ImageReadError,
    Outside,
    channels_last,
    check_pixels,
    color_of,
    convert,
    describe,
    eight_bit,
    float_pixels,
    image_of_bytes,
    is_float,
    is_image_like,
    naming,
    number_of,
    open_image,
    read_image,
    stored_orientation,
)
from idmetric.metric.images import MaskId as MaskId
from idmetric.metric.pixels import average_to
from idmetric.metric.resampling import Sides

# Masks in any arrangement: one for each image, a batch, a folder of them; `coverage` reads them.


class MaskWarning(UserWarning):
    """A mask that can be used, but probably selects something else than was meant."""


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
    return [labeled(mask, mask_id) for mask in _without_gaps(masks)]


def _are_several(masks: Any) -> TypeGuard[Iterable[Any]]:
    if isinstance(masks, Tensor):
        return masks.ndim in (3, 4)
    return isinstance(masks, Iterable) and not isinstance(masks, Mapping) and not is_image_like(masks)


def _without_gaps(masks: Iterable[Any]) -> list[Any]:
    """Masks as a list; NaN, with which pandas marks an empty cell, becomes None."""
    return [None if isinstance(mask, float) and math.isnan(mask) else mask for mask in masks]


def split_masks(masks: Masks, images: Sequence[Any]) -> list[MaskLike | None]:
    """A mask, or None, for each image; of a folder of masks, the ones at the images' paths.

    Raises:
        ValueError: if there are more or fewer, or for a folder if an image is not a file or two would share a mask.
        ImageReadError: naming an image without a mask in the folder.
    """
    if masks is None:
        return [None] * len(images)

    # a folder, perhaps with a label for all masks in it
    folder: Any = masks
    mask_id = None
    if isinstance(masks, Labeled):
        folder = masks.source
        mask_id = masks.mask_id
    if isinstance(folder, str | os.PathLike) and os.path.isdir(folder):
        files = [os.fspath(image) for image in images if isinstance(image, str | os.PathLike)]
        if len(files) != len(images):
            raise ValueError(f"masks in the folder {os.fspath(folder)!r} are found by the images' paths: give files")
        mask_files = inputs.masks_of(folder, files)
        if None in mask_files:
            image_without_mask = files[mask_files.index(None)]
            raise ImageReadError(*inputs.absent_mask(folder, image_without_mask))
        return [labeled(mask, mask_id) for mask in mask_files]

    mask_list: list[Any] = [masks]
    if _are_several(masks):
        mask_list = _without_gaps(masks)
    if len(mask_list) != len(images):
        raise ValueError(
            f"{len(mask_list)} masks for {len(images)} images: give one for each (None where there is none)"
        )
    return mask_list


_LEAST_SHARE = 0.001  # of an image: a mask that selects less gets a warning
_PICTURE = 64  # colors: an image with more is a picture, not a map of labels
_LEVELS = 16  # a soft mask that misses the maximum by a little must have more gray values than this
_TINT = 8  # of 255: how far lossy compression may tint gray

# (H, W), the value that means wholly covered, and the gray values of a soft mask that look like labels
Values = tuple[Array, float, list[Any]]


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
        ImageReadError: as `read_image`; for several labels without `mask_id`, and where that is not among them; for a
            mask that does not fit its image.
    """
    stored: Any = source
    if isinstance(source, Labeled):
        stored = source.source
        mask_id = source.mask_id
    is_computed = False  # coverage, as this function returns it
    orientation = None
    with naming(stored):
        if not isinstance(stored, Tensor | np.ndarray):
            opened = open_image(stored)
            orientation = stored_orientation(opened)
            values, full, labels = _of_image(opened, mask_id)
            del opened  # a byte per pixel less
        elif is_float(stored):
            is_computed = isinstance(stored, Tensor)
            values, full, labels = _of_floats(channels_last(stored), mask_id)
        else:
            values, full, labels = _of_integers(channels_last(stored), mask_id)
        if labels:
            message = (
                f"the mask {describe(stored)} is read as a soft mask, but its {len(labels)} values "
                f"({_listed(labels)}) look like labels: choose one with mask_id={labels[0]} (--mask-id {labels[0]}) "
                "if they are"
            )
            warnings.warn(message, MaskWarning, stacklevel=2)
        if image is not None:
            values = _turned_as(image, values, orientation, stored)
            if not is_computed:
                _warn_of_share(values, full, stored)

    # a tensor needs an array that can be written to, of a type that torch knows, in the machine's byte order
    if values.dtype.kind != "f" and values.dtype != np.uint8:
        values = values.astype(np.float32)  # exact, as they are at most 65535
    if not values.flags.writeable:
        values = values.copy()
    mask = torch.from_numpy(values)
    if size is not None and tuple(size) != tuple(mask.shape):
        return average_to(mask, size, full)
    return mask.float().div_(full)


def same_shape(a: Sides, b: Sides) -> bool:
    """Whether two sizes (height, width) are one shape scaled, each side of the smaller rounded by up to a pixel."""
    return abs(a[0] * b[1] - a[1] * b[0]) <= max(sum(a), sum(b))


# Encodings


def _of_floats(array: Array, mask_id: MaskId | None) -> Values:
    """Shares (H, W, C), as they are: of varying alpha, else of luminance (ITU-R 601, as Pillow)."""
    if mask_id is not None:
        raise ValueError("a mask of floats holds shares, not labels: leave mask_id out, or give integers")
    alpha = array[..., -1]
    if array.shape[2] in (2, 4) and alpha.min() != alpha.max():
        shares = alpha
    elif array.shape[2] < 3:
        shares = array[..., 0]
    else:
        shares = array[..., :3].astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    check_pixels(torch.from_numpy(shares))
    return shares.clip(0, 1), 1, []


def _of_integers(array: Array, mask_id: MaskId | None) -> Values:
    """Integers or bool (H, W, C); 8-bit color goes through Pillow."""
    if array.dtype == np.bool_:
        array = array * np.uint8(255)
    if array.shape[2] > 1 and array.dtype == np.uint8:
        return _of_image(image_of_bytes(array), mask_id)

    if array.shape[2] > 1:
        raise ValueError(f"a mask with several channels must be 8-bit, not {array.dtype}: convert it to uint8")
    full = {"uint8": 255, "uint16": 65535}.get(array.dtype.name)
    values = array[..., 0]
    return _of_values(values, full, mask_id)


def _of_image(image: Image.Image, mask_id: MaskId | None) -> Values:
    """An image of any of Pillow's modes."""
    if image.mode == "F":
        return _of_floats(np.array(image)[..., None], mask_id)
    if image.has_transparency_data:
        alpha = convert(eight_bit(image), "RGBA").getchannel("A")
        low, high = alpha.getextrema()
        if low != high:
            return _of_transparent(image, alpha, mask_id)
    if image.mode in ("LA", "La"):
        image = convert(eight_bit(image), "LA").getchannel("L")
    if image.mode in ("1", "L"):
        return _of_values(np.asarray(image), 255, mask_id)
    if image.mode == "P":
        return _of_values(np.asarray(image), None, mask_id, "palette indices")
    if image.mode.startswith("I"):
        return _of_values(np.asarray(image), 65535, mask_id)
    return _of_colors(convert(image, "RGB"), mask_id)


def _of_transparent(image: Image.Image, alpha: Image.Image, mask_id: MaskId | None) -> Values:
    """An image of varying alpha: alpha alone counts where the visible part has one color, or is a picture.

    Otherwise its colors, or indices, are labels, and transparent pixels are background like black, or index 0.
    """
    visible = alpha.point(lambda value: 255 * bool(value))
    is_palette = image.mode == "P"
    front = image
    if not is_palette:
        front = convert(eight_bit(image), "RGBA").convert("RGB")

    # in the visible part
    counts = np.reshape(front.histogram(visible), (-1, 256))  # of each channel's values
    values_of_channels = (counts > 0).sum(1)
    most_values = int(values_of_channels.max())
    if mask_id is None and (most_values == 1 or (is_palette and most_values > _PICTURE)):
        return np.asarray(alpha), 255, []

    on_black = Image.new(front.mode, front.size)
    on_black.paste(front, mask=visible)
    if mask_id is None and not is_palette and on_black.getcolors(_PICTURE) is None:
        return np.asarray(alpha), 255, []

    if is_palette:
        values, full, labels = _of_values(np.asarray(on_black), None, mask_id, "palette indices")
    else:
        values, full, labels = _of_colors(on_black, mask_id)
    within_alpha = ImageChops.multiply(Image.fromarray(values), alpha)
    return np.asarray(within_alpha), full, labels


def _of_colors(image: Image.Image, mask_id: MaskId | None) -> Values:
    """An RGB image: gray where its channels agree, else its colors are labels, and black is background."""
    red, green, blue = image.split()
    highest = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    lowest = ImageChops.darker(ImageChops.darker(red, green), blue)
    spread = np.max(ImageChops.difference(highest, lowest).getextrema())
    brightest = np.max(highest.getextrema())
    if not str(mask_id).startswith("#"):
        if spread == 0:
            return _of_values(np.asarray(red), 255, mask_id)
        if spread <= _TINT and _is_near(brightest, 255):
            return _of_values(np.asarray(image.convert("L")), 255, mask_id)

    counts = image.getcolors(256)
    if counts is None:
        raise ValueError(
            "it holds more than 256 colors, as a photo or a lossy file does, which does not show the subject's: "
            "save it as a gray PNG, white = subject"
        )
    colors = sorted(color for _, color in counts if any(color))  # type: ignore[arg-type]  # of RGB
    color = _label(color_of, mask_id, colors, "colors")
    is_subject = (np.asarray(image) == color).all(-1)
    return _black_and_white(is_subject), 255, []


def _black_and_white(is_subject: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return is_subject.view(np.uint8) * np.uint8(255)


def _of_values(array: Array, full: int | None, mask_id: MaskId | None, kind: str = "values") -> Values:
    """Integers (H, W): one label, or a soft mask if there are gray values up to `full`.

    Args:
        full: the maximum of the format; None where values do not mean brightness.
        kind: how messages call them.
    """
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    low = int(array.min())
    high = int(array.max())
    if low < 0:
        raise ValueError(f"a mask holds no negative values, found {low}: use 0 for the background")
    labels = [label for label in np.unique(array).tolist() if label]

    # a soft mask
    if mask_id is None and len(labels) > 1 and full is not None:
        is_near_full = _is_near(high, full) and len(labels) > _LEVELS
        if high == full or is_near_full:
            return array, full, _suspicious(array, full, labels)

    # one label
    if mask_id is None and labels in ([], [255]) and array.dtype == np.uint8:
        return array, 255, []
    if mask_id is None and not labels:
        return _black_and_white(array != 0), 255, []
    label = _label(number_of, mask_id, labels, kind)
    return _black_and_white(array == label), 255, []


def _suspicious(array: Array, full: int, labels: list[int]) -> list[int]:
    """The values of a soft mask if they look like labels: a few, most of the mask below the maximum; else none.

    They are more likely objects then, and the maximum a label for unknown pixels.
    """
    inside = np.count_nonzero(array)
    at_maximum = np.count_nonzero(array == full)
    if len(labels) <= _LEVELS and 2 * at_maximum < inside:
        return labels
    return []


def _is_near(value: float, full: int) -> bool:
    """Whether this may be the maximum after lossy compression."""
    return value >= full - full // 16


# Labels


def _label(parse: Callable[[MaskId], Any], mask_id: MaskId | None, labels: list[Any], kind: str) -> Any:
    """The label that is asked for, which the mask must hold; without `mask_id` its only one."""
    if mask_id is None and len(labels) == 1:
        return labels[0]
    if mask_id is None:
        example = labels[0] if isinstance(labels[0], int) else _shown(labels[0])
        reason = (
            f"it holds {len(labels)} {kind} ({_listed(labels)}), and any may be the subject: choose one with "
            f"mask_id={example!r} (--mask-id '{example}'), or save a mask of 0 and 255 (rescaled to "
            "the format's maximum, if it is soft)"
        )
        raise ImageReadError("", reason, has_several_labels=True)  # `naming` adds the mask's name

    content = f"the mask's {kind} are {_listed(labels)}" if labels else "the mask is empty"
    try:
        label = parse(mask_id)
    except ValueError as error:
        raise ValueError(f"{error}; {content}") from error
    if label not in labels:
        raise ValueError(f"it does not hold {_shown(label)}: {content}")
    return label


def _listed(labels: list[Any]) -> str:
    shown = [_shown(label) for label in labels]
    if len(shown) > 8:
        shown[7:-1] = ["..."]
    return ", ".join(shown)


def _shown(label: int | Color) -> str:
    if isinstance(label, tuple):
        return "#{:02x}{:02x}{:02x}".format(*label)
    return str(label)


# Masks that do not fit, or that probably select something else than was meant


def _turned_as(image: Image.Image | Tensor, values: Array, mask_orientation: int | None, source: Any) -> Array:
    """The mask turned as its image was; it must then have the image's shape.

    Args:
        mask_orientation: the mask's EXIF orientation, by which it has been turned; None without one.
        source: of the mask, for a warning.
    """
    if isinstance(image, Tensor):
        size = (image.shape[-2], image.shape[-1])
        orientation = 1
    else:
        size = (image.height, image.width)
        orientation = stored_orientation(image) or 1
    stored_size = size
    if orientation >= 5:
        stored_size = (size[1], size[0])
    mask_size = (values.shape[0], values.shape[1])

    if mask_size == size:
        if orientation > 1 and stored_size == size and mask_orientation is None:
            message = (
                f"EXIF turns the photo of the mask {describe(source)} (orientation {orientation}), and the mask has no "
                "orientation of its own: it is taken as upright; turn it if it was made from the stored pixels"
            )
            warnings.warn(message, MaskWarning, stacklevel=3)
        return values
    if mask_size == stored_size and mask_orientation in (None, 1):
        return np.ascontiguousarray(_TURNED[orientation](values))
    if same_shape(mask_size, size):
        return values

    stored = "" if orientation < 5 else f" (stored as {_by(stored_size)}, EXIF turns it)"
    raise ValueError(
        f"the mask has {_by(mask_size)} pixels and its image {_by(size)}{stored}, another shape: resize it to that"
    )


def _by(size: Sides) -> str:
    height, width = size
    return f"{width}x{height}"


_TURNED: dict[int, Callable[[Array], Array]] = {  # EXIF's orientations that swap width and height
    5: lambda x: x.T,
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).T,
    8: np.rot90,
}


def _warn_of_share(values: Array, full: float, source: Any) -> None:
    share = float(values.mean(dtype=np.float64)) / full
    if values.min() >= full:
        # without its name, so that it is shown once for many masks
        message = "a mask that selects all of its image changes nothing, as an image without a mask is seen whole"
        warnings.warn(message, MaskWarning, stacklevel=3)
    elif 0 < share < _LEAST_SHARE:
        message = f"the mask {describe(source)} selects only {100 * share:.2g} % of its image: is it the right one?"
        warnings.warn(message, MaskWarning, stacklevel=3)


# Select the subject of one image of any kind by its mask; `subjects` does so for batches of pixels.

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
    subject: Image.Image | Tensor
    if isinstance(image, Tensor | np.ndarray) and is_float(image):
        with naming(image):
            subject = float_pixels(image, background)
        size = (subject.shape[1], subject.shape[2])
    else:
        subject = read_image(image, background=background)
        size = (subject.height, subject.width)
    cover = read_mask(mask, size, image=subject)
    if not cover.any():
        source = mask.source if isinstance(mask, Labeled) else mask
        raise ImageReadError(describe(source), "it is empty: a mask must select something, white = subject")
    if outside == "keep":
        return subject, cover

    # paint the rest
    fill = 255 if outside == "white" else 0
    if isinstance(subject, Tensor):
        weight = cover.to(subject.device, subject.dtype)
        subject = subject * weight + fill / 255 * (1 - weight)
    else:
        around = np.empty(cover.shape, np.uint8)
        for around_row, cover_row in zip(around, cover.numpy(), strict=True):  # row by row takes little memory
            around_row[:] = 255 - (cover_row * 255).round()
        subject.paste((fill, fill, fill), mask=Image.fromarray(around))

    if outside == "crop":
        box = box_of(cover)
        cover = cut_to(cover, box)
        subject = cut_to(subject, box) if isinstance(subject, Tensor) else subject.crop(box)
    return subject, cover


def box_of(cover: Tensor) -> Cut:
    """Left, top, right, bottom (both excluded) of the pixels that a mask (H, W) covers by half, else at all."""
    inside = cover >= 0.5  # faint edges, as compression makes them, do not count
    if not inside.any():
        inside = cover > 0
    rows = inside.any(1).nonzero().flatten().tolist()
    columns = inside.any(0).nonzero().flatten().tolist()
    left, right = columns[0], columns[-1] + 1
    top, bottom = rows[0], rows[-1] + 1
    return left, top, right, bottom


def cut_to(x: Tensor, cut: Cut) -> Tensor:
    """The part of (..., H, W) within left, top, right, bottom."""
    left, top, right, bottom = cut
    return x[..., top:bottom, left:right]


# Select the subject of each image in a batch of pixels, by masks, with the graph of the pixels.


def subject_of(x: Tensor, masks: Tensor | None, outside: Outside = "black") -> tuple[list[Tensor], list[Tensor] | None]:
    """The pixels of each image that show the subject.

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
    cuts = [box_of(image_cover) for image_cover in cover.detach()]
    return _cut_each(x, cuts), _cut_each(cover, cuts)


def coverage(masks: Tensor, x: Tensor) -> Tensor:
    """Masks as how much of each pixel of x is subject, (B, H, W)."""
    cover = masks
    if masks.ndim == 4 and masks.shape[1] == 1:
        cover = masks[:, 0]
    if cover.ndim != 3 or len(cover) != len(x) or not cover.numel():
        raise ValueError(f"masks must have shape ({len(x)}, h, w) or ({len(x)}, 1, h, w), got {tuple(masks.shape)}")
    _, mask_height, mask_width = cover.shape
    height, width = x.shape[-2:]
    if not same_shape((mask_height, mask_width), (height, width)):
        raise ValueError(
            f"masks of {mask_width}x{mask_height} pixels have another shape than images of {width}x{height}: "
            "turn or resize them as the images were"
        )

    cover = cover.to(x.device, x.dtype)
    if not torch.compiler.is_compiling():  # looking at values would break the graph
        check_pixels(cover)
        is_empty = cover.detach().amax((1, 2)) <= 0
        empty = is_empty.nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"the masks of images {empty} are empty: leave these images out, or give others")
    return average_to(cover, (height, width))


def _cut_each(batch: Tensor, cuts: Sequence[Cut]) -> list[Tensor]:
    """Each image of a batch (B, ..., H, W) cut, as a batch of one."""
    return [cut_to(batch[i : i + 1], cut) for i, cut in enumerate(cuts)]
