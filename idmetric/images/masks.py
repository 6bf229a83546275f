"""Subject masks of any encoding to coverage in [0, 1], and cut-outs by them: the one reader of masks.

What counts as the subject, by how a mask is stored:

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

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageChops
from torch import Tensor

from idmetric.images.read import (
    MAX_PIXELS,
    STORED,
    WHITE,
    Colour,
    ImageLike,
    ImageReadError,
    Outside,
    channels_last,
    check_pixels,
    convert,
    describe,
    eight_bit,
    float_pixels,
    has_alpha,
    is_float,
    open_image,
    read_image,
)

MaskId = int | str | Colour  # an index or a value; a colour as (red, green, blue) or "#rrggbb"

LEAST_SHARE = 0.001  # of an image: a mask that selects less gets a warning
_SHOWN = 8  # labels in a message
_PICTURE = 64  # colours: an image with more is a picture, not a map of labels
_LEVELS = 16  # a soft mask that misses the maximum by a little must have more grey values than this
_TINT = 8  # of 255: how far lossy compression may tint grey
_BLOCK = 1 << 20  # values that are averaged at a time


class MaskWarning(UserWarning):
    """A mask that can be used, and is probably not what was meant."""


class SeveralLabelsError(ImageReadError):
    """A mask of several objects, of which none was chosen."""


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


def parse_mask_id(text: str) -> MaskId:
    """A label as a command line gives it: 7, or #ff0000.

    Raises:
        ValueError: for anything else, and for the background, 0.
    """
    return _colour_of(text) if text.startswith("#") else _number_of(text)


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
        source: as for `read_image`; tensors may also be (H, W). The module's table says what is the subject.
        size: (height, width) to average to, so that values are exact fractions of covered area; None keeps its own.
        image: what the mask belongs to, as `read_image` gives it, or pixels (3, H, W): the mask is turned as it was,
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
    background: Colour = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Image.Image | Tensor, Tensor]:
    """The subject of an image: the pixels outside its mask painted over or cut off, at the image's own size.

    Args:
        image, background, max_pixels: as for `read_image`. mask, mask_id: as for `read_mask`.
        outside: "black" or "white" paints, "crop" paints black and cuts to the box of what the mask covers by half
            (all it covers, if nothing is), "keep" leaves the image as it is.

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


def box_of(cover: Tensor) -> tuple[int, int, int, int]:
    """Left, top, right, bottom (these two excluded) of what a mask (H, W) covers by half, or of all, if nothing is."""
    half = cover >= 0.5  # faint edges, as compression makes them, do not count
    inside = half if half.any() else cover > 0
    rows, columns = inside.any(1).nonzero().flatten().tolist(), inside.any(0).nonzero().flatten().tolist()
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def average_to(cover: Tensor, size: tuple[int, int], full: float = 1) -> Tensor:
    """Coverage (..., H, W) averaged to (..., *size), so that values are exact fractions of area; differentiable.

    Args:
        full: the value of what is wholly covered; the result is divided by it. Integers give float32.
    """
    if cover.shape[-2:] == tuple(size) and full == 1:
        return cover
    kind = cover.dtype if cover.is_floating_point() else torch.float32
    if cover.numel() <= _BLOCK or cover.requires_grad:
        return _averaged(cover, size, (0, size[0]), full).to(kind).contiguous()
    found = cover.new_empty((*cover.shape[:-2], *size), dtype=kind)
    step = max(1, size[0] * _BLOCK // max(cover.numel(), found.numel()))  # rows of the result
    for start in range(0, size[0], step):
        stop = min(start + step, size[0])
        found[..., start:stop, :] = _averaged(cover, size, (start, stop), full)
    return found


def same_shape(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two sizes (height, width) are one shape scaled, each side of the smaller rounded by up to a pixel."""
    return abs(a[0] * b[1] - a[1] * b[0]) <= max(sum(a), sum(b))


def _name(mask: MaskLike) -> str:
    return describe(mask.source if isinstance(mask, Labelled) else mask)


def _painted(subject: Image.Image | Tensor, cover: Tensor, fill: int) -> Image.Image | Tensor:
    """The subject on black (0) or white (255); a PIL image is painted in place."""
    if isinstance(subject, Tensor):
        weight = cover.to(subject.device, subject.dtype)
        return subject * weight + fill / 255 * (1 - weight)
    outside = np.empty(cover.shape, np.uint8)
    step = max(1, _BLOCK // cover.shape[1])
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
        read = _of_floats if values.dtype.kind == "f" else _of_integers
        values, full = read(values, name, mask_id)
    else:
        opened = open_image(given, max_pixels)
        own = opened.info.get(STORED)
        values, full = _of_image(opened, name, mask_id)
    if image is None:
        return values, full
    values = _fit(values, own, image, name)
    if not (isinstance(given, Tensor) and is_float(given)):  # coverage that was computed, as `read_mask` gives it
        _warn_of_share(values, full, name)
    return values, full


def _of_floats(array: NDArray[Any], name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
    """Shares (H, W, C), as they are: of varying alpha, else of luminance (ITU-R 601, as Pillow)."""
    if mask_id is not None:
        raise ImageReadError(name, "a mask of floats holds shares, not labels: leave mask_id out, or give integers")
    if array.shape[2] in (2, 4) and array[..., -1].min() != array[..., -1].max():
        array = array[..., -1]
    elif array.shape[2] < 3:
        array = array[..., 0]
    else:
        array = array[..., :3].astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    check_pixels(torch.from_numpy(array), name)
    return array.clip(0, 1), 1


def _of_integers(array: NDArray[Any], name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
    """Integers or bool (H, W, C); 8-bit colour goes through Pillow."""
    channels = array.shape[2]
    if array.dtype == np.bool_:
        array = array.view(np.uint8) * np.uint8(255)
    if channels > 1 and array.dtype == np.uint8:
        mode = {2: "LA", 3: "RGB", 4: "RGBA"}[channels]
        image = Image.frombytes(mode, (array.shape[1], array.shape[0]), np.ascontiguousarray(array).tobytes())
        return _of_image(image, name, mask_id)
    full = {"uint8": 255, "uint16": 65535}.get(array.dtype.name)
    if channels in (2, 4) and array[..., -1].min() != array[..., -1].max():
        return _of_values(array[..., -1], full, name, mask_id)
    if channels > 2 and not (array[..., :3] == array[..., :1]).all():
        raise ImageReadError(name, f"a mask in colour must be 8-bit, not {array.dtype}: convert it to uint8")
    return _of_values(array[..., 0], full, name, mask_id)


def _of_image(image: Image.Image, name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
    if image.mode == "F":
        return _of_floats(np.array(image)[..., None], name, mask_id)
    if has_alpha(image):
        alpha = convert(eight_bit(image, name), "RGBA", name).getchannel("A")
        low, high = alpha.getextrema()
        if low != high:
            return _of_transparent(image, alpha, name, mask_id)
    if image.mode in ("LA", "La"):
        image = convert(eight_bit(image, name), "LA", name).getchannel("L")
    if image.mode in ("1", "L"):
        return _of_values(np.asarray(image), 255, name, mask_id)
    if image.mode == "P":
        values, full = _of_values(np.asarray(image), None, name, mask_id, kind="palette indices")
        if mask_id is None:
            _warn_of_inverted(image, name)
        return values, full
    if image.mode.startswith("I"):
        return _of_values(np.asarray(image), 65535, name, mask_id)
    return _of_colours(convert(image, "RGB", name), name, mask_id)


def _of_transparent(
    image: Image.Image, alpha: Image.Image, name: str, mask_id: MaskId | None
) -> tuple[NDArray[Any], float]:
    """An image of varying alpha: alpha alone counts where what it shows is one colour, or a picture.

    Else its colours, or indices, are labels, and what is transparent is background like black, or index 0.
    """
    visible = alpha.point(lambda value: 255 if value else 0)
    front = image if image.mode == "P" else convert(eight_bit(image, name), "RGBA", name).convert("RGB")
    shown = front.histogram(visible)
    bands = [sum(map(bool, shown[start : start + 256])) for start in range(0, len(shown), 256)]
    if mask_id is None and (max(bands) == 1 or (image.mode == "P" and bands[0] > _PICTURE)):
        return np.asarray(alpha), 255
    hidden = Image.new(front.mode, front.size)
    if image.mode == "P":
        indices = np.where(np.asarray(visible), np.asarray(front), 0)
        values, full = _of_values(indices, None, name, mask_id, kind="palette indices")
    else:
        hidden.paste(front, mask=visible)
        if mask_id is None and hidden.getcolors(_PICTURE) is None:
            return np.asarray(alpha), 255
        values, full = _of_colours(hidden, name, mask_id)
    return np.asarray(ImageChops.multiply(Image.fromarray(values), alpha)), full


def _of_colours(image: Image.Image, name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
    """An RGB image: grey where its channels agree, else its colours are labels, and black is background."""
    red, green, blue = image.split()
    spread = max(_brightest(ImageChops.difference(a, b)) for a, b in ((red, green), (green, blue), (red, blue)))
    high = max(map(_brightest, (red, green, blue)))
    by_colour = isinstance(mask_id, tuple) or str(mask_id).startswith("#")
    if not by_colour and (spread == 0 or (spread <= _TINT and _is_near(high, 255))):
        return _of_values(np.asarray(image.convert("L") if spread else red), 255, name, mask_id)
    del red, green, blue

    found = image.getcolors(256)
    if found is None:
        raise ImageReadError(
            name,
            "it holds more than 256 colours, as a photo or a lossy file does, which does not show the subject's: "
            "save it as a grey PNG, white = subject",
        )
    colours = sorted(colour for _, colour in found if any(colour))  # type: ignore[arg-type]  # of RGB
    if mask_id is not None:
        wanted = _label(_colour_of, mask_id, name, "colours", colours)
        chosen = [wanted]
    elif len(colours) > 1:
        raise _several(name, "colours", colours)
    else:
        chosen = colours
    if not chosen:
        return np.zeros((image.height, image.width), np.uint8), 255
    parts = [
        band.point([255 * (k == value) for k in range(256)])
        for band, value in zip(image.split(), chosen[0], strict=True)
    ]
    return np.asarray(ImageChops.darker(ImageChops.darker(parts[0], parts[1]), parts[2])), 255


def _of_values(
    array: NDArray[Any], full: int | None, name: str, mask_id: MaskId | None, kind: str = "values"
) -> tuple[NDArray[Any], float]:
    """Integers (H, W): one label, or a soft mask if there are grey values up to `full`.

    Args:
        full: the maximum of the format; None where values are no brightness.
        kind: how messages call them.
    """
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    found = _distinct(array)
    if found[0] < 0:
        raise ImageReadError(name, f"a mask holds no negative values, found {found[0]}: use 0 for the background")
    labels = found[found > 0].tolist()
    if mask_id is not None:
        wanted = _label(_number_of, mask_id, name, kind, labels)
        return (array == wanted).view(np.uint8) * np.uint8(255), 255
    if len(labels) <= 1:
        plain = array.dtype == np.uint8 and labels in ([], [255])
        return array if plain else (array != 0).view(np.uint8) * np.uint8(255), 255
    if full is None or not (labels[-1] == full or (_is_near(labels[-1], full) and len(labels) > _LEVELS)):
        raise _several(name, kind, labels, full)
    if len(labels) <= _LEVELS:
        _warn_of_labels(array, full, labels, name)
    return array, full


def _distinct(array: NDArray[Any]) -> NDArray[Any]:
    """The values of integers (H, W), sorted; in blocks of rows, so that little memory is taken."""
    step = max(1, _BLOCK // max(1, array.shape[1]))
    blocks = [array[start : start + step] for start in range(0, array.shape[0], step)]
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 65535:
        return np.unique(np.concatenate([np.unique(block) for block in blocks]))
    counts = np.zeros(high + 1, np.int64)
    for block in blocks:
        counts += np.bincount(block.ravel(), minlength=high + 1)
    return np.flatnonzero(counts)


def _brightest(band: Image.Image) -> int:
    return max(value for value, count in enumerate(band.histogram()) if count)


def _is_near(value: int, full: int) -> bool:
    """Whether this may be the maximum after lossy compression."""
    return value >= full - full // 16


def _several(name: str, kind: str, labels: list[Any], full: int | None = None) -> SeveralLabelsError:
    first = _hex(labels[0]) if isinstance(labels[0], tuple) else labels[0]
    soft = f" A soft mask reaches {full}: rescale it, or give floats in [0, 1]." if full and len(labels) > 2 else ""
    return SeveralLabelsError(
        name,
        f"it holds {len(labels)} {kind} ({_listed(labels)}), and any may be the subject: choose one with "
        f"mask_id={first!r} (--mask-id '{first}'), or save a mask of 0 and 255.{soft}",
    )


def _label(read: Callable[[MaskId], Any], mask_id: MaskId, name: str, kind: str, labels: list[Any]) -> Any:
    """The label that is asked for, which the mask must hold."""
    holds = f"the mask's {kind} are {_listed(labels)}" if labels else "the mask is empty"
    try:
        wanted = read(mask_id)
    except ValueError as error:
        raise ImageReadError(name, f"{error}; {holds}") from error
    if wanted not in labels:
        raise ImageReadError(name, f"it does not hold {_listed([wanted])}: {holds}")
    return wanted


def _listed(labels: list[Any]) -> str:
    shown = [_hex(one) if isinstance(one, tuple) else str(one) for one in labels]
    if len(shown) <= _SHOWN:
        return ", ".join(shown)
    return f"{', '.join(shown[: _SHOWN - 1])}, ..., {shown[-1]}"


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _colour_of(label: MaskId) -> Colour:
    if isinstance(label, str) and re.fullmatch("#[0-9a-fA-F]{6}", label):
        label = (int(label[1:3], 16), int(label[3:5], 16), int(label[5:7], 16))
    if not isinstance(label, tuple) or len(label) != 3 or not any(label) or not all(0 <= v <= 255 for v in label):
        raise ValueError(
            f"mask_id {label!r} is not a colour of a mask: give '#rrggbb', such as '#ff0000', and not black"
        )
    return label


def _number_of(label: MaskId) -> int:
    try:
        number = int(label)  # type: ignore[arg-type]  # a colour is refused
    except (TypeError, ValueError):
        number = 0
    if number < 1 or isinstance(label, bool) or (isinstance(label, float) and label != number):
        raise ValueError(f"mask_id {label!r} is not a label: give a whole number above 0, as 0 is the background")
    return number


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


def _warn_of_inverted(image: Image.Image, name: str) -> None:
    """A palette mask of two colours that looks inverted: index 0, the background, is white, and the subject black."""
    indices = np.unique(np.asarray(image)).tolist()
    if len(indices) != 2 or indices[0] != 0:
        return
    shades = image.getpalette("RGB") or []
    background, subject = (shades[3 * index : 3 * index + 3] for index in indices)
    if min(background, default=0) < 255 - _TINT or max(subject, default=255) > _TINT:
        return
    message = (
        f"the palette mask {name} is black on white, and counts by index: index 0, its white, is the background; if "
        "white is the subject, save the mask as a grey image"
    )
    warnings.warn(message, MaskWarning, stacklevel=5)


def _warn_of_labels(array: NDArray[Any], full: int, labels: list[int], name: str) -> None:
    """A few values that fill most of a mask, and the maximum: more likely objects, and a label for unknown pixels."""
    inside = np.count_nonzero(array)
    if 2 * (inside - np.count_nonzero(array == full)) <= inside:
        return
    message = (
        f"the mask {name} is read as a soft mask, but its {len(labels)} values ({_listed(labels)}) look like labels: "
        f"choose one with mask_id={labels[0]} (--mask-id {labels[0]}) if they are"
    )
    warnings.warn(message, MaskWarning, stacklevel=5)


# Averaging


def _averaged(cover: Tensor, size: tuple[int, int], part: tuple[int, int], full: float) -> Tensor:
    """Rows part[0] to part[1] of coverage averaged to `size`, exactly."""
    length = cover.shape[-2]
    top, bottom = part[0] * length // size[0], -(-part[1] * length // size[0])
    rows = cover[..., top:bottom, :]
    exact = rows if rows.device.type == "mps" else rows.double()  # MPS has no float64
    across = _average(exact, (0, size[1]), size[1], cover.shape[-1])
    return (_average(across.mT, part, size[0], length, top).mT / full).clamp(0, 1)


def _average(x: Tensor, part: tuple[int, int], count: int, length: int, first: int = 0) -> Tensor:
    """Means over some of `count` equal stretches of an axis, ends counted by the fraction they cover.

    Args:
        x: values of the last axis from its place `first` on, as many as the stretches need.
        part: the first stretch, and the one after the last. length: of the whole axis.
    """
    edges = torch.arange(part[0], part[1] + 1, dtype=x.dtype, device=x.device) * length / count - first
    at = edges.long().clamp(max=x.shape[-1] - 1)
    sums = F.pad(x.cumsum(-1), (1, 0))[..., at] + (edges - at) * x[..., at]
    return sums.diff(dim=-1) * (count / length)
