"""Images of any kind to RGB pixels in [0, 1]; masks are read by `idmetric.metric.masks`.

There are two readers. `open_image` decodes files, bytes and PIL images, and takes arrays of integers; `float_pixels`
takes float tensors and arrays, and keeps their graph. 8-bit images are resized by Pillow on 8-bit values (as
torchvision's `Resize` does with PIL images); floats by torch's antialiased interpolation, differentiably. The two agree
to well under 1/255 on photos.

EXIF orientation is applied, transparency is composited on a background (white by default), 16-bit values are scaled
rather than clipped; `preprocessing="release"` does none of this. ICC profiles are not applied. Addresses (URLs) are not
fetched. Damaged files are refused, whatever Pillow's `LOAD_TRUNCATED_IMAGES` says.
"""

from __future__ import annotations

import io
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Union, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from idmetric.metric import paths
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, read_bytes

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

# str: a path; where several images are asked for, also a folder or a pattern (`paths.listed`). Arrays: (H, W) or
# (H, W, C), tensors: (C, H, W), with C = 1, 2 (gray and alpha), 3 or 4; bool, integers up to 255 (uint8) or 65535, or
# floats in [0, 1]. Where several images are asked for, tensors (B, C, H, W) and arrays (B, H, W, C) count as B images.
ImageLike = Union[str, os.PathLike[str], bytes, BinaryIO, Image.Image, "NDArray[Any]", "Tensor"]
Picture = Union[Image.Image, "Tensor"]  # a decoded RGB image, or float pixels (3, H, W) in [0, 1]
Array = NDArray[Any]
Color = tuple[int, int, int]
Sides = tuple[int, int]  # height and width
Size = Sides | Callable[[int, int], Sides]  # (height, width), or a function from an image's own
MaskId = int | str  # of several subjects in a mask one: an index or a value, or a color "#rrggbb"
Outside = Literal["black", "white", "crop", "keep"]  # what becomes of the pixels outside a mask
Preprocessing = Literal["standard", "release"]  # how files and PIL images become RGB: see `read_image`
WHITE: Color = (255, 255, 255)
RESAMPLE = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}

# Left out are formats that Pillow decodes pixel by pixel in Python (FITS, QOI, SGI, ...: a file of kilobytes can take
# minutes) or has another program draw (EPS, WMF). JPEG includes MPO. HEIF needs its plugin, pillow-heif. The first five
# are loaded at once, the others when a file is none of these.
_FORMATS = "PNG JPEG BMP GIF PPM DIB WEBP TIFF JPEG2000 ICO PSD AVIF TGA"
IMAGE_FORMATS = tuple(_FORMATS.split())
# Where Pillow by default refuses to open an image; about 13,000 x 13,000 pixels, 0.5 GB once decoded.
MAX_PIXELS = 178_956_970
MAX_SIDE = 1_000_000  # Pillow takes 50 bytes for each pixel of a side while it resizes an image
PngImagePlugin.MAX_TEXT_CHUNK = 2**24  # by default a PNG with a workflow of a megabyte counts as damaged
_ORIENTATION = 0x0112  # the EXIF tag
STORED = "stored_orientation"  # in a decoded image's `info`: the EXIF orientation that its file was stored in, or None
SIZE = 96  # side of the small pictures in which copies of an image are found


class ImageReadError(ValueError):
    """An image that cannot be used.

    Attributes:
        source: its name. reason: why it cannot be used, and what to do.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)  # the arguments, by which data-loader workers send it
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot read image {self.source}: {self.reason}"


class MultiFrameWarning(UserWarning):
    """A file holds several frames, and only its first is used."""


@contextmanager
def naming(source: Any) -> Iterator[None]:
    """Turn a ValueError about an image into an ImageReadError that names it."""
    try:
        yield
    except ImageReadError:
        raise
    except ValueError as error:
        raise ImageReadError(describe(source), str(error)) from error


# Kinds of images


def is_tensor(x: object) -> TypeIs[Tensor]:
    """Whether x is a tensor; to ask does not load torch, without which there are none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_array(x: object) -> TypeIs[Tensor | Array]:
    """Whether x is an array or a tensor."""
    return isinstance(x, np.ndarray) or is_tensor(x)


def is_float(x: Tensor | Array) -> bool:
    if is_tensor(x):
        return x.is_floating_point()
    return x.dtype.kind == "f"


def is_image_like(x: object) -> bool:
    """Whether this is of a kind that `ImageLike` names, and not a list of such."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind not in "OU"  # of paths
    kinds = (str, os.PathLike, bytes, bytearray, memoryview, Image.Image)
    return isinstance(x, kinds) or is_tensor(x) or hasattr(x, "read")


def is_single(images: Any) -> bool:
    """Whether this is one image, not a batch, a list, a folder or a pattern of them (which may hold one)."""
    is_batch = is_array(images) and images.ndim > 3
    return is_image_like(images) and not is_batch and not paths.names_several(images)


def split_images(images: ImageLike | Iterable[ImageLike]) -> list[ImageLike]:
    """One image, a batch (tensor BCHW, array BHWC) or an iterable of these, as a flat list of single images.

    A folder or a pattern is the list of its images, see `paths.listed`.

    Raises:
        ImageReadError: for a folder or pattern without images. TypeError: for nested lists, and for other objects.
    """
    if is_array(images) and images.ndim == 4:
        return list(images)
    if paths.names_several(images):
        try:
            return list(paths.listed(images))
        except RequestError as error:
            raise ImageReadError(error.source, error.reason) from error
    if is_image_like(images):
        return [images]  # type: ignore[list-item]  # is_image_like says so

    singles: list[ImageLike] = []
    for image in images if isinstance(images, Iterable) else [images]:
        if not is_image_like(image):
            kind = type(image).__name__
            raise TypeError(f"{kind} is not an image: give a path, bytes, PIL image, array, tensor, or a list of these")
        singles += split_images(image)  # type: ignore[arg-type]  # is_image_like says so
    return singles


def describe(source: Any) -> str:
    """A short name of an image for messages: its path, or its kind."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    if is_array(source):
        return f"<{type(source).__name__} of {source.dtype}, shape {tuple(source.shape)}>"
    name = getattr(source, "filename", "") or getattr(source, "name", "")
    return str(name or f"<{type(source).__name__}>")


# Files opened and decoded by Pillow, within limits, upright


class Named(io.BytesIO):
    """A file in memory that messages call by its name."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


def read_file(path: StrPath) -> Named:
    """All bytes of a file; ImageReadError as for `open_image`."""
    name = describe(path)
    with _explaining(name):
        return Named(read_bytes(checked_path(path, name)), name)


def open_image(source: ImageLike, upright: bool = True) -> Image.Image:
    """The image decoded in its own mode, with the orientation of its file in `info[STORED]`, if upright.

    Args:
        source: as for `read_image`, except float arrays and tensors; a PIL image may share its pixels with the result.
        upright: whether to turn it by its EXIF orientation.
    """
    if is_array(source):
        with naming(source):
            values = _eight_bit(channels_last(source))
            return Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)

    name = describe(source)
    with _explaining(name), _refusing_damage():
        if isinstance(source, Image.Image):
            with _DECODING:
                return _decoded(source, name, upright)
        with open_file(_file(source, name)) as file:
            return _decoded(file, name, upright)


def open_file(file: BinaryIO | StrPath) -> Image.Image:
    """Pillow's `Image.open` for the formats of `IMAGE_FORMATS` alone; it reads only the file's head."""
    registered = Image.OPEN.keys() & {"HEIF"}
    return Image.open(file, formats=[*IMAGE_FORMATS, *registered])


_DECODING = threading.Lock()  # of PIL images in memory: two threads may hold one that is not decoded yet
_SETTING = threading.Lock()  # of the two below
_count_refusing = 0  # how many threads are in `_refusing_damage`
_reads_on = False  # Pillow's setting outside of it


@contextmanager
def _refusing_damage() -> Iterator[None]:
    """Have Pillow raise on damaged files in this block, also where another library had it read on."""
    global _count_refusing, _reads_on
    with _SETTING:
        if not _count_refusing:
            _reads_on = ImageFile.LOAD_TRUNCATED_IMAGES
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        _count_refusing += 1
    try:
        yield
    finally:
        with _SETTING:
            _count_refusing -= 1
            if not _count_refusing:
                ImageFile.LOAD_TRUNCATED_IMAGES = _reads_on


@contextmanager
def _explaining(name: str) -> Iterator[None]:
    """Turn every error of Pillow and of the system into an ImageReadError; Pillow raises many kinds."""
    try:
        yield
    except (ImageReadError, Warning):
        raise
    except Exception as error:
        reason = f"it cannot be read, as it is damaged, cut short, closed or too large ({error!r})"
        if isinstance(error, UnidentifiedImageError):
            reason = (
                "it is not an image of a known format, or its head is damaged: save it as PNG or JPEG (HEIC needs "
                "pip install pillow-heif and, in Python, pillow_heif.register_heif_opener())"
            )
        raise ImageReadError(name, reason) from error


def is_animated(image: Image.Image) -> bool:
    """Whether there are several frames or pages, without counting them, which takes minutes for some files.

    The preview in a phone's MPO photo and the layers of a PSD do not count.
    """
    return image.format not in ("MPO", "PSD") and bool(getattr(image, "is_animated", False))


def stored_orientation(image: Image.Image) -> int | None:
    """The note under `STORED`, 1 to 8; None without one."""
    orientation: int | None = image.info.get(STORED)
    return orientation


def _file(source: Any, name: str) -> BinaryIO | str:
    """The source as Pillow opens it: an existing file's path, or bytes in memory."""
    if isinstance(source, str | os.PathLike):
        return checked_path(source, name)
    data = source
    if isinstance(source, io.BytesIO):  # wherever it stands
        data = source.getvalue()
    elif hasattr(source, "read"):
        data = source.read()

    if isinstance(data, str):
        raise ImageReadError(name, "it gives text: open the file in mode 'rb'")
    if not data:
        raise ImageReadError(name, "it is empty: fetch or write it again; a file object already read needs seek(0)")
    return io.BytesIO(data)


def checked_path(source: StrPath, name: str) -> str:
    """The path of a file that can be opened; ImageReadError for others."""
    path = os.fspath(source)
    if os.path.isfile(path):
        return path
    if paths.is_address(path):
        reason = "addresses (URLs) are not fetched: download it and give the file's path"
    elif os.path.exists(path):
        reason = "it is a folder, a pipe or a device: give an image file"  # opening a pipe may wait for ever
    else:
        reason = paths.ABSENT
    raise ImageReadError(name, reason)


def check_paths(*sources: Any) -> None:
    """Refuse the first path among images, and lists of them, that does not exist, before any work: ImageReadError."""
    for source in sources:
        for path in source if isinstance(source, list | tuple) else [source]:
            if isinstance(path, str | os.PathLike) and not (os.path.exists(path) or paths.names_several(path)):
                checked_path(path, describe(path))


def _decoded(image: Image.Image, name: str, upright: bool) -> Image.Image:
    """See `open_image`."""
    if not 0 < image.width * image.height <= MAX_PIXELS or max(image.size) > MAX_SIDE:
        limits = f"1 to {MAX_PIXELS} in all, and {MAX_SIDE} a side, are allowed"
        raise ImageReadError(name, f"it has {image.width} x {image.height} pixels, but {limits}: resize it")
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        _check_tiff(image, name)
    if image.tell() == 0 and is_animated(image):
        message = f"{name} has several frames: only the first is used (open it with Pillow and seek for another)"
        warnings.warn(message, MultiFrameWarning, stacklevel=2)
    if not upright:
        image.load()
        return image

    # before decoding, by which Pillow forgets the depth, and turns a TIFF
    has_16_bits = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    orientation = image.getexif().get(_ORIENTATION)
    image.load()
    if has_16_bits and not image.mode.startswith("I"):  # Pillow keeps the upper 8 of them
        _check_depth(256 * int(np.asarray(image).max()) + 255)
    turned = image._new(image.im)  # the same pixels, without the file
    if orientation not in (None, 1):
        turned = ImageOps.exif_transpose(image)
    turned.info[STORED] = orientation if orientation in range(1, 9) else stored_orientation(image)
    return turned


_NEW_SUBFILE_TYPE = 254
# values of PhotometricInterpretation
_GRAY_OR_RGB = (1, 2)
_EIGHT_BIT = (0, 1, 2, 5, 6)  # and gray with white as zero, CMYK, YCbCr


def _check_tiff(image: TiffImagePlugin.TiffImageFile, name: str) -> None:
    """Refuse raw files, thumbnails, and layouts that Pillow (13.0) decodes to wrong pixels without an error."""
    tags = image.tag_v2
    is_thumbnail = bool(tags.get(_NEW_SUBFILE_TYPE, 0) & 1) and image.tell() == 0
    if is_thumbnail or name.lower().endswith(paths.RAW_ENDINGS):
        raise ImageReadError(name, "it is a camera raw file, or begins with a thumbnail: convert it to PNG or JPEG")

    is_deep = max(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,))) > 8
    is_big_endian = tags.prefix == TiffImagePlugin.MM
    is_planar = tags.get(TiffImagePlugin.PLANAR_CONFIGURATION, 1) == 2
    plain_kinds = _GRAY_OR_RGB if is_deep else _EIGHT_BIT
    is_plain = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0) in plain_kinds
    if is_planar or not is_plain or (is_deep and is_big_endian):
        reason = "Pillow may read this kind of TIFF as another picture: save it as PNG by another program"
        raise ImageReadError(name, reason)


# Arrays and tensors: layout, range, 16-bit values and transparency; ValueError with the reason


def channels_first(source: Any) -> Any:
    """One image with three axes, (C, H, W), of 1 to 4 channels; arrays come as (H, W, C)."""
    image = source
    if source.ndim == 2:
        image = source[None]
    elif source.ndim == 3 and not is_tensor(source):
        image = np.moveaxis(source, 2, 0)
    if image.ndim != 3 or len(image) not in (1, 2, 3, 4) or 0 in image.shape:
        layouts = "(C, H, W) as a tensor, (H, W, C) or (H, W) as an array"
        raise ValueError(f"one image has shape {layouts}, with 1 to 4 channels: permute it, or index a batch")
    return image


def channels_last(source: Tensor | Array) -> Array:
    """A copy of one image as an array (H, W, C) in the machine's byte order; floats become float32."""
    x = channels_first(source)
    if is_tensor(x):
        x = x.detach().cpu()
        x = (x.float() if x.is_floating_point() else x).numpy()  # which has no bfloat16
    if x.dtype.kind not in "biuf":
        raise ValueError(f"pixels of type {x.dtype} are not understood: use integers, or floats in [0, 1]")
    dtype = np.float32 if x.dtype.kind == "f" else x.dtype.newbyteorder("=")
    return np.ascontiguousarray(np.moveaxis(x, 0, 2), dtype)


def image_of_pixels(pixels: Tensor) -> Image.Image:
    """Float pixels (3, H, W) in [0, 1] as an 8-bit image."""
    scaled = pixels.detach().clamp(0, 1) * 255
    array = scaled.round().byte().permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(np.ascontiguousarray(array))


def _eight_bit(values: Array) -> NDArray[np.uint8]:
    """Bools or integers of any shape as 8 bits; wider than 8 bits, they span 0 to 65535."""
    if values.dtype == np.bool_:
        return values * np.uint8(255)
    if values.dtype == np.uint8:
        return values
    low = int(values.min())
    high = int(values.max())
    if low < 0 or high > 65535:
        raise ValueError(f"integer pixels must lie in [0, 65535], found [{low}, {high}]: rescale them")
    _check_depth(high)
    rounded = np.rint(values / np.float32(257))  # 65535 = 257 * 255
    return rounded.astype(np.uint8)


def _check_depth(highest: int) -> None:
    """Refuse 16-bit values that end below a sixteenth of their range, as those of 8, 10 and 12 bits do."""
    if 0 < highest < 4096:
        raise ValueError(
            f"its 16-bit values go up to {highest} of 65535 only, which is black: scale them to the full range (12 "
            "bits: times 16), or save a picture that is as dark with 8 bits"
        )


def check_pixels(pixels: Tensor) -> None:
    """Check that float pixels of any shape lie in [0, 1], up to float rounding."""
    import torch

    if not pixels.numel():
        raise ValueError("it has no pixels")
    least, most = torch.stack(torch.aminmax(pixels.detach().float())).tolist()
    if least >= -1e-4 and most <= 1 + 1e-4:  # NaN fails this
        return
    raise ValueError(
        f"float pixels must lie in [0, 1], without NaN, found [{least:.4g}, {most:.4g}]: divide by 255 what goes to "
        "255, map [-1, 1] by (x + 1) / 2, and undo another normalization by x * std + mean"
    )


def float_pixels(source: Tensor | Array, background: Color) -> Tensor:
    """One float image as RGB (3, H, W) over the background, with its graph; float64 tensors stay that, else float32."""
    import torch

    if not is_tensor(source):
        source = torch.from_numpy(channels_last(source)).permute(2, 0, 1)
    pixels: Tensor = channels_first(source)
    check_pixels(pixels)
    if pixels.dtype != torch.float64:
        pixels = pixels.float()

    channels = len(pixels)
    color = pixels[:3] if channels > 2 else pixels[:1].expand(3, -1, -1)
    if channels in (1, 3):
        return color
    alpha = pixels[-1:]
    return color * alpha + pixels.new_tensor(background).view(3, 1, 1) / 255 * (1 - alpha)


# Resizing


def check_interpolation(name: str) -> None:
    """Refuse a name that is not one of `RESAMPLE`: ValueError."""
    if name not in RESAMPLE:
        raise ValueError(f"unknown interpolation {name!r}: choose one of {', '.join(RESAMPLE)}")


def resize_antialiased(x: Tensor, size: Sides, interpolation: str) -> Tensor:
    """Resize (B, C, H, W), of any range of values, to (B, C, *size); differentiable, computed in float32 or better.

    Returns the type of x on its device.
    """
    import torch
    import torch.nn.functional as F

    # CPUs lack the kernels for 16-bit floats, and MPS lacks them all in some versions of torch
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.device.type == "mps":
        wide = wide.cpu()
    resized = F.interpolate(wide, tuple(size), mode=interpolation, align_corners=False, antialias=True)
    return resized.to(x.device, x.dtype)


def resize_pixels(pixels: Tensor, size: Sides, interpolation: str = "bicubic") -> Tensor:
    """Resize (B, C, H, W) to (B, C, *size) with antialiasing, clamped to [0, 1]; differentiable.

    float64 stays float64; other types are computed and returned in float32. At the right size nothing changes.
    """
    check_interpolation(interpolation)
    if str(pixels.dtype) != "torch.float64":
        pixels = pixels.float()
    if pixels.shape[-2:] == tuple(size):
        return pixels
    return resize_antialiased(pixels, size, interpolation).clamp(0, 1)  # bicubic interpolation overshoots at edges


def average_to(cover: Tensor, size: Sides) -> Tensor:
    """Coverage (..., H, W) averaged to (..., *size), so that values are exact fractions of area; differentiable."""
    if cover.shape[-2:] == tuple(size):
        return cover
    narrow = _averaged_last_axis(cover, size[1])
    small = _averaged_last_axis(narrow.mT, size[0]).mT.contiguous()
    return small.clamp(0, 1).to(cover.dtype)


def _averaged_last_axis(x: Tensor, count: int) -> Tensor:
    """Means over `count` equal stretches of the last axis, ends counted by the fraction they cover; in float64."""
    import torch

    dtype = torch.float32 if x.device.type == "mps" else torch.float64
    length = x.shape[-1]
    edges = torch.arange(count + 1, dtype=dtype, device=x.device) * length / count
    last_pixel = edges.long().clamp(max=length - 1)

    means = []
    for rows in torch.split(x, 256, dim=-2):  # in parts, as sums take 8 bytes a pixel
        # the sum up to each edge: of whole pixels, less what of the last one lies beyond the edge
        whole = rows.cumsum(-1, dtype=dtype)[..., last_pixel]
        sums = whole + (edges - last_pixel - 1) * rows[..., last_pixel]
        means.append(sums.diff(dim=-1) * (count / length))
    return torch.cat(means, dim=-2)


# Ways to bring an image of any shape to a model's input size: squash it, or crop its center

Resize = Literal["squash", "crop", "hub-crop"]
CROPS = ("crop", "hub-crop")
_LEAST_SHARE = 0.1  # of crop_pct


@dataclass(frozen=True)
class Fit:
    """How an image is brought to a model's input size.

    Args:
        resize: "squash" changes both sides to the size, whatever the shape. "crop" resizes the shorter side to
            size / crop_pct and cuts out the center, as torchvision's Resize and CenterCrop do. "hub-crop" does the same
            as the image processors of transformers, which round the corner of the center down.
        crop_pct: share of the shorter side that a crop keeps, 0.1 to 1.

    Raises:
        ValueError: for another `resize`, or a share out of range.
    """

    resize: Resize = "squash"
    crop_pct: float = 1.0

    def __post_init__(self) -> None:
        names = get_args(Resize)
        if self.resize not in names or not _LEAST_SHARE <= self.crop_pct <= 1:
            shares = f"crop_pct from {_LEAST_SHARE} to 1"
            raise ValueError(f"no resize {self.resize!r} by {self.crop_pct}: choose {', '.join(names)}, and {shares}")

    def __str__(self) -> str:
        return f"{self.resize} {self.crop_pct:g}" if self.resize in CROPS else self.resize

    def image(self, image: Image.Image, size: Sides, interpolation: str) -> Image.Image:
        """An RGB image at `size` (height, width), resized by Pillow."""
        (height, width), (top, left) = self.plan((image.height, image.width), size)
        if image.size != (width, height):
            image = image.resize((width, height), RESAMPLE[interpolation])
        if (height, width) == tuple(size):
            return image
        return image.crop((left, top, left + size[1], top + size[0]))

    def pixels(self, pixels: Tensor, size: Sides, interpolation: str) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at `size`, differentiably; at that size they stay, so none is cropped twice."""
        if pixels.shape[-2:] == tuple(size):
            return resize_pixels(pixels, size, interpolation)
        planned, corner = self.plan(pixels.shape[-2:], size)
        return _window(resize_pixels(pixels, planned, interpolation), corner, size)

    def cover(self, cover: Tensor, size: Sides, floats: bool) -> Tensor:
        """Coverage (..., H, W) by a mask, averaged to `size`.

        Args:
            floats: whether the image was given as float pixels, which stay as they are at that size (see `pixels`).
        """
        if floats and cover.shape[-2:] == tuple(size):
            return cover
        planned, corner = self.plan(cover.shape[-2:], size)
        return _window(average_to(cover, planned), corner, size)

    def plan(self, sides: Sequence[int], size: Sides) -> tuple[Sides, Sides]:
        """The size to resize an image of these sides to, and the top left corner in it of the part that is seen."""
        if self.resize == "squash":
            return size, (0, 0)
        height, width = sides
        shorter = math.floor(min(size) / self.crop_pct)
        longer = int(shorter * max(height, width) / min(height, width))  # as torchvision and transformers round
        planned = (shorter, longer) if height <= width else (longer, shorter)

        # half of what is cut off
        cut_y = planned[0] - size[0]
        cut_x = planned[1] - size[1]
        if self.resize == "hub-crop":
            return planned, (cut_y // 2, cut_x // 2)
        return planned, (round(cut_y / 2), round(cut_x / 2))


SQUASH = Fit()


def _window(x: Tensor, corner: Sides, size: Sides) -> Tensor:
    """The part of (..., H, W) with this top left corner and size."""
    top, left = corner
    return x[..., top : top + size[0], left : left + size[1]]


# From any image to RGB, and to pixels


def read_image(
    source: ImageLike, *, background: Color = WHITE, preprocessing: Preprocessing = "standard"
) -> Image.Image:
    """Read one image as 8-bit RGB, as a new PIL image that holds no file open.

    Where a file had an EXIF orientation, the result's `info["stored_orientation"]` keeps it, so that a mask of the
    stored pixels can be turned the same way.

    Of an animation or multi-page file the first frame is used, with a `MultiFrameWarning`; a PIL image is used at the
    frame where it stands. The preview in a phone's MPO photo and the layers of a PSD do not count as frames.

    Images of more than `MAX_PIXELS` are refused before they are decoded. Pillow's own `Image.MAX_IMAGE_PIXELS` also
    holds: a warning at that size, an error at twice that.

    Args:
        source: path, bytes, binary file object, PIL image, array or tensor (see `ImageLike`). Integers of more than 8
            bits span 0-65535 (values of 8, 10 or 12 bits are refused), float images (mode F) 0-1.
        background: RGB color, 0-255, behind transparent pixels.
        preprocessing: "release" reads files and PIL images as ID-Sim's and NearID's releases do, by
            `image.convert("RGB")`: EXIF orientation is ignored, alpha and transparent palette entries are dropped (the
            colors stored under them show), and the installed Pillow decides how 16-bit values are converted. Floats
            are read as usual.

    Raises:
        ImageReadError: if it is missing, empty, unreadable, truncated, too large, out of range, or no image.
        TypeError: for an object of another kind.
    """
    picture = read_picture(source, background=background, preprocessing=preprocessing)
    return image_of_pixels(picture) if is_tensor(picture) else picture


def read_picture(source: ImageLike, *, background: Color = WHITE, preprocessing: Preprocessing = "standard") -> Picture:
    """As `read_image`; but float tensors and arrays become float pixels (3, H, W), tensors with their graph."""
    with naming(source):
        if is_array(source) and is_float(source):
            return float_pixels(source, background)
        if preprocessing == "release":
            image = open_image(source, upright=False)
            rgb = image.convert("RGB")
        else:
            image = open_image(source)
            rgb = _on_background(image, background)
            if isinstance(source, Image.Image):
                rgb = rgb.copy()
    rgb.info = {STORED: stored_orientation(image)}  # no EXIF block, or it would be turned later
    rgb.filename = describe(source)  # type: ignore[attr-defined]  # as of files that Pillow opens
    return rgb


def _on_background(image: Image.Image, background: Color) -> Image.Image:
    """An image of any mode as RGB, its transparent parts on the background; itself, if it is that already."""
    if image.mode == "F":
        return image_of_pixels(float_pixels(np.asarray(image), background))
    rgb = image
    if image.mode.startswith("I"):
        rgb = Image.fromarray(_eight_bit(np.asarray(image)))
    if rgb.has_transparency_data:
        front = rgb.convert("RGBA")
        back = Image.new("RGBA", front.size, (*background, 255))
        rgb = Image.alpha_composite(back, front)
    return rgb if rgb.mode == "RGB" else rgb.convert("RGB")


def to_pixels(
    source: ImageLike,
    size: Size | None = None,
    *,
    background: Color = WHITE,
    interpolation: str = "bicubic",
    preprocessing: Preprocessing = "standard",
    fit: Fit = SQUASH,
) -> Tensor:
    """One image as pixels of shape (3, height, width), float in [0, 1].

    Args:
        source, background, preprocessing: as for `read_image`. Float tensors stay on their device and keep their graph;
            float64 tensors stay float64, everything else becomes float32.
        size, interpolation, fit: as for `picture_pixels`.

    Raises:
        ImageReadError: as `read_image`. ValueError: for an unknown interpolation.
    """
    picture = read_picture(source, background=background, preprocessing=preprocessing)
    return picture_pixels(picture, size, interpolation=interpolation, fit=fit)


def picture_pixels(picture: Picture, size: Size | None, *, interpolation: str = "bicubic", fit: Fit = SQUASH) -> Tensor:
    """Pixels (3, height, width) in [0, 1] of what `read_picture` gave.

    Args:
        size: (height, width) of the result, or a function from the image's own to it, or None to keep those.
        interpolation: "bicubic", "bilinear" or "lanczos", antialiased (lanczos of floats needs a recent torch).
        fit: whether an image of another shape is squashed or cropped. Floats that have the right size already stay as
            they are.
    """
    import torch

    check_interpolation(interpolation)
    with naming(picture):
        height, width = picture.shape[1:] if is_tensor(picture) else (picture.height, picture.width)
        target = size(height, width) if callable(size) else size or (height, width)
        if is_tensor(picture):
            return fit.pixels(picture[None], target, interpolation)[0]
        array = torch.from_numpy(np.array(fit.image(picture, target, interpolation)))
        return array.permute(2, 0, 1).contiguous().float().div_(255)


def small_picture(picture: Image.Image) -> NDArray[np.uint8]:
    """Resize a picture to (SIZE, SIZE, 3) for the search of copies; large ones by averages of blocks first.

    Averages to twice the size or more take a third of the time. Values of photos differ by 0.4 of 255 in the mean.
    """
    small = picture.resize((SIZE, SIZE), RESAMPLE["lanczos"], reducing_gap=2.0)
    return np.asarray(small)
