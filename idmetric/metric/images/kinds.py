"""The kinds of images and mask labels that are read, how messages name them, and the errors of reading them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeGuard, Union

from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import TypeIs

# str: a path; where several images are asked for, also a folder or a pattern (`images.paths`). Mappings: images as
# `datasets` stores them, {"bytes": ..., "path": ...}. File objects are
# read from where they stand to their end, and left open.
# Arrays: (H, W) or (H, W, C), tensors: (C, H, W), with C = 1, 2 (gray and alpha), 3 or 4; bool, uint8, uint16, or
# floats in [0, 1]. Where several images are asked for, tensors (B, C, H, W) and arrays (B, H, W, C) count as B images.
ImageLike = Union[str, os.PathLike[str], bytes, BinaryIO, Image.Image, "NDArray[Any]", "Tensor", Mapping[str, Any]]
Picture = Union[Image.Image, "Tensor"]  # a decoded RGB image, or pixels (3, H, W) in [0, 1]
Color = tuple[int, int, int]
Sides = tuple[int, int]  # height and width
MaskId = int | str  # of several subjects in a mask one: an index or a value, or a color "#rrggbb"
Outside = Literal["black", "white", "crop", "keep"]  # what becomes of the pixels outside a mask
Preprocessing = Literal["standard", "release"]  # how files and PIL images become RGB: as above, or by `released_rgb`
RESAMPLE = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
WHITE: Color = (255, 255, 255)
# Where Pillow by default refuses to open an image; about 13,000 x 13,000 pixels, 0.5 GB once decoded.
MAX_PIXELS = 178_956_970
MAX_SIDE = 1_000_000  # Pillow takes 50 bytes for each pixel of a side while it resizes an image
STORED = "stored_orientation"  # in a decoded image's `info`: the EXIF orientation that its file was stored in
NAME = "image_name"  # in a decoded image's `info`: the name of its file in messages
CUT = "cut_to_8_bits"  # in a decoded image's `info`: the file has 16 bits a channel, of which Pillow keeps the upper 8
TOO_LARGE = "it does not fit in memory: make it smaller"
SLACK = 1e-4  # float rounding beyond [0, 1] that is not worth an error


class ImageReadError(ValueError):
    """An image that cannot be used.

    Attributes:
        source: its name. reason: why it cannot be used, and what to do.
        has_several_labels: it is a mask with several labels, of which none was chosen.
    """

    def __init__(self, source: str, reason: str, has_several_labels: bool = False) -> None:
        super().__init__(source, reason, has_several_labels)  # the arguments, by which data-loader workers send it
        self.source = source
        self.reason = reason
        self.has_several_labels = has_several_labels

    def __str__(self) -> str:
        return f"cannot read image {self.source}: {self.reason}"


class ImageName(str):
    """The name under `NAME`: a PNG may bring text of its own under any key, which is another kind of str."""


def stored_orientation(image: Image.Image) -> int | None:
    """The note under `STORED`; None without one, and for a PNG's own text under that key."""
    note = image.info.get(STORED)
    if isinstance(note, int):
        return note
    return None


@contextmanager
def naming(source: Any) -> Iterator[None]:
    """Turn an error about an image into an ImageReadError that names it."""
    try:
        yield
    except ImageReadError as error:
        if error.source:
            raise
        raise ImageReadError(describe(source), error.reason, error.has_several_labels) from error
    except ValueError as error:
        raise ImageReadError(describe(source), str(error)) from error
    except MemoryError as error:
        raise ImageReadError(describe(source), TOO_LARGE) from error


class MultiFrameWarning(UserWarning):
    """A file holds several frames, and only its first is used."""


def check_interpolation(name: str) -> None:
    """Refuse a name that is not one of `RESAMPLE`: ValueError."""
    if name not in RESAMPLE:
        raise ValueError(f"unknown interpolation {name!r}: choose one of {', '.join(RESAMPLE)}")


def is_tensor(x: object) -> TypeIs[Tensor]:
    """Whether x is a tensor; to ask does not load torch, without which there are none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_array(x: object) -> TypeIs[Tensor | NDArray[Any]]:
    """Whether x is an array or a tensor; to ask loads neither NumPy nor torch."""
    numpy = sys.modules.get("numpy")
    return (numpy is not None and isinstance(x, numpy.ndarray)) or is_tensor(x)


def holds_paths(x: object) -> bool:
    """Whether this is an array of text or objects, and so a list of paths."""
    return is_array(x) and not is_tensor(x) and x.dtype.kind in "OU"


def is_stored_image(x: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether this is an image as `datasets` stores it: {"bytes": ..., "path": ...}, of which one may be None."""
    return isinstance(x, Mapping) and bool(x) and x.keys() <= {"bytes", "path"}


def is_image_like(x: object) -> bool:
    """Whether this is of a kind that `ImageLike` names, and not a list of such."""
    if holds_paths(x):
        return False
    if is_stored_image(x):
        return True
    if isinstance(x, str | os.PathLike | bytes | bytearray | memoryview | Image.Image):
        return True
    return is_array(x) or hasattr(x, "read")


def describe(source: Any) -> str:
    """A short name of an image for messages: its path, or its kind and size."""
    if is_stored_image(source):
        source = source.get("path") or source.get("bytes") or ""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"<bytes, {len(source)} bytes>"
    if is_array(source):
        kind = "tensor" if is_tensor(source) else "array"
        shape = ",".join(map(str, source.shape))
        dtype = str(source.dtype).removeprefix("torch.")
        return f"<{kind} ({shape}) {dtype}>"

    anonymous = f"<{type(source).__name__}>"
    if isinstance(source, Image.Image):
        anonymous = f"<PIL image {source.width}x{source.height} {source.mode}>"
        note = source.info.get(NAME)
        # of images opened from a path, or decoded
        name = getattr(source, "filename", "") or (note if isinstance(note, ImageName) else "")
    elif isinstance(source, str | os.PathLike):
        name = os.fspath(source) or "''"
    else:
        name = getattr(source, "name", "")

    if not isinstance(name, str) or not name:
        return anonymous
    if len(name) > 1000:  # such as the text of a data: address
        return name[:80] + "..."
    return name


# The label that selects a subject in a mask of several; ValueError for another value, and for the background


def color_of(label: MaskId) -> Color:
    """The color that a label names."""
    text = str(label)
    if re.fullmatch("#[0-9a-fA-F]{6}", text) and text != "#000000":
        red, green, blue = bytes.fromhex(text[1:])
        return red, green, blue
    raise ValueError(f"mask_id {label!r} is not a color of a mask: give '#rrggbb', such as '#ff0000', and not black")


def number_of(label: MaskId) -> int:
    """The index or value that a label names."""
    if not re.fullmatch("0*[1-9][0-9]*", str(label)):
        raise ValueError(f"mask_id {label!r} is not a label: give a whole number above 0, as 0 is the background")
    return int(label)
