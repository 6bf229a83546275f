"""Images of any kind to RGB pixels in [0, 1]; masks are read by `idmetric.metric.images.coverage`.

Files and 8-bit images are resized by Pillow on 8-bit values (as torchvision's `Resize` does with PIL images); float
tensors and arrays by torch's antialiased interpolation, differentiably. The two agree to well under 1/255 on photos.

EXIF orientation is applied, transparency is composited on a background (white by default), 16-bit values are
scaled rather than clipped; `preprocessing="release"` does none of this (see `released_rgb`). ICC profiles are not
applied. Addresses (URLs) are not fetched. Damaged files are refused whatever Pillow's `LOAD_TRUNCATED_IMAGES` says:
it is off while an image is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from PIL import Image

from idmetric.metric.errors import RequestError
from idmetric.metric.images import arrays
from idmetric.metric.images import paths as inputs
from idmetric.metric.images.arrays import convert, float_pixels, image_of_pixels, is_float
from idmetric.metric.images.fit import SQUASH, Fit
from idmetric.metric.images.kinds import (
    CUT,
    NAME,
    STORED,
    WHITE,
    Color,
    ImageLike,
    ImageName,
    ImageReadError,
    MultiFrameWarning,
    Outside,
    Preprocessing,
    Sides,
    check_interpolation,
    describe,
    holds_paths,
    is_array,
    is_image_like,
    is_tensor,
    naming,
    stored_orientation,
)
from idmetric.metric.images.opening import open_image

if TYPE_CHECKING:
    from torch import Tensor

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

    Formats are those of `images.opening.IMAGE_FORMATS`. Where a file had an EXIF orientation, the result's
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
            image = arrays.released_rgb(image)
            image.info[NAME] = ImageName(describe(source))
            return image

        # floats and 16-bit values
        orientation = stored_orientation(image)
        if image.mode == "F":
            image = image_of_pixels(float_pixels(np.asarray(image), background))
        elif image.mode.startswith("I"):
            highest = int(arrays.sixteen(image).max())
            arrays.check_depth(highest)
        elif image.info.pop(CUT, False) is True:
            highest = int(np.asarray(convert(image, "RGB")).max())
            arrays.check_depth(256 * highest + 255)

        image = arrays.eight_bit(image)
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

    A folder or a pattern is the list of its images, see `idmetric.metric.images.paths.listed`.

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
