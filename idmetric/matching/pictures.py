"""Decoded frames of a video as images: colors, transparency and orientation as players show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_UNSPECIFIED = 2  # FFmpeg's AVCOL_SPC_UNSPECIFIED; that of a range is 0


@dataclass(frozen=True)
class Colors:
    """How a stream codes colors, by its container and its first packets.

    Attributes:
        space, range: FFmpeg's AVColorSpace and AVColorRange.
    """

    space: int
    range: int

    @classmethod
    def of(cls, context: Any) -> Colors:
        """Those of a codec context of PyAV that has not decoded yet."""
        return cls(int(context.colorspace), int(context.color_range))


def to_image(frame: Any, colors: Colors) -> Image.Image:
    """A decoded frame upright, as 8-bit RGB, or as RGBA if it has an alpha channel."""
    # decoders forget what is said in the container alone
    if frame.colorspace == _UNSPECIFIED:
        frame.colorspace = colors.space
    if frame.color_range == 0:
        frame.color_range = colors.range

    # to_image() takes twice the time
    pixels = frame.to_ndarray(format="rgba" if _has_alpha(frame.format) else "rgb24")
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is not None:
        pixels = _displayed(pixels, np.frombuffer(matrix, np.int32, 9))
    return Image.fromarray(np.ascontiguousarray(pixels))


def _displayed(pixels: NDArray[np.uint8], matrix: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Pixels (height, width, channels) turned and mirrored by a display matrix, to the nearest quarter turn.

    The matrix [a b u; c d v; x y w] shows the pixel (x, y) at (a x + c y, b x + d y); FFmpeg's libavutil/display.h.
    """
    a, b, _, c, d, *_ = matrix.tolist()
    across, down = a, d
    if abs(b) > abs(a):  # a quarter turn: columns become rows
        pixels = pixels.transpose(1, 0, 2)
        across, down = c, b
    if across < 0:
        pixels = pixels[:, ::-1]
    if down < 0:
        pixels = pixels[::-1]
    return pixels


def _has_alpha(pixel_format: Any) -> bool:
    if pixel_format.name == "pal8":  # its palette may be transparent
        return True
    return any(component.is_alpha for component in pixel_format.components)
