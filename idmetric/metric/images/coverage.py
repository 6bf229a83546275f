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

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops
from torch import Tensor

from idmetric.metric.images.arrays import (
    Array,
    channels_last,
    check_pixels,
    convert,
    eight_bit,
    image_of_bytes,
    is_float,
)
from idmetric.metric.images.kinds import (
    Color,
    ImageReadError,
    MaskId,
    Sides,
    color_of,
    describe,
    naming,
    number_of,
    stored_orientation,
)
from idmetric.metric.images.masks import Labeled, MaskLike, MaskWarning
from idmetric.metric.images.opening import open_image
from idmetric.metric.images.resize import average_to

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
