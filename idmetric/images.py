"""Images of any kind to RGB pixels in [0, 1], and masks to coverage in [0, 1].

Files and 8-bit images are resized by Pillow on 8-bit values (as torchvision's `Resize` does with PIL images); float
tensors by torch's antialiased interpolation, differentiably. The two agree to well under 1/255 on photos.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

ImageLike = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | NDArray[Any] | Tensor
Colour = tuple[int, int, int]

# Where Pillow itself refuses to open an image; about 13,000 x 13,000 pixels, 0.7 GB while it is decoded.
MAX_PIXELS = 178_956_970
_SLACK = 1e-4  # float rounding beyond [0, 1] that is not worth an error
_RESAMPLE = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


class ImageReadError(ValueError):
    """An image that cannot be used. `source` names it, `reason` says why and what to do."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"cannot read image {source}: {reason}")
        self.source = source
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.reason)


class MultiFrameWarning(UserWarning):
    """A file holds several frames, and only its first is used."""


def describe(source: Any) -> str:
    """A short name of an image for messages."""
    if isinstance(source, str | os.PathLike):
        return repr(os.fspath(source))
    if isinstance(source, bytes):
        return f"<{len(source)} bytes>"
    if isinstance(source, Tensor):
        return f"<tensor {tuple(source.shape)} {str(source.dtype).removeprefix('torch.')}>"
    if isinstance(source, np.ndarray):
        return f"<array {source.shape} {source.dtype}>"
    if isinstance(source, Image.Image):
        path = getattr(source, "filename", "")  # set on images opened from a path
        return repr(path) if path else f"<PIL image {source.size} {source.mode}>"
    name = getattr(source, "name", None)
    return repr(name) if isinstance(name, str) else f"<{type(source).__name__}>"


def read_image(source: ImageLike, *, background: Colour = (255, 255, 255), max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read one image as 8-bit RGB.

    EXIF orientation is applied. Transparency is composited on `background`. 16-bit images are scaled, not clipped. Of
    an animation or multi-page file the first frame is used, with a `MultiFrameWarning`.

    Args:
        source: path, bytes, binary file object (read from where it stands, left open), PIL image, array (H, W[, C])
            or tensor (C, H, W) with C in 1, 2 (grey and alpha), 3, 4; integers in uint8 or uint16, or floats in [0, 1].
        background: RGB colour, 0-255.
        max_pixels: larger images are refused before they are decoded.

    Raises:
        ImageReadError: if it is missing, empty, truncated, too large, or no image.
    """
    image = _open(source, max_pixels)
    name = describe(source)
    try:
        return _to_rgb(image, background, name)
    finally:
        if image is not source:
            image.close()


def to_pixels(
    source: ImageLike,
    size: tuple[int, int] | None,
    *,
    background: Colour = (255, 255, 255),
    interpolation: str = "bicubic",
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """One image as pixels of shape (3, height, width), float in [0, 1].

    Args:
        source: as for `read_image`. A float tensor keeps its graph and device; float64 stays float64, other floats
            become float32.
        size: (height, width) to squash to, or None to keep the image's own.
        background, max_pixels: as for `read_image`.
        interpolation: "bicubic" or "bilinear", antialiased.
    """
    if isinstance(source, Tensor | np.ndarray) and _is_float(source):
        pixels = _float_pixels(source, background)[None]
        return (pixels if size is None else resize_pixels(pixels, size, interpolation))[0]
    image = read_image(source, background=background, max_pixels=max_pixels)
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), _RESAMPLE[interpolation])
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


def load_batch(
    images: ImageLike | Sequence[ImageLike],
    size: tuple[int, int],
    *,
    background: Colour = (255, 255, 255),
    interpolation: str = "bicubic",
    max_pixels: int = MAX_PIXELS,
    device: torch.device | str | None = None,
) -> Tensor:
    """Images of any kinds, mixed, as one batch (B, 3, height, width) on `device`; arguments as for `to_pixels`.

    Raises:
        ImageReadError: naming the image that cannot be read.
        ValueError: if there are no images.
    """
    singles = split_images(images)
    if not singles:
        raise ValueError("no images given")
    pixels = [
        to_pixels(one, size, background=background, interpolation=interpolation, max_pixels=max_pixels).to(device)
        for one in singles
    ]
    dtype = torch.float64 if any(p.dtype == torch.float64 for p in pixels) else torch.float32
    return torch.stack([p.to(dtype) for p in pixels])


def split_images(images: ImageLike | Iterable[ImageLike]) -> list[ImageLike]:
    """One image, a batch (tensor BCHW, array BHWC) or an iterable of images, as a list of single images.

    Raises:
        TypeError: for lists within lists, and for what is no image.
    """
    if isinstance(images, Tensor | np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if _is_single(images):
        return [images]  # type: ignore[list-item]  # _is_single says so
    if not isinstance(images, Iterable):
        raise TypeError(f"{type(images).__name__} is not an image: give a path, PIL image, array, tensor or bytes")
    singles: list[ImageLike] = []
    for one in images:
        if not _is_single(one):
            raise TypeError(f"a list of images may not hold a {type(one).__name__}: give one flat list")
        if isinstance(one, Tensor | np.ndarray) and one.ndim == 4:
            if len(one) != 1:
                raise TypeError(f"a list of images may not hold the batch {describe(one)}: give one flat list")
            one = one[0]
        singles.append(one)  # type: ignore[arg-type]  # _is_single says so
    return singles


def check_pixels(pixels: Tensor, name: str | None = None) -> None:
    """Check float pixels for the range [0, 1].

    Raises:
        ImageReadError: with the range found and the usual remedy.
    """
    if not pixels.numel():
        raise ImageReadError(name or describe(pixels), "it has no pixels")
    low, high = (float(x) for x in torch.aminmax(pixels.detach()))
    if not (low >= -_SLACK and high <= 1 + _SLACK):  # so written that NaN fails
        if low != low or high != high:
            advice = "it holds NaN"
        elif high > 2:
            advice = "divide by 255 if these are 8-bit values"
        elif low < 0:
            advice = "use (x + 1) / 2 if the range is [-1, 1], or clamp a decoder's overshoot"
        else:
            advice = "clamp it"
        reason = f"float pixels must lie in [0, 1], found [{low:.4g}, {high:.4g}]: {advice}"
        raise ImageReadError(name or describe(pixels), reason)


def resize_pixels(pixels: Tensor, size: tuple[int, int], interpolation: str = "bicubic") -> Tensor:
    """Resize (B, C, H, W) to (B, C, *size) with antialiasing, clamped to [0, 1]; differentiable.

    float64 stays float64; other types are computed and returned in float32. At the right size nothing changes.
    """
    pixels = pixels if pixels.dtype == torch.float64 else pixels.float()
    if pixels.shape[-2:] == size:
        return pixels
    on_cpu = pixels.device.type == "mps"  # where the antialiased kernels are missing in some versions
    x = pixels.cpu() if on_cpu else pixels
    with torch.autocast(x.device.type, enabled=False):
        x = F.interpolate(x, size, mode=interpolation, align_corners=False, antialias=True)
    return x.to(pixels.device).clamp(0, 1)  # bicubic interpolation overshoots at edges


def read_mask(source: ImageLike, size: tuple[int, int] | None = None, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """A subject mask as coverage (height, width), float32 in [0, 1], 1 = subject.

    Args:
        source: as for `read_image`; tensors and arrays may be (H, W), (1, H, W) or bool. An image whose alpha channel
            varies is read by its alpha, others by their luminance. 8-bit masks of 0 and 1 count as 0 and 255.
        size: (height, width) to average down to, so that values are fractions of covered area; None keeps its own.

    Raises:
        ImageReadError: as `read_image`.
    """
    if isinstance(source, Tensor | np.ndarray):
        mask = _array_mask(source)
    else:
        image = _open(source, max_pixels)
        name = describe(source)
        try:
            mask = _image_mask(_upright(image, name))
        finally:
            if image is not source:
                image.close()
    if size is None or mask.shape == size:
        return mask
    return F.interpolate(mask[None, None], size, mode="area")[0, 0]


# Opening


def _is_single(x: Any) -> bool:
    return isinstance(x, str | os.PathLike | bytes | Image.Image | np.ndarray | Tensor) or hasattr(x, "read")


def _is_float(x: Tensor | NDArray[Any]) -> bool:
    return x.is_floating_point() if isinstance(x, Tensor) else bool(np.issubdtype(x.dtype, np.floating))


def _open(source: ImageLike, max_pixels: int) -> Image.Image:
    """A decoded PIL image, of any mode, orientation not yet applied; the same object for a PIL image."""
    name = describe(source)
    if isinstance(source, Tensor | np.ndarray):
        return _from_array(source, name)
    if isinstance(source, Image.Image):
        _check_size(source, name, max_pixels)
        return _decode(source, name)
    if isinstance(source, str) and "://" in source:
        raise ImageReadError(name, "addresses are not fetched: download the file first")
    file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    if isinstance(source, str | os.PathLike):
        _check_file(os.fspath(source), name)
    elif isinstance(source, bytes) and not source:
        raise ImageReadError(name, "it is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own bound is checked below
            image = Image.open(file)
    except UnidentifiedImageError as error:
        raise ImageReadError(name, "it is not an image of a known format, or its header is damaged") from error
    except Image.DecompressionBombError as error:
        raise ImageReadError(name, f"it claims too many pixels ({error}): make it smaller first") from error
    except Exception as error:  # plugins raise many kinds of error on damaged headers
        raise ImageReadError(name, f"{type(error).__name__}: {error}") from error
    try:
        _check_size(image, name, max_pixels)
        return _decode(image, name)
    except BaseException:
        image.close()
        raise


def _check_file(path: str, name: str) -> None:
    if not os.path.exists(path):
        raise ImageReadError(name, "there is no such file")
    if os.path.isdir(path):
        raise ImageReadError(name, "it is a folder: give its files")
    if os.path.getsize(path) == 0:
        raise ImageReadError(name, "the file is empty")


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageReadError(name, f"it has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise ImageReadError(
            name,
            f"{width} x {height} pixels are more than the {max_pixels} allowed: make it smaller, or raise max_pixels",
        )


def _decode(image: Image.Image, name: str) -> Image.Image:
    try:
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format != "MPO":  # MPO: an ordinary phone photo with a preview beside it
            message = f"{name} has {frames} frames: the first is used"
            warnings.warn(message, MultiFrameWarning, stacklevel=2)
            image.seek(0)
        image.load()
    except Exception as error:  # a truncated file raises OSError, SyntaxError, struct.error, ... by format
        raise ImageReadError(name, f"it is damaged or cut short ({error})") from error
    return image


def _from_array(source: Tensor | NDArray[Any], name: str) -> Image.Image:
    array = source.detach().cpu().numpy() if isinstance(source, Tensor) else source
    if isinstance(source, Tensor) and array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if isinstance(source, Tensor) and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 2, 3, 4):
        expected = "(C, H, W)" if isinstance(source, Tensor) else "(H, W, C)"
        raise ImageReadError(name, f"an image has shape {expected} with 1 to 4 channels")
    if 0 in array.shape:
        raise ImageReadError(name, "it has no pixels")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    elif array.dtype == np.uint16:
        array = _scale16(array)
    elif np.issubdtype(array.dtype, np.floating):
        check_pixels(torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)), name)
        array = np.rint(array.clip(0, 1) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ImageReadError(name, f"pixels of type {array.dtype} are not understood: use uint8, or floats in [0, 1]")
    modes = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
    array = np.ascontiguousarray(array[..., 0] if array.shape[-1] == 1 else array)
    height, width = array.shape[:2]
    return Image.frombytes(modes[1 if array.ndim == 2 else array.shape[-1]], (width, height), array.tobytes())


# Converting


def _scale16(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.rint(array.astype(np.float64) / 257).astype(np.uint8)  # 65535 = 257 * 255


def _upright(image: Image.Image, name: str) -> Image.Image:
    try:
        turned = ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block must not lose a good image
        warnings.warn(f"{name} has an unreadable EXIF block: its orientation is not applied", stacklevel=2)
        return image
    return image if turned is None else turned


def _to_rgb(image: Image.Image, background: Colour, name: str) -> Image.Image:
    image = _upright(image, name)
    if image.mode.startswith("I"):
        array = np.asarray(image)
        low, high = int(array.min()), int(array.max())
        if low < 0 or high > 65535:
            raise ImageReadError(name, f"integer pixels must lie in [0, 65535], found [{low}, {high}]")
        image = Image.fromarray(_scale16(array))
    elif image.mode == "F":
        array = np.asarray(image)
        check_pixels(torch.from_numpy(array.astype(np.float64)), name)
        image = Image.fromarray(np.rint(array.clip(0, 1) * 255).astype(np.uint8))
    try:
        if _has_alpha(image):
            front = image.convert("RGBA")
            back = Image.new("RGBA", front.size, (*background, 255))
            return Image.alpha_composite(back, front).convert("RGB")
        return image.copy() if image.mode == "RGB" else image.convert("RGB")
    except (OSError, ValueError) as error:
        raise ImageReadError(name, f"mode {image.mode} cannot be made RGB ({error})") from error


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _float_pixels(source: Tensor | NDArray[Any], background: Colour) -> Tensor:
    name = describe(source)
    if isinstance(source, Tensor):
        x = source[0] if source.ndim == 4 and source.shape[0] == 1 else source
        x = x[None] if x.ndim == 2 else x
    else:
        array = source[..., None] if source.ndim == 2 else source
        if array.ndim != 3:
            raise ImageReadError(name, "an image has shape (H, W) or (H, W, C)")
        x = torch.from_numpy(np.ascontiguousarray(array)).permute(2, 0, 1)
    if x.ndim != 3 or x.shape[0] not in (1, 2, 3, 4):
        expected = "(C, H, W)" if isinstance(source, Tensor) else "(H, W, C)"
        raise ImageReadError(name, f"an image has shape {expected} with 1 to 4 channels")
    check_pixels(x, name)
    x = x if x.dtype == torch.float64 else x.float()
    colour = x[:1].expand(3, -1, -1) if x.shape[0] < 3 else x[:3]
    if x.shape[0] in (2, 4):
        alpha = x[-1:]
        behind = torch.tensor(background, dtype=x.dtype, device=x.device).view(3, 1, 1) / 255
        return colour * alpha + behind * (1 - alpha)
    return colour


def _array_mask(source: Tensor | NDArray[Any]) -> Tensor:
    name = describe(source)
    mask = source.detach().cpu() if isinstance(source, Tensor) else torch.from_numpy(np.ascontiguousarray(source))
    mask = mask.squeeze(0) if isinstance(source, Tensor) and mask.ndim == 3 else mask
    mask = mask.squeeze(-1) if isinstance(source, np.ndarray) and mask.ndim == 3 else mask
    if mask.ndim != 2:
        raise ImageReadError(name, "a mask array has shape (H, W), or one channel more of size 1")
    if not mask.numel():
        raise ImageReadError(name, "the mask has no pixels")
    if mask.is_floating_point():
        check_pixels(mask, name)
        return mask.float().clamp(0, 1)
    if mask.dtype not in (torch.bool, torch.uint8):
        raise ImageReadError(
            name, f"a mask of type {mask.dtype} is not understood: use bool, uint8 or floats in [0, 1]"
        )
    return mask.float() / (255 if mask.dtype == torch.uint8 and int(mask.max()) > 1 else 1)


def _image_mask(image: Image.Image) -> Tensor:
    if _has_alpha(image):
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
        if alpha.min() != alpha.max():
            return _array_mask(alpha)
    if image.mode == "1":
        return _array_mask(np.asarray(image))
    if image.mode.startswith("I"):
        return _array_mask(_scale16(np.asarray(image).clip(0, 65535)))
    return _array_mask(np.asarray(image.convert("L")))
