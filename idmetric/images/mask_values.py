"""Select the subject among the values of a mask, however it is encoded.

The table in `idmetric.images.masks` lists the encodings. Each function returns the values (H, W), and the value that
means wholly covered.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops

from idmetric.images.arrays import check_pixels
from idmetric.images.coverage import BLOCK
from idmetric.images.kinds import Color, ImageReadError
from idmetric.images.mask_id import MaskId, color_of, number_of
from idmetric.images.modes import convert, eight_bit, has_alpha

_SHOWN = 8  # labels in a message
_PICTURE = 64  # colours: an image with more is a picture, not a map of labels
_LEVELS = 16  # a soft mask that misses the maximum by a little must have more grey values than this
_TINT = 8  # of 255: how far lossy compression may tint grey


class MaskWarning(UserWarning):
    """A mask that can be used, but probably selects something else than was meant."""


class SeveralLabelsError(ImageReadError):
    """A mask of several objects, of which none was chosen."""


def of_floats(array: NDArray[Any], name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
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


def of_integers(array: NDArray[Any], name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
    """Integers or bool (H, W, C); 8-bit colour goes through Pillow."""
    channels = array.shape[2]
    if array.dtype == np.bool_:
        array = array.view(np.uint8) * np.uint8(255)
    if channels > 1 and array.dtype == np.uint8:
        mode = {2: "LA", 3: "RGB", 4: "RGBA"}[channels]
        image = Image.frombytes(mode, (array.shape[1], array.shape[0]), np.ascontiguousarray(array).tobytes())
        return of_image(image, name, mask_id)
    full = {"uint8": 255, "uint16": 65535}.get(array.dtype.name)
    if channels in (2, 4) and array[..., -1].min() != array[..., -1].max():
        return _of_values(array[..., -1], full, name, mask_id)
    if channels > 2 and not (array[..., :3] == array[..., :1]).all():
        raise ImageReadError(name, f"a mask in colour must be 8-bit, not {array.dtype}: convert it to uint8")
    return _of_values(array[..., 0], full, name, mask_id)


def of_image(image: Image.Image, name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
    if image.mode == "F":
        return of_floats(np.array(image)[..., None], name, mask_id)
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
    return _of_colors(convert(image, "RGB", name), name, mask_id)


def _of_transparent(
    image: Image.Image, alpha: Image.Image, name: str, mask_id: MaskId | None
) -> tuple[NDArray[Any], float]:
    """An image of varying alpha: alpha alone counts where the visible part has one colour, or is a picture.

    Otherwise its colours, or indices, are labels, and transparent pixels are background like black, or index 0.
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
        values, full = _of_colors(hidden, name, mask_id)
    return np.asarray(ImageChops.multiply(Image.fromarray(values), alpha)), full


def _of_colors(image: Image.Image, name: str, mask_id: MaskId | None) -> tuple[NDArray[Any], float]:
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
    colours = sorted(color for _, color in found if any(color))  # type: ignore[arg-type]  # of RGB
    if mask_id is not None:
        wanted = _label(color_of, mask_id, name, "colours", colours)
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
        full: the maximum of the format; None where values do not mean brightness.
        kind: how messages call them.
    """
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    found = _distinct(array)
    if found[0] < 0:
        raise ImageReadError(name, f"a mask holds no negative values, found {found[0]}: use 0 for the background")
    labels = found[found > 0].tolist()
    if mask_id is not None:
        wanted = _label(number_of, mask_id, name, kind, labels)
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
    step = max(1, BLOCK // max(1, array.shape[1]))
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


def _hex(colour: Color) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


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
