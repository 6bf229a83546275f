"""Images of any kind to RGB pixels in [0, 1]; masks are read by `idmetric.metric.masks`.

Files and 8-bit images are resized by Pillow on 8-bit values (as torchvision's `Resize` does with PIL images); float
tensors and arrays by torch's antialiased interpolation, differentiably. The two agree to well under 1/255 on photos.

EXIF orientation is applied, transparency is composited on a background (white by default), 16-bit values are
scaled rather than clipped; `preprocessing="release"` does none of this (see `released_rgb`). ICC profiles are not
applied. Addresses (URLs) are not fetched. Damaged files are refused whatever Pillow's `LOAD_TRUNCATED_IMAGES` says:
it is off while an image is decoded.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import stat
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, TypedDict, TypeGuard, Union, Unpack, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, ImageOps, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from idmetric.metric import paths as inputs
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, read_bytes
from idmetric.metric.paths import ABSENT, RAW_ENDINGS, VIDEO_ENDINGS, is_address, is_embedding_file, names_several
from idmetric.metric.resampling import RESAMPLE, Sides, check_interpolation

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import TypeIs


# The kinds of images and mask labels that are read, how messages name them, and the errors of reading them.

# str: a path; where several images are asked for, also a folder or a pattern (`images.paths`). Mappings: images as
# `datasets` stores them, {"bytes": ..., "path": ...}. File objects are
# read from where they stand to their end, and left open.
# Arrays: (H, W) or (H, W, C), tensors: (C, H, W), with C = 1, 2 (gray and alpha), 3 or 4; bool, uint8, uint16, or
# floats in [0, 1]. Where several images are asked for, tensors (B, C, H, W) and arrays (B, H, W, C) count as B images.
ImageLike = Union[str, os.PathLike[str], bytes, BinaryIO, Image.Image, "NDArray[Any]", "Tensor", Mapping[str, Any]]
Picture = Union[Image.Image, "Tensor"]  # a decoded RGB image, or pixels (3, H, W) in [0, 1]
Color = tuple[int, int, int]
MaskId = int | str  # of several subjects in a mask one: an index or a value, or a color "#rrggbb"
Outside = Literal["black", "white", "crop", "keep"]  # what becomes of the pixels outside a mask
Preprocessing = Literal["standard", "release"]  # how files and PIL images become RGB: as above, or by `released_rgb`
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


# Arrays, tensors and PIL modes: layout, range, 16-bit values, transparency, and conversion between them.
#
# All functions raise ValueError with the reason and how to fix it; `kinds.naming` adds the name of the image.

Array = NDArray[Any]


def check_pixels(pixels: Tensor, low: float = 0, high: float = 1, hint: str = "") -> None:
    """Check that float pixels of any shape lie in a range, up to a little rounding, unless torch.func transforms them.

    Args:
        hint: the advice where only few values can be meant.
    """
    import torch

    if not pixels.numel():
        raise ValueError("it has no pixels")
    if torch._C._functorch.is_functorch_wrapped_tensor(pixels):
        if torch._C._functorch.is_batchedtensor(pixels):
            raise ValueError("torch.func.vmap is not supported: give the whole batch, metric(images, others)")
        return  # values cannot be read inside the other transforms of torch.func

    values = pixels.detach()
    if values.dtype != torch.float64:
        values = values.float()  # 8-bit floats know no aminmax
    least, most = torch.stack(torch.aminmax(values)).tolist()
    slack = SLACK * (high - low)
    if least >= low - slack and most <= high + slack:  # NaN fails this
        return

    if not np.isfinite([least, most]).all():
        advice = "find where NaN or infinity came from"
    elif hint and most < 32:  # darker photos of 8 bits are rare
        advice = hint
    elif most > 255:
        advice = "divide by 65535"
    elif most > 3:
        advice = "divide by 255"
    elif least < -1 - slack or (least < -slack and most > 1.5):
        advice = "undo the normalization (x * std + mean)"
    elif least < -slack:
        advice = "(x + 1) / 2 maps [-1, 1] there; clamp what merely overshoots"
    else:
        advice = "clamp what overshoots"
    raise ValueError(f"float pixels must lie in [{low:g}, {high:g}], found [{least:.4g}, {most:.4g}]: {advice}")


def is_float(x: Tensor | Array) -> bool:
    if is_tensor(x):
        return x.is_floating_point()
    return x.dtype.kind == "f"


def single_image(source: Any) -> Any:
    """One image with three axes: (C, H, W) of a tensor, (H, W, C) of an array, 1 to 4 channels."""
    if is_tensor(source):
        channel_axis = 0
        layout = "tensor has shape (C, H, W)"
    else:
        channel_axis = 2
        layout = "array has shape (H, W) or (H, W, C)"
    image: Any = source
    if image.ndim == 4 and len(image) == 1:
        image = image[0]
    if image.ndim == 2:
        image = image[None] if is_tensor(image) else image[..., None]
    if image.ndim != 3 or image.shape[channel_axis] not in (1, 2, 3, 4):
        raise ValueError(f"one image's {layout} with 1 to 4 channels: permute it, or index a batch")
    if 0 in image.shape:
        raise ValueError("it has no pixels")
    return image


def channels_last(source: Tensor | Array) -> Array:
    """A copy of one image as an array (H, W, C) in the machine's byte order; floats become float32."""
    x = single_image(source)
    if is_tensor(x):
        x = x.detach().permute(1, 2, 0).cpu()
        if x.is_floating_point():
            x = x.float()  # numpy has no bfloat16
        x = x.numpy()
    if x.dtype.kind not in "biuf":
        raise ValueError(f"pixels of type {x.dtype} are not understood: use integers, or floats in [0, 1]")
    dtype = np.float32 if x.dtype.kind == "f" else x.dtype.newbyteorder("=")
    array: Array = x.astype(dtype)
    return array


def image_of_array(source: Tensor | Array) -> Image.Image:
    """One integer or bool image as an 8-bit image of as many channels."""
    array = channels_last(source)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif array.dtype == np.uint16:
        color = array[..., :3] if array.shape[2] > 2 else array[..., :1]  # without alpha
        check_depth(int(color.max()))
        array = scale16(array)
    elif array.dtype != np.uint8:
        advice = "use uint8, uint16, bool, or floats in [0, 1]"
        raise ValueError(f"pixels of type {array.dtype} are not understood: {advice}")
    return image_of_bytes(array)


def image_of_bytes(array: Array) -> Image.Image:
    """8-bit values (H, W, C) as an image of as many channels."""
    mode = ("L", "LA", "RGB", "RGBA")[array.shape[2] - 1]
    return Image.frombytes(mode, (array.shape[1], array.shape[0]), array.tobytes())


def image_of_pixels(pixels: Tensor) -> Image.Image:
    array = (pixels.detach().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(np.ascontiguousarray(array))


def float_pixels(source: Tensor | Array, background: Color) -> Tensor:
    """One float image as RGB (3, H, W); a tensor keeps its graph."""
    import torch

    if not is_tensor(source):
        source = torch.from_numpy(channels_last(source)).permute(2, 0, 1)
    pixels = single_image(source)
    check_pixels(pixels)
    return composite(pixels, background)


def composite(x: Tensor, background: Color) -> Tensor:
    """(..., C, H, W) to RGB (..., 3, H, W) over the background; float64 stays, other floats become float32."""
    import torch

    if x.dtype != torch.float64:
        x = x.float()
    channels = x.shape[-3]
    if channels > 2:
        color = x[..., :3, :, :]
    else:
        gray = x[..., :1, :, :]
        color = gray.expand(*x.shape[:-3], 3, -1, -1)
    if channels in (1, 3):
        return color

    alpha = x[..., -1:, :, :]
    background_color = torch.tensor(background, dtype=x.dtype, device=x.device).view(3, 1, 1) / 255
    return color * alpha + background_color * (1 - alpha)


def check_depth(high: int) -> None:
    """Refuse 16-bit values that end below a sixteenth of their range, as those of 8, 10 and 12 bits do."""
    if 0 < high < 4096:
        bits = next(bits for bits in (8, 10, 12) if high < 2**bits)
        factor = 65535 // (2**bits - 1)
        raise ValueError(
            f"its 16-bit values go up to {high} of 65535 only, which is black: multiply them by {factor} if they hold "
            f"{bits} bits; save a picture that is as dark with 8 bits",
        )


def scale16(array: Array) -> NDArray[np.uint8]:
    """16-bit values, rounded to 8 bits."""
    eight_bit_values = np.rint(np.arange(65536) / 257).astype(np.uint8)  # 65535 = 257 * 255
    scaled: NDArray[np.uint8] = eight_bit_values[array]
    return scaled


# PIL images


def released_rgb(image: Image.Image) -> Image.Image:
    """An image as ID-Sim's and NearID's releases read it: `image.convert("RGB")` and nothing else.

    EXIF orientation is ignored, alpha and transparent palette entries are dropped (the colors stored under them show),
    and the installed Pillow decides how 16-bit values are converted. Where one color of a file is transparent, Pillow
    keeps it marked and NearID's processor, under transformers 5, composites it; here it is dropped, too.
    """
    rgb = convert(image, "RGB")
    if rgb is image:
        rgb = rgb.copy()
    rgb.info = {}  # or its EXIF block would have it turned later
    return rgb


def sixteen(image: Image.Image) -> NDArray[np.uint16]:
    """The values of an integer image (I, I;16, ...)."""
    array = np.asarray(image)
    low = int(array.min())
    high = int(array.max())
    if low < 0 or high > 65535:
        raise ValueError(f"integer pixels must lie in [0, 65535], found [{low}, {high}]: rescale them")
    return array.astype(np.uint16)


def eight_bit(image: Image.Image) -> Image.Image:
    """Integer images as L, or LA where one value means transparent; others as they are."""
    if image.mode == "La":  # premultiplied gray converts to nothing else
        return image.convert("LA")
    if not image.mode.startswith("I"):
        return image
    values = sixteen(image)
    gray = Image.fromarray(scale16(values))
    key = image.info.get("transparency")
    if isinstance(key, int):
        alpha = np.where(values == key, 0, 255).astype(np.uint8)
        gray.putalpha(Image.fromarray(alpha))
    return gray


def convert(image: Image.Image, mode: str) -> Image.Image:
    """The image in a mode: itself, if it has that mode already."""
    if image.mode == mode:
        return image
    try:
        return image.convert(mode)
    except (OSError, TypeError, ValueError) as error:  # such as a transparency entry of the wrong kind
        raise ValueError(f"mode {image.mode} cannot be made {mode} ({error}): convert it first") from error


# Image files opened and decoded by Pillow, within limits, upright.

# Pillow's names of the formats that are decoded, whatever a file is called. Left out are formats that Pillow decodes
# pixel by pixel in Python (FITS, QOI, SGI, BLP, ...: a file of kilobytes can take minutes) or has another program draw
# (EPS, WMF), and formats that hardly anybody keeps photos in. HEIF needs its plugin, pillow-heif.
IMAGE_FORMATS = (
    "PNG",
    "JPEG",
    "MPO",
    "WEBP",
    "TIFF",
    "GIF",
    "BMP",
    "DIB",
    "PPM",
    "JPEG2000",
    "AVIF",
    "HEIF",
    "TGA",
    "ICO",
    "PSD",
)

_CLOSED = "this PIL image is closed: use it inside its with block, or open the file again"
_EMPTY = "the file is empty: fetch or write it again"
_PNG = b"\x89PNG\r\n\x1a\n"
_SETTING = threading.Lock()  # of the two below
_refusing = 0  # how many blocks of `_refusing_damage` are running
_reads_on = False  # Pillow's setting outside of them
_LOCKS = [threading.Lock() for _ in range(64)]  # of PIL images in memory, chosen by their addresses


class Named(io.BytesIO):
    """A file in memory that messages call by its name."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


def read_file(path: StrPath) -> Named:
    """All bytes of a file; ImageReadError as for `open_image`, or if it has more than `MOST` bytes."""
    name = describe(path)
    try:
        return Named(read_bytes(checked_path(path, name)), name)
    except OSError as error:
        _refuse(error, name)


def open_image(source: ImageLike, upright: bool = True) -> Image.Image:
    """The image decoded, upright and in its own mode: the caller's own object where nothing had to be done to it.

    Args:
        source: as for `read_image`.
        upright: whether to turn it by its EXIF orientation.
    """
    name = describe(source)
    if is_stored_image(source):
        source = _of_storage(source, name)
    if is_array(source):
        with naming(source):
            return image_of_array(source)
    if isinstance(source, Image.Image):
        # Pillow decodes late, and several threads may hold one image, such as one that stands in a list twice
        with _LOCKS[id(source) // 16 % len(_LOCKS)]:
            is_decoded = not getattr(source, "tile", None)
            if not is_decoded and source.format not in (None, *IMAGE_FORMATS):
                raise ImageReadError(name, f"{source.format} files are not read: save it as PNG")
            if not is_decoded and getattr(source, "fp", None) is None:
                raise ImageReadError(name, _CLOSED)
            return _decode(source, name, upright)

    file = _file(source, name)
    try:
        with open_file(file) as image:
            return _decode(image, name, upright, is_file=True)
    except (ImageReadError, MultiFrameWarning):  # a warning where filters make it an error
        raise
    except Exception as error:  # plugins raise many kinds of error on damaged headers
        if name.lower().endswith(VIDEO_ENDINGS):
            reason = "it is a video: clips are compared by `idmetric match`, with images as references"
            raise ImageReadError(name, reason) from error
        _refuse(error, name)


def open_file(file: BinaryIO | StrPath) -> Image.Image:
    """Pillow's `Image.open` for the formats of `IMAGE_FORMATS` alone; it reads only the file's head."""
    Image.init()  # once a process; HEIF is there if its plugin was registered
    formats = [name for name in IMAGE_FORMATS if name in Image.OPEN]
    with _refusing_damage():
        try:
            return Image.open(file, formats=formats)
        except ValueError:
            shorter = _without_long_texts(file)
            if shorter is None:
                raise
            return Image.open(shorter, formats=formats)


@contextmanager
def _refusing_damage() -> Iterator[None]:
    """Have Pillow raise on damaged files in this block, also where another library had it read on.

    Several threads may be in such blocks; the last one that leaves restores the setting.
    """
    global _refusing, _reads_on
    with _SETTING:
        if not _refusing:
            _reads_on = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _refusing += 1
    try:
        yield
    finally:
        with _SETTING:
            _refusing -= 1
            if not _refusing:
                ImageFile.LOAD_TRUNCATED_IMAGES = _reads_on


def _without_long_texts(file: BinaryIO | StrPath) -> io.BytesIO | None:
    """A PNG without the compressed texts that Pillow finds too long to open it; None if there are none."""
    if isinstance(file, str | os.PathLike):
        data = read_bytes(file)
    else:
        file.seek(0)
        data = file.read()
    if not data.startswith(_PNG):
        return None

    chunks = [_PNG]
    start = len(_PNG)
    while start < len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")  # length, type, content, checksum
        if not _is_long_text(data[start + 4 : start + 8], data[start + 8 : end - 4]):
            chunks.append(data[start:end])
        start = end
    shorter = b"".join(chunks)
    return io.BytesIO(shorter) if len(shorter) < len(data) else None


def _is_long_text(kind: bytes, content: bytes) -> bool:
    """Whether a PNG's chunk is a compressed text of more than `PngImagePlugin.MAX_TEXT_CHUNK` bytes."""
    _, _, rest = content.partition(b"\0")
    if kind == b"zTXt":
        compressed = rest[1:]
    elif kind == b"iTXt" and rest.startswith(b"\1"):
        compressed = rest[2:].split(b"\0", 2)[-1]  # after the language and the translated keyword
    else:
        return False
    try:
        return len(zlib.decompressobj().decompress(compressed, PngImagePlugin.MAX_TEXT_CHUNK + 1)) > (
            PngImagePlugin.MAX_TEXT_CHUNK
        )
    except zlib.error:
        return False


def is_animated(image: Image.Image) -> bool:
    """Whether there are several frames or pages, without counting them, which takes minutes for some files.

    The preview in a phone's MPO photo and the layers of a PSD do not count.
    """
    return image.format not in ("MPO", "PSD") and bool(getattr(image, "is_animated", False))


def _of_storage(image: Mapping[str, Any], name: str) -> Named | StrPath:
    """The file, in memory if it has bytes, of an image that `datasets` stores."""
    data: bytes | None = image.get("bytes")
    path: StrPath | None = image.get("path")
    if data is not None:
        return Named(data, name)
    if path is None:
        raise ImageReadError(name, "it has neither bytes nor a path: leave it out")
    return path


def _file(source: Any, name: str) -> BinaryIO | str:
    """The source as Pillow opens it: an existing file's path, or bytes in memory."""
    if isinstance(source, str | os.PathLike):
        return checked_path(source, name)

    if isinstance(source, bytes | bytearray | memoryview):
        data: Any = bytes(source)
    elif isinstance(source, Named):  # may be read again
        data = source.getvalue()
    elif hasattr(source, "read"):
        try:
            data = source.read()
        except Exception as error:  # whatever the object raises: closed, text that is not UTF-8, connection lost
            raise ImageReadError(name, f"reading failed ({error}): give an open file in mode 'rb'") from error
    else:
        raise TypeError(f"{type(source).__name__} is not an image: give a path, bytes, PIL image, array or tensor")
    if isinstance(data, str):
        raise ImageReadError(name, "it gives text: open the file in mode 'rb'")
    if not data:
        raise ImageReadError(name, "it is empty: fetch or write it again; a file object already read needs seek(0)")
    return io.BytesIO(data)


def checked_path(source: StrPath, name: str) -> str:
    """The path of a file that can be opened."""
    if isinstance(source, str) and is_address(source):
        raise ImageReadError(name, "addresses (URLs) are not fetched: download it and give the file's path")
    try:
        path = os.fspath(source)
        status = os.stat(path)
    except PermissionError as error:
        _refuse(error, name)
    except (OSError, ValueError) as error:
        raise ImageReadError(name, ABSENT) from error

    if stat.S_ISDIR(status.st_mode):
        raise ImageReadError(name, "it is a folder: give the image files in it")
    if not stat.S_ISREG(status.st_mode):  # opening one may wait for ever
        raise ImageReadError(name, "it is a pipe or a device: give a file with its content")
    if status.st_size == 0:
        raise ImageReadError(name, _EMPTY)
    if is_embedding_file(path):
        raise ImageReadError(name, "it holds embeddings: `score`, `match` and `IdentityLoss` take it as references")
    return path


def check_paths(*sources: Any) -> None:
    """Refuse the first path among images, and lists of them, that does not exist, before any work: ImageReadError."""
    for source in sources:
        if isinstance(source, list | tuple):
            check_paths(*source)
        elif isinstance(source, str | os.PathLike) and not (os.path.exists(source) or names_several(source)):
            checked_path(source, describe(source))


def _decode(image: Image.Image, name: str, upright: bool, *, is_file: bool = False) -> Image.Image:
    """See `open_image`; `is_file`: nobody else holds the image."""
    _check_size(image, name)

    # What decoding forgets
    key_bits = _key_bits(image)
    has_16_bits = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    is_cut = has_16_bits and not image.mode.startswith("I")
    has_more_frames = False
    stored = None
    try:
        if image.format == "TIFF":
            stored = _orientation(image)  # Pillow turns TIFFs when it loads them, and removes the tag
            _check_tiff(image, name)
        if image.tell() == 0:
            has_more_frames = is_animated(image)
        with _refusing_damage():
            image.load()
    except ImageReadError:
        raise
    except Exception as error:  # a truncated file raises OSError, SyntaxError, struct.error, ... by format
        _refuse(error, name)
    if has_more_frames:
        message = f"{name} has several frames: only the first is used (open it with Pillow and seek for another)"
        warnings.warn(message, MultiFrameWarning, stacklevel=5)
    if not upright:
        return image

    turned = image
    try:
        stored = stored or _orientation(image)
        if is_file and stored in (None, 1):
            turned = image._new(image.im)  # as `copy`, with the same pixels
        elif type(image) is not Image.Image or stored is not None:
            turned = ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block must not lose a good image
        warnings.warn(f"{name} has an unreadable EXIF block: its orientation is not applied", stacklevel=5)
        turned = image.copy()

    # Notes for whoever reads it
    key = turned.info.get("transparency")
    if key_bits is not None and isinstance(key, int):
        turned.info["transparency"] = min(255, key * 255 // (2**key_bits - 1))
    if stored is not None:
        turned.info[STORED] = stored
    if is_cut:
        turned.info[CUT] = True
    return turned


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    longer = max(width, height)
    if width * height < 1:
        raise ImageReadError(name, f"it has no pixels ({width} x {height})")
    if width * height > MAX_PIXELS:
        reason = f"{width} x {height} pixels are more than the {MAX_PIXELS} allowed: make it smaller"
        raise ImageReadError(name, reason)
    if longer > MAX_SIDE:
        reason = f"a side of {longer} pixels is longer than the {MAX_SIDE} allowed: make it smaller"
        raise ImageReadError(name, reason)


_NEW_SUBFILE_TYPE = 254
_DNG_VERSION = 50706


def _check_tiff(image: Image.Image, name: str) -> None:
    """Refuse raw files, thumbnails, and the TIFFs that Pillow (13.0) decodes to wrong pixels without an error."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):  # a copy in memory has no tags
        return
    tags = image.tag_v2
    is_thumbnail = bool(tags.get(_NEW_SUBFILE_TYPE, 0) & 1) and image.tell() == 0
    if is_thumbnail or _DNG_VERSION in tags or name.lower().endswith(RAW_ENDINGS):
        reason = "it is a camera raw file, or begins with a thumbnail: convert it to PNG or JPEG"
        raise ImageReadError(name, reason)

    bits = max(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
    is_signed = 2 in tags.get(TiffImagePlugin.SAMPLEFORMAT, (1,))
    is_white_zero = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0) == 0
    is_planar = tags.get(TiffImagePlugin.PLANAR_CONFIGURATION, 1) == 2
    is_compressed = image.info.get("compression") != "raw"

    if is_white_zero and bits > 8:
        kind = f"{bits}-bit values where 0 is white"
    elif is_signed and bits == 8:
        kind = "signed 8-bit values"
    elif is_planar and (image.mode in ("LA", "La", "PA") or (bits > 8 and not is_compressed)):
        kind = f"{bits}-bit channels in separate planes"
    elif image.mode in ("I", "F") and tags.prefix == TiffImagePlugin.MM and is_compressed:
        kind = f"compressed big-endian {bits}-bit values"
    elif image.mode == "P" and max(tags[TiffImagePlugin.COLORMAP]) < 256:
        kind = "a palette of 8 bits"
    else:
        return
    raise ImageReadError(
        name,
        f"this TIFF holds {kind}, which Pillow would read as another picture: save it as PNG with another program, "
        "such as ImageMagick (magick a.tif a.png)",
    )


def _orientation(image: Image.Image) -> int | None:
    """EXIF's orientation, 1 to 8; None without one."""
    value = image.getexif().get(ExifTags.Base.Orientation)
    if value in range(1, 9):
        return value
    return None


def _key_bits(image: Image.Image) -> int | None:
    """Bits of a gray PNG's transparent value, where Pillow brings the pixels to 8 bits but not that value."""
    tiles = getattr(image, "tile", None)
    if image.format != "PNG" or not tiles:
        return None
    raw_mode = str(tiles[0][3])
    return {"L;2": 2, "L;4": 4}.get(raw_mode)


def _refuse(error: Exception, name: str) -> NoReturn:
    """Raise an ImageReadError that explains an error; if files cannot be opened any more, the error itself."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise error
    raise ImageReadError(name, _explain(error, name)) from error


def _explain(error: Exception, name: str) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"too many pixels ({error}): make it smaller"
    if isinstance(error, MemoryError):
        return TOO_LARGE
    if isinstance(error, UnidentifiedImageError):
        advice = "HEIC needs pip install pillow-heif and, in Python, pillow_heif.register_heif_opener()"
        return (
            f"it is not an image of a known format, or its header is damaged: save it again as PNG or JPEG ({advice})"
        )
    if isinstance(error, PermissionError):
        return "there is no permission to read it: change its mode or owner (chmod, chown), or its folder's"
    if "closed image" in str(error):
        return _CLOSED
    return f"it is damaged or cut short ({error or type(error).__name__}): fetch or write it again"


# Ways to bring an image of any shape to a model's input size: squash it, crop its center, or pad it.

Resize = Literal["squash", "crop", "hub-crop", "pad"]
CROPS = ("crop", "hub-crop")
_LEAST = 0.1  # of crop_pct; with the next one it bounds the memory of a resized image
_MOST_RATIO = 200  # of the sides of an image that is cropped


@dataclass(frozen=True)
class Fit:
    """How an image is brought to a model's input size.

    Args:
        resize: "squash" changes both sides to the size, whatever the shape. "crop" resizes the shorter side to
            size / crop_pct and cuts out the center, as torchvision's Resize and CenterCrop do. "hub-crop" does the same
            as the image processors of transformers, which round the corner of the center down. "pad" resizes the
            longer side to the size and adds equal borders to the other one.
        crop_pct: share of the shorter side that a crop keeps, 0.1 to 1.

    Raises:
        ValueError: for another `resize`, or a share out of range.
    """

    resize: Resize = "squash"
    crop_pct: float = 1.0

    def __post_init__(self) -> None:
        names = get_args(Resize)
        if self.resize not in names:
            raise ValueError(f"unknown resize {self.resize!r}: choose {', '.join(names)}")
        if not _LEAST <= self.crop_pct <= 1:
            raise ValueError(f"crop_pct = {self.crop_pct}: a share from {_LEAST} to 1 is needed")

    def __str__(self) -> str:
        if self.resize in CROPS:
            return f"{self.resize} {self.crop_pct:g}"
        return self.resize

    def image(self, image: Image.Image, size: Sides, interpolation: str, border: Color) -> Image.Image:
        """An RGB image at `size` (height, width), resized by Pillow; `border` is the color of padding."""
        planned, (top, left) = self.plan(image.height, image.width, size)
        planned_size = planned[::-1]  # Pillow's sizes are (width, height)
        if image.size != planned_size:
            image = image.resize(planned_size, RESAMPLE[interpolation])

        height, width = size
        if self.resize in CROPS:
            return image.crop((left, top, left + width, top + height))
        if self.resize == "pad":
            framed = Image.new("RGB", (width, height), border)
            framed.paste(image, (-left, -top))
            return framed
        return image

    def pixels(self, pixels: Tensor, size: Sides, interpolation: str, border: Color) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at `size`, differentiably; at that size already they are returned as they are.

        So pixels that were fitted once are not cropped again.
        """
        from idmetric.metric.pixels import resize_pixels

        height, width = pixels.shape[-2:]
        if (height, width) == tuple(size):
            return resize_pixels(pixels, size, interpolation)
        planned, corner = self.plan(height, width, size)
        resized = resize_pixels(pixels, planned, interpolation)
        if self.resize != "pad":
            return _window(resized, corner, size)
        color = resized.new_tensor(border).view(3, 1, 1) / 255
        return color + _window(resized - color, corner, size)  # borders of 0 become the color

    def cover(self, cover: Tensor, size: Sides, floats: bool) -> Tensor:
        """Coverage (..., H, W) by a mask, averaged to `size`; 0 on padding.

        Args:
            floats: whether the image was given as float pixels, which stay as they are at that size (see `pixels`).
        """
        from idmetric.metric.pixels import average_to

        height, width = cover.shape[-2:]
        if floats and (height, width) == tuple(size):
            return cover
        planned, corner = self.plan(height, width, size)
        resized = average_to(cover, planned)
        return _window(resized, corner, size)

    def plan(self, height: int, width: int, size: Sides) -> tuple[Sides, Sides]:
        """The size to resize to, and the top left corner in it of the part that is seen (negative with padding).

        ValueError for an image that is too narrow to be cropped.
        """
        if self.resize == "squash":
            return size, (0, 0)

        # the sides to resize to, by the shorter side for a crop and by the longer one for padding
        shorter = min(height, width)
        longer = max(height, width)
        if self.resize in CROPS:
            if longer > _MOST_RATIO * shorter:
                raise ValueError(f"its sides differ by more than {_MOST_RATIO} to 1, too narrow for a center crop")
            planned_shorter = math.floor(min(size) / self.crop_pct)
            planned_longer = int(planned_shorter * longer / shorter)  # as torchvision and transformers round
        else:
            planned_longer = min(size)
            planned_shorter = max(1, round(planned_longer * shorter / longer))
        planned = (planned_shorter, planned_longer)
        if height > width:
            planned = (planned_longer, planned_shorter)

        # half of what is cut off, or of the border, where it is negative
        cut_y = planned[0] - size[0]
        cut_x = planned[1] - size[1]
        if self.resize == "hub-crop":
            return planned, (cut_y // 2, cut_x // 2)
        return planned, (round(cut_y / 2), round(cut_x / 2))


SQUASH = Fit()


def _window(x: Tensor, corner: Sides, size: Sides) -> Tensor:
    """The part of (..., H, W) with this top left corner and size, 0 outside."""
    import torch.nn.functional as F

    top, left = corner
    bottom = top + size[0]
    right = left + size[1]
    height, width = x.shape[-2:]
    edges = (-left, right - width, -top, bottom - height)  # negative ones cut off
    if not any(edges):
        return x
    return F.pad(x, edges)


__all__ = [
    "ImageLike",
    "ImageReadError",
    "MultiFrameWarning",
    "Outside",
    "Preprocessing",
    "Reading",
    "describe",
    "is_single",
    "picture_pixels",
    "read_image",
    "split_images",
    "to_image",
    "to_pixels",
]


class Reading(TypedDict, total=False):
    """How images become pixels: options of `to_image` and `to_pixels`.

    Attributes:
        background, preprocessing: as for `read_image`.
        interpolation: "bicubic" (default), "bilinear" or "lanczos", antialiased (lanczos of floats needs a recent
            torch).
        fit: whether an image of another shape is squashed (default), cropped or padded (with `background`). Floats
            that have the right size already stay as they are.
    """

    background: Color
    interpolation: str
    preprocessing: Preprocessing
    fit: Fit


Size = Sides | Callable[[int, int], Sides]  # (height, width), or a function from an image's own


def read_image(
    source: ImageLike,
    *,
    background: Color = WHITE,
    preprocessing: Preprocessing = "standard",
) -> Image.Image:
    """Read one image as 8-bit RGB, as a new PIL image that holds no file open.

    Formats are those of `IMAGE_FORMATS`. Where a file had an EXIF orientation, the result's
    `info["stored_orientation"]` keeps it, so that a mask of the stored pixels can be turned the same way.

    Of an animation or multi-page file the first frame is used, with a `MultiFrameWarning`; a PIL image is used at the
    frame where it stands. The preview in a phone's MPO photo and the layers of a PSD do not count as frames.

    Images of more than `MAX_PIXELS` are refused before they are decoded. Pillow's own `Image.MAX_IMAGE_PIXELS` also
    holds: a warning at that size, an error at twice that.

    Args:
        source: path, bytes, binary file object, PIL image, array or tensor (see `ImageLike`). 16-bit and 32-bit
            integer images span 0-65535 (values of 8, 10 or 12 bits are refused), float images (mode F) 0-1.
        background: RGB color, 0-255, behind transparent pixels.
        preprocessing: "release" reads files and PIL images by `released_rgb`; float tensors and arrays are read alike.

    Raises:
        ImageReadError: if it is missing, empty, unreadable, truncated, too large, out of range, or no image.
        TypeError: for an object of another kind.
    """
    with naming(source):
        if is_array(source) and is_float(source):
            return image_of_pixels(float_pixels(source, background))
        image = open_image(source, upright=preprocessing == "standard")
        if preprocessing == "release":
            image = released_rgb(image)
            image.info[NAME] = ImageName(describe(source))
            return image

        # floats and 16-bit values
        orientation = stored_orientation(image)
        if image.mode == "F":
            image = image_of_pixels(float_pixels(np.asarray(image), background))
        elif image.mode.startswith("I"):
            highest = int(sixteen(image).max())
            check_depth(highest)
        elif image.info.pop(CUT, False) is True:
            highest = int(np.asarray(convert(image, "RGB")).max())
            check_depth(256 * highest + 255)

        image = eight_bit(image)
        if image.has_transparency_data:
            image = _composited(image, background)
        image = convert(image, "RGB")
    if image is source:
        image = image.copy()
    image.info.pop(STORED, None)
    if orientation is not None:
        image.info[STORED] = orientation
    image.info[NAME] = ImageName(describe(source))
    return image


def _composited(image: Image.Image, background: Color) -> Image.Image:
    front = convert(image, "RGBA")
    back = Image.new("RGBA", front.size, (*background, 255))
    return Image.alpha_composite(back, front)


def to_image(source: ImageLike, size: Size | None, **how: Unpack[Reading]) -> Image.Image:
    """One image as 8-bit RGB of a size, resized by Pillow, without torch; arguments and errors as for `to_pixels`."""
    background = how.get("background", WHITE)
    preprocessing = how.get("preprocessing", "standard")
    if size is None:
        return read_image(source, background=background, preprocessing=preprocessing)

    fit = how.get("fit", SQUASH)
    with naming(source):
        image = read_image(source, background=background, preprocessing=preprocessing)
        target = _chosen(size, image.height, image.width)
        return fit.image(image, target, how.get("interpolation", "bicubic"), background)


def picture_pixels(picture: Image.Image, size: Size, **how: Unpack[Reading]) -> Tensor:
    """`to_pixels` of a picture that `read_image` gave."""
    fit = how.get("fit", SQUASH)
    interpolation = how.get("interpolation", "bicubic")
    background = how.get("background", WHITE)
    check_interpolation(interpolation)
    with naming(picture):
        target = _chosen(size, picture.height, picture.width)
        return _tensor_of(fit.image(picture, target, interpolation, background))


def to_pixels(source: ImageLike, size: Size | None, **how: Unpack[Reading]) -> Tensor:
    """One image as pixels of shape (3, height, width), float in [0, 1].

    Args:
        source: as for `read_image`. Tensors stay on their device, and float tensors keep their graph; float64 tensors
            stay float64, everything else becomes float32.
        size: (height, width) of the result, or a function from the image's own to it, or None to keep those.
        how: see `Reading`.

    Raises:
        ImageReadError: as `read_image`.
        ValueError: for an unknown interpolation.
    """
    background = how.get("background", WHITE)
    interpolation = how.get("interpolation", "bicubic")
    fit = how.get("fit", SQUASH)
    check_interpolation(interpolation)
    if is_array(source) and is_float(source):
        with naming(source):
            pixels = float_pixels(source, background)
            if size is None:
                return pixels
            target = _chosen(size, pixels.shape[1], pixels.shape[2])
            return fit.pixels(pixels[None], target, interpolation, background)[0]

    pixels = _tensor_of(to_image(source, size, **how))
    if is_tensor(source):
        pixels = pixels.to(source.device)
    return pixels


def _tensor_of(image: Image.Image) -> Tensor:
    """An RGB image as float32 pixels (3, H, W) in [0, 1]."""
    import torch

    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)


def split_images(images: ImageLike | Iterable[ImageLike]) -> list[ImageLike]:
    """One image, a batch (tensor BCHW, array BHWC) or an iterable of these, as a flat list of single images.

    A folder or a pattern is the list of its images, see `idmetric.metric.paths.listed`.

    Raises:
        ImageReadError: for a folder or pattern that names no image.
        TypeError: for lists within lists, and for other objects.
    """
    if holds_paths(images):
        images = images.ravel().tolist()  # type: ignore[union-attr]  # an array
    if is_array(images):
        if images.ndim == 4:
            return list(images)
        return [images]
    if inputs.names_several(images):
        try:
            return list(inputs.listed(images))  # type: ignore[arg-type]  # a path, then
        except RequestError as error:
            raise ImageReadError(error.source, error.reason) from error
    if is_image_like(images):
        return [images]  # type: ignore[list-item]  # is_image_like says so
    if not isinstance(images, Iterable):
        raise TypeError(f"{type(images).__name__} is not an image: give a path, bytes, PIL image, array or tensor")
    singles: list[ImageLike] = []
    for image in images:
        if not is_image_like(image):
            raise TypeError(f"a list of images may not hold a {type(image).__name__}: give one flat list of images")
        singles += split_images(image)  # type: ignore[arg-type]  # is_image_like says so
    return singles


def is_single(images: Any) -> bool:
    """Whether this is one image, not a batch, a list, a folder or a pattern of them (which may hold one)."""
    if is_array(images) and not holds_paths(images):
        return images.ndim < 4
    return is_image_like(images) and not inputs.names_several(images)


def _chosen(size: Size, height: int, width: int) -> Sides:
    """The size to bring an image of this height and width to."""
    if callable(size):
        return size(height, width)
    return size


# Small pictures, in which copies of an image are found.

SIZE = 96  # side in pixels at which images are compared; callers may resize them to it by a better filter


def small_picture(picture: Image.Image) -> NDArray[np.uint8]:
    """Resize a picture to (SIZE, SIZE, 3) for the search of copies; large ones by averages of blocks first.

    Averages to twice the size or more take a third of the time. Values of photos differ by 0.4 of 255 in the mean,
    those of fine regular patterns by more; the agreement of copies moves by about 0.01.
    """
    return np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.LANCZOS, reducing_gap=2.0))
