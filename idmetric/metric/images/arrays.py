"""Arrays, tensors and PIL modes: layout, range, 16-bit values, transparency, and conversion between them.

All functions raise ValueError with the reason and how to fix it; `kinds.naming` adds the name of the image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.images.kinds import SLACK, Color, is_tensor

if TYPE_CHECKING:
    from torch import Tensor

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
