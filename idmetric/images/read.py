"""Images of any kind to RGB pixels in [0, 1]; masks are read by `idmetric.images.masks`.

Files and 8-bit images are resized by Pillow on 8-bit values (as torchvision's `Resize` does with PIL images); float
tensors and arrays by torch's antialiased interpolation, differentiably. The two agree to well under 1/255 on photos.

EXIF orientation is applied, transparency is composited on a background (white by default), 16-bit values are
scaled rather than clipped; `preprocessing="release"` does none of this (see `released_rgb`). ICC profiles are not
applied. Addresses (URLs) are not fetched. No process-wide setting of Pillow is read or changed, beyond what Pillow
itself enforces.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from idmetric.images import paths as inputs
from idmetric.images import resize as compiled_resize
from idmetric.io.extensions import IMAGE_FORMATS

# str: a path; where several images are asked for, also a folder or a pattern (`images.paths`). File objects are
# read from where they stand to their end, and left open.
# Arrays: (H, W) or (H, W, C), tensors: (C, H, W), with C = 1, 2 (grey and alpha), 3 or 4; bool, uint8, uint16, or
# floats in [0, 1]. Where several images are asked for, tensors (B, C, H, W) and arrays (B, H, W, C) count as B images.
ImageLike = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | NDArray[Any] | Tensor
Colour = tuple[int, int, int]
Outside = Literal["black", "white", "crop", "keep"]  # what becomes of the pixels outside a mask
Preprocessing = Literal["standard", "release"]  # how files and PIL images become RGB: as above, or by `released_rgb`

WHITE: Colour = (255, 255, 255)
# Where Pillow by default refuses to open an image; about 13,000 x 13,000 pixels, 0.5 GB once decoded.
MAX_PIXELS = 178_956_970
STORED = "stored_orientation"  # in a decoded image's `info`: the EXIF orientation that its file was stored in
_RLE_PIXELS = 4_000_000  # at most, of a BMP that Pillow decodes in Python
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # brands in a file's first bytes
_COUNTED = 1000  # pages of a TIFF
SLACK = 1e-4  # float rounding beyond [0, 1] that is not worth an error
_RESAMPLE = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters: C:// is a path


class ImageReadError(ValueError):
    """An image that cannot be used. `source` names it, `reason` says why and what to do."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"cannot read image {source}: {reason}")
        self.source = source
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:  # so that data-loader workers can send it
        return type(self), (self.source, self.reason)


class MultiFrameWarning(UserWarning):
    """A file holds several frames, and only its first is used."""


def describe(source: Any) -> str:
    """A short name of an image for messages: its path, or its kind and size."""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"<bytes, {len(source)} bytes>"
    if isinstance(source, Tensor | np.ndarray):
        kind = "tensor" if isinstance(source, Tensor) else "array"
        shape, dtype = ",".join(map(str, source.shape)), str(source.dtype).removeprefix("torch.")
        return f"<{kind} ({shape}) {dtype}>"
    anonymous = f"<{type(source).__name__}>"
    if isinstance(source, Image.Image):
        anonymous = f"<PIL image {source.width}x{source.height} {source.mode}>"
        name = getattr(source, "filename", "")  # set on images opened from a path
    elif isinstance(source, str | os.PathLike):
        name = os.fspath(source) or "''"
    else:
        name = getattr(source, "name", "")
    if not isinstance(name, str) or not name:
        return anonymous
    return name if len(name) <= 1000 else name[:80] + "..."  # such as the text of a data: address


def read_image(
    source: ImageLike,
    *,
    background: Colour = WHITE,
    max_pixels: int = MAX_PIXELS,
    preprocessing: Preprocessing = "standard",
) -> Image.Image:
    """Read one image as 8-bit RGB, as a new PIL image that holds no file open.

    Formats are those of `idmetric.io.extensions.IMAGE_FORMATS`. Where a file had an EXIF orientation, the result's
    `info["stored_orientation"]` keeps it, so that a mask of the stored pixels can be turned the same way.

    Of an animation or multi-page file the first frame is used, with a `MultiFrameWarning`; a PIL image is used at the
    frame where it stands. The preview in a phone's MPO photo and the layers of a PSD do not count as frames.

    Args:
        source: path, bytes, binary file object, PIL image, array or tensor (see `ImageLike`). 16-bit and 32-bit
            integer images span 0-65535, float images (mode F) 0-1.
        background: RGB colour, 0-255, behind transparent pixels.
        max_pixels: files and PIL images with more are refused before they are decoded. Pillow's own
            `Image.MAX_IMAGE_PIXELS` also holds: a warning at that size, an error at twice that.
        preprocessing: "release" reads files and PIL images by `released_rgb`; float tensors and arrays are read alike.

    Raises:
        ImageReadError: if it is missing, empty, unreadable, truncated, too large, out of range, or no image.
        TypeError: for an object of another kind.
    """
    image = _rgb(source, background, max_pixels, preprocessing)
    return image.copy() if image is source else image


def released_rgb(image: Image.Image, name: str | None = None) -> Image.Image:
    """An image as ID-Sim's and NearID's releases read it: `image.convert("RGB")` and nothing else.

    EXIF orientation is ignored, alpha and transparent palette entries are dropped (the colours stored under them show),
    and 16-bit values become what the installed Pillow makes of them.

    Raises:
        ImageReadError: if Pillow cannot convert this mode.
    """
    found = convert(image, "RGB", name or describe(image))
    found = found.copy() if found is image else found
    found.info = {}  # or its EXIF block would have it turned later
    return found


def to_pixels(
    source: ImageLike,
    size: tuple[int, int] | Callable[[int, int], tuple[int, int]] | None,
    *,
    background: Colour = WHITE,
    interpolation: str = "bicubic",
    max_pixels: int = MAX_PIXELS,
    preprocessing: Preprocessing = "standard",
) -> Tensor:
    """One image as pixels of shape (3, height, width), float in [0, 1].

    Args:
        source: as for `read_image`. Tensors stay on their device, and float tensors keep their graph; float64 tensors
            stay float64, everything else becomes float32.
        size: (height, width) to squash to (no crop), or a function from the image's own to it, or None to keep those.
        background, max_pixels, preprocessing: as for `read_image`.
        interpolation: "bicubic", "bilinear" or "lanczos", antialiased (lanczos of floats needs a recent torch).

    Raises:
        ImageReadError: as `read_image`.
        ValueError: for an unknown interpolation.
    """
    _check_interpolation(interpolation)
    if isinstance(source, Tensor | np.ndarray) and is_float(source):
        pixels = float_pixels(source, describe(source), background)
        size = _choose(size, pixels.shape[1], pixels.shape[2], describe(source))
        return pixels if size is None else resize_pixels(pixels[None], size, interpolation)[0]
    image = _rgb(source, background, max_pixels, preprocessing)
    size = _choose(size, image.height, image.width, describe(source))
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), _RESAMPLE[interpolation])
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
    return pixels.to(source.device) if isinstance(source, Tensor) else pixels


def load_batch(
    images: ImageLike | Iterable[ImageLike],
    size: tuple[int, int],
    *,
    background: Colour = WHITE,
    interpolation: str = "bicubic",
    max_pixels: int = MAX_PIXELS,
    device: torch.device | str | None = None,
    preprocessing: Preprocessing = "standard",
) -> Tensor:
    """Images of any kinds, mixed, as one batch (B, 3, height, width); arguments as for `to_pixels`.

    float32, or float64 where a float64 tensor is among them. Without `device`, the batch is where the first tensor
    off the CPU is, else on the CPU. The graph of float tensors is kept.

    Raises:
        ImageReadError: naming the image that cannot be read.
        TypeError: as `split_images`.
        ValueError: if there are no images.
    """
    _check_interpolation(interpolation)
    if isinstance(images, Tensor) and images.ndim == 4 and len(images) and images.is_floating_point():
        name = describe(images)
        _single(images[:1], name)
        check_pixels(images, name)
        return place(resize_pixels(_composite(images, background), size, interpolation), device)
    singles = split_images(images)
    if not singles:
        raise ValueError("no images given: the list is empty")
    parts = [
        to_pixels(
            one, size, background=background, interpolation=interpolation, max_pixels=max_pixels,
            preprocessing=preprocessing,
        )
        for one in singles
    ]  # fmt: skip
    if device is None:
        device = next((part.device for part in parts if part.device.type != "cpu"), None)
    dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    return torch.stack([place(part.to(dtype), device) for part in parts])


def split_images(images: ImageLike | Iterable[ImageLike]) -> list[ImageLike]:
    """One image, a batch (tensor BCHW, array BHWC) or an iterable of these, as a flat list of single images.

    A folder or a pattern is the list of its images, see `idmetric.images.paths.listed`.

    Raises:
        ImageReadError: for a folder or pattern that names no image.
        TypeError: for lists within lists, and for other objects.
    """
    if isinstance(images, Tensor | np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if inputs.names_several(images):
        try:
            return list(inputs.listed(images))  # type: ignore[arg-type]  # a path, then
        except inputs.InputError as error:
            raise ImageReadError(error.source, error.reason) from error
    if _is_image(images):
        return [images]  # type: ignore[list-item]  # _is_image says so
    if not isinstance(images, Iterable):
        raise TypeError(f"{type(images).__name__} is not an image: give a path, bytes, PIL image, array or tensor")
    singles: list[ImageLike] = []
    for one in images:
        if not _is_image(one):
            raise TypeError(f"a list of images may not hold a {type(one).__name__}: give one flat list of images")
        singles += split_images(one)  # type: ignore[arg-type]  # _is_image says so
    return singles


def is_single(images: Any) -> bool:
    """Whether this is one image, not a batch, a list, a folder or a pattern of them (which may hold one)."""
    if isinstance(images, Tensor | np.ndarray):
        return images.ndim < 4
    return _is_image(images) and not inputs.names_several(images)


def check_pixels(pixels: Tensor, name: str | None = None) -> None:
    """Check that float pixels of any shape lie in [0, 1], up to 1e-4 of rounding; the graph is left alone.

    Raises:
        ImageReadError: with the range found and the usual remedy.
    """
    name = name or describe(pixels)
    if not pixels.numel():
        raise ImageReadError(name, "it has no pixels")
    values = pixels.detach()
    values = values if values.dtype == torch.float64 else values.float()  # 8-bit floats know no aminmax
    low, high = torch.stack(torch.aminmax(values)).tolist()
    if low >= -SLACK and high <= 1 + SLACK:  # NaN fails this
        return
    if not np.isfinite([low, high]).all():
        advice = "find where NaN or infinity came from"
    elif low < -SLACK:
        advice = "(x + 1) / 2 maps [-1, 1] there; clamp what merely overshoots"
        if low < -1 - SLACK or high > 1.5:
            advice = "undo the normalisation (x * std + mean)"
    elif high > 2:
        advice = f"divide by {65535 if high > 255 else 255}"
    else:
        advice = "clamp what overshoots"
    raise ImageReadError(name, f"float pixels must lie in [0, 1], found [{low:.4g}, {high:.4g}]: {advice}")


def resize_pixels(pixels: Tensor, size: tuple[int, int], interpolation: str = "bicubic") -> Tensor:
    """Resize (B, C, H, W) to (B, C, *size) with antialiasing, clamped to [0, 1]; differentiable.

    float64 stays float64; other types are computed and returned in float32. At the right size nothing changes.
    """
    _check_interpolation(interpolation)
    pixels = pixels if pixels.dtype == torch.float64 else pixels.float()
    if pixels.shape[-2:] == tuple(size):
        return pixels
    if size[1] == 1 < size[0]:  # torch's CPU kernel gets one column wrong (seen in 2.15), but not one row
        return resize_pixels(pixels.mT, (1, size[0]), interpolation).mT
    # MPS lacks the antialiased kernels in some versions of torch
    x = pixels.cpu() if pixels.device.type == "mps" else pixels
    if torch.compiler.is_compiling():
        x = compiled_resize.resize(x, *size, interpolation)
    else:
        x = F.interpolate(x, tuple(size), mode=interpolation, align_corners=False, antialias=True)
    return x.to(pixels.device).clamp(0, 1)  # bicubic interpolation overshoots at edges


def place(pixels: Tensor, device: torch.device | str | None) -> Tensor:
    """Move to a device; MPS has no float64, so it becomes float32 there."""
    if device is not None and torch.device(device).type == "mps":
        pixels = pixels.float()  # MPS has no float64
    return pixels.to(device)


def _choose(
    size: tuple[int, int] | Callable[[int, int], tuple[int, int]] | None, height: int, width: int, name: str
) -> tuple[int, int] | None:
    try:
        return size(height, width) if callable(size) else size
    except ValueError as error:
        raise ImageReadError(name, str(error)) from error


# Opening


def _is_image(x: Any) -> bool:
    if isinstance(x, str | os.PathLike | bytes | bytearray | memoryview | Image.Image | np.ndarray | Tensor):
        return True
    return hasattr(x, "read")


def _check_interpolation(name: str) -> None:
    if name not in _RESAMPLE:
        raise ValueError(f"unknown interpolation {name!r}: choose one of {', '.join(_RESAMPLE)}")


def open_image(source: ImageLike, max_pixels: int = MAX_PIXELS, upright: bool = True) -> Image.Image:
    """The image decoded, upright and in its own mode: the caller's own object where nothing had to be done to it.

    Args:
        source, max_pixels: as for `read_image`.
        upright: whether to turn it by its EXIF orientation.

    Raises:
        ImageReadError: as `read_image`.
    """
    name = describe(source)
    if isinstance(source, Tensor | np.ndarray):
        return _from_array(source, name)
    if isinstance(source, Image.Image):
        if source.format not in (None, *IMAGE_FORMATS) and getattr(source, "tile", None):  # not decoded yet
            raise ImageReadError(name, _refused(str(source.format)))
        return _decode(source, name, max_pixels, upright)
    file = _file(source, name)
    try:
        with open_file(file) as image:
            return _decode(image, name, max_pixels, upright)
    except (ImageReadError, MultiFrameWarning):  # a warning where filters make it an error
        raise
    except Exception as error:  # plugins raise many kinds of error on damaged headers
        other = _other_format(file) if isinstance(error, UnidentifiedImageError) else None
        raise ImageReadError(name, _refused(other) if other else _explain(error)) from error


def open_file(file: BinaryIO | str | os.PathLike[str]) -> Image.Image:
    """Pillow's `Image.open` for the formats of `IMAGE_FORMATS` alone; it reads only the file's head."""
    Image.init()  # once a process; HEIF is there if its plugin was registered
    return Image.open(file, formats=[one for one in IMAGE_FORMATS if one in Image.OPEN])


def _other_format(file: BinaryIO | str) -> str | None:
    """The format, outside of `IMAGE_FORMATS`, that a file's first bytes announce."""
    try:
        if isinstance(file, str):
            with open(file, "rb") as opened:
                head = opened.read(16)
        else:
            file.seek(0)
            head = file.read(16)
        if head[4:8] == b"ftyp" and head[8:12] in _HEIF and "HEIF" not in Image.OPEN:
            return "HEIF"
        for name, (_, accept) in Image.OPEN.items():
            if name not in IMAGE_FORMATS and accept is not None and accept(head) is True:
                return name
    except Exception:  # a plugin's test of so few bytes
        return None
    return None


def _refused(kind: str) -> str:
    if kind == "HEIF":
        return (
            "it is a HEIC photo, for which Pillow needs a plugin: pip install pillow-heif, then in Python import "
            "pillow_heif; pillow_heif.register_heif_opener(); for the shell save it as JPEG or PNG"
        )
    return (
        f"{kind} files are not read: some formats take minutes to decode or run another program; save it as PNG "
        f"(formats that are read: {', '.join(IMAGE_FORMATS)})"
    )


def _file(source: Any, name: str) -> BinaryIO | str:
    """What Pillow can open: an existing file's path, or bytes in memory."""
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if isinstance(source, str) and _ADDRESS.match(source):
            raise ImageReadError(name, "addresses (URLs) are not fetched: download it and give the file's path")
        if not os.path.exists(path):
            raise ImageReadError(name, "there is no such file: check the path and the working directory")
        if os.path.isdir(path):
            raise ImageReadError(name, "it is a folder: give the image files in it")
        if not os.path.isfile(path):  # opening one may wait for ever
            raise ImageReadError(name, "it is a pipe or a device: give a file, or its bytes")
        if os.path.getsize(path) == 0:
            raise ImageReadError(name, "the file is empty: fetch or write it again")
        return path
    if isinstance(source, bytes | bytearray | memoryview):
        data: Any = bytes(source)
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
        raise ImageReadError(name, "it is empty: a file object already read needs seek(0)")
    return io.BytesIO(data)


def _decode(image: Image.Image, name: str, max_pixels: int, upright: bool) -> Image.Image:
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageReadError(name, f"it has no pixels ({width} x {height})")
    if width * height > max_pixels:
        advice = "make it smaller, or raise max_pixels if you trust it"
        raise ImageReadError(name, f"{width} x {height} pixels are more than the {max_pixels} allowed: {advice}")
    if image.format == "BMP" and width * height > _RLE_PIXELS and any(t[0] == "bmp_rle" for t in image.tile):  # type: ignore[attr-defined]  # of an open file
        raise ImageReadError(
            name, f"run-length coded BMP of {width} x {height} pixels decodes too slowly: save it as PNG"
        )
    frames, depth, stored = 1, _key_depth(image), None
    try:
        if image.format == "TIFF":  # Pillow turns these when it loads them, and removes the tag
            stored = _orientation(image)
        if image.format not in ("MPO", "PSD") and image.tell() == 0:
            frames = _frames(image)
        image.load()
    except Exception as error:  # a truncated file raises OSError, SyntaxError, struct.error, ... by format
        raise ImageReadError(name, _explain(error)) from error
    if frames > 1:
        count = f"{frames} frames" if frames < _COUNTED else f"{_COUNTED} frames or more"
        message = f"{name} has {count}: only the first is used (open it with Pillow and seek for another)"
        warnings.warn(message, MultiFrameWarning, stacklevel=5)
    if not upright:
        return image
    try:
        stored = stored or _orientation(image)
        turned = image if type(image) is Image.Image and stored is None else ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block must not lose a good image
        warnings.warn(f"{name} has an unreadable EXIF block: its orientation is not applied", stacklevel=5)
        turned = image.copy()
    if stored is not None:
        turned.info[STORED] = stored
    key = turned.info.get("transparency")
    if depth is not None and isinstance(key, int | tuple):
        values = key if isinstance(key, tuple) else (key,)
        values = tuple(min(255, k * 255 // (2**depth - 1)) for k in values)  # some versions bring 1 bit to 255
        turned.info["transparency"] = values if isinstance(key, tuple) else values[0]
    return turned


def _orientation(image: Image.Image) -> int | None:
    """EXIF's orientation, 1 to 8; None without one."""
    value = image.getexif().get(ExifTags.Base.Orientation)
    return value if value in range(1, 9) else None


def _frames(image: Image.Image) -> int:
    """How many frames there are; a TIFF's are counted up to a limit, for Pillow's time grows with their square."""
    if image.format != "TIFF":
        return int(getattr(image, "n_frames", 1))
    count = 1
    with contextlib.suppress(EOFError):
        while count < _COUNTED:
            image.seek(count)
            count += 1
    image.seek(0)
    return count


def _key_depth(image: Image.Image) -> int | None:
    """Bits of a PNG's transparent value, where Pillow brings the pixels to 8 bits but not that value."""
    tiles = getattr(image, "tile", None)
    if image.format != "PNG" or not tiles:
        return None
    return {"1": 1, "L;2": 2, "L;4": 4, "RGB;16B": 16}.get(str(tiles[0][3]))


def _explain(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"too many pixels ({error}): make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
    if isinstance(error, MemoryError):
        return "its pixels do not fit in memory: make it smaller, or lower max_pixels to refuse such images"
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image of a known format, or its header is damaged: open and save it again elsewhere"
    if isinstance(error, PermissionError):
        return "there is no permission to read it: change the file's mode or owner"
    return f"it is damaged or cut short ({error or type(error).__name__}): fetch or write it again"


# Converting


def _rgb(source: ImageLike, background: Colour, max_pixels: int, preprocessing: Preprocessing) -> Image.Image:
    """As `read_image`, but maybe the caller's own object."""
    name = describe(source)
    if isinstance(source, Tensor | np.ndarray) and is_float(source):
        return _from_pixels(float_pixels(source, name, background))
    image = open_image(source, max_pixels, upright=preprocessing == "standard")
    if preprocessing == "release":
        return released_rgb(image, name)
    stored = image.info.get(STORED)
    if image.mode == "F":
        found = _from_pixels(float_pixels(np.asarray(image), name, background))
    else:
        image = eight_bit(image, name)
        if has_alpha(image):
            front = convert(image, "RGBA", name)
            image = Image.alpha_composite(Image.new("RGBA", front.size, (*background, 255)), front)
        found = convert(image, "RGB", name)
    if stored is not None:
        found.info[STORED] = stored
    return found


def is_float(x: Tensor | NDArray[Any]) -> bool:
    return x.is_floating_point() if isinstance(x, Tensor) else x.dtype.kind == "f"


def _single(source: Any, name: str) -> Any:
    """One image with three axes: (C, H, W) of a tensor, (H, W, C) of an array, 1 to 4 channels."""
    is_tensor = isinstance(source, Tensor)
    if isinstance(source, np.ma.MaskedArray) and (hidden := int(np.ma.getmaskarray(source).sum())):
        advice = "fill them first, array.filled(255), and give mask=~array.mask[..., 0] to look at the rest alone"
        raise ImageReadError(name, f"{hidden} values of this masked array are masked out: {advice}")
    x = source[0] if source.ndim == 4 and len(source) == 1 else source
    if x.ndim == 2:
        x = x[None] if is_tensor else x[..., None]
    if x.ndim != 3 or x.shape[0 if is_tensor else 2] not in (1, 2, 3, 4):
        layout = "tensor has shape (C, H, W)" if is_tensor else "array has shape (H, W) or (H, W, C)"
        raise ImageReadError(name, f"one image's {layout} with 1 to 4 channels: permute it, or index a batch")
    if 0 in x.shape:
        raise ImageReadError(name, "it has no pixels")
    return x


def channels_last(source: Tensor | NDArray[Any], name: str) -> NDArray[Any]:
    """A copy of one image as an array (H, W, C) in the machine's byte order; floats become float32."""
    x = _single(source, name)
    if isinstance(x, Tensor):
        x = x.detach().permute(1, 2, 0).cpu()
        x = (x.float() if x.is_floating_point() else x).numpy()  # numpy has no bfloat16
    if x.dtype.kind not in "biuf":
        raise ImageReadError(name, f"pixels of type {x.dtype} are not understood: use integers, or floats in [0, 1]")
    array: NDArray[Any] = x.astype(np.float32 if x.dtype.kind == "f" else x.dtype.newbyteorder("="))
    return array


def _from_array(source: Tensor | NDArray[Any], name: str) -> Image.Image:
    array = channels_last(source, name)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif array.dtype == np.uint16:
        array = _scale16(array)
    elif array.dtype != np.uint8:
        advice = "use uint8, uint16, bool, or floats in [0, 1]"
        raise ImageReadError(name, f"pixels of type {array.dtype} are not understood: {advice}")
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[array.shape[2]]
    return Image.frombytes(mode, (array.shape[1], array.shape[0]), array.tobytes())


def _from_pixels(pixels: Tensor) -> Image.Image:
    array = (pixels.detach().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(np.ascontiguousarray(array))


def float_pixels(source: Tensor | NDArray[Any], name: str, background: Colour) -> Tensor:
    """One float image as RGB (3, H, W); a tensor keeps its graph."""
    if isinstance(source, Tensor):
        x = _single(source, name)
    else:
        x = torch.from_numpy(channels_last(source, name)).permute(2, 0, 1)
    check_pixels(x, name)
    return _composite(x, background)


def _composite(x: Tensor, background: Colour) -> Tensor:
    """(..., C, H, W) to RGB (..., 3, H, W) over the background; float64 stays, other floats become float32."""
    x = x if x.dtype == torch.float64 else x.float()
    channels = x.shape[-3]
    colour = x[..., :3, :, :] if channels > 2 else x[..., :1, :, :].expand(*x.shape[:-3], 3, -1, -1)
    if channels in (1, 3):
        return colour
    alpha = x[..., -1:, :, :]
    behind = torch.tensor(background, dtype=x.dtype, device=x.device).view(3, 1, 1) / 255
    return colour * alpha + behind * (1 - alpha)


def _scale16(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.rint(array / 257).astype(np.uint8)  # 65535 = 257 * 255


def sixteen(image: Image.Image, name: str) -> NDArray[np.uint16]:
    """The values of an integer image (I, I;16, ...)."""
    array = np.asarray(image)
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 65535:
        raise ImageReadError(name, f"integer pixels must lie in [0, 65535], found [{low}, {high}]: rescale them")
    return array.astype(np.uint16)


def eight_bit(image: Image.Image, name: str) -> Image.Image:
    """Integer images as L, or LA where one value means transparent; others as they are."""
    if image.mode == "La":  # premultiplied grey converts to nothing else
        return image.convert("LA")
    if not image.mode.startswith("I"):
        return image
    values = sixteen(image, name)
    grey = Image.fromarray(_scale16(values))
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    return grey


def convert(image: Image.Image, mode: str, name: str) -> Image.Image:
    try:
        return image if image.mode == mode else image.convert(mode)
    except (OSError, TypeError, ValueError) as error:  # such as a transparency entry of the wrong kind
        raise ImageReadError(name, f"mode {image.mode} cannot be made {mode} ({error}): convert it first") from error


def has_alpha(image: Image.Image) -> bool:
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        return True
    return "transparency" in image.info and (image.mode in ("1", "L", "P", "RGB") or image.mode.startswith("I"))
