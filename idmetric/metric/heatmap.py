"""Pictures of heatmaps over images; needs only Pillow and NumPy.

overlay("desk.jpg", heat).save("desk_heat.png")
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from idmetric.metric.images import ImageLike, read_image

# dark violet, blue-green, green, yellow: lightness rises evenly, so it is readable in gray and for color-blind people
_STOPS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=np.float64)
_OPACITY = 0.6


def colors(
    values: ArrayLike,
    low: float | None = None,
    high: float | None = None,
) -> NDArray[np.uint8]:
    """Color values (H, W) as RGB (H, W, 3), from dark (low, default the minimum) to bright (high, the maximum).

    Raises:
        ValueError: if a value is not finite, or the shape is not (H, W).
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 2 or not v.size or not np.isfinite(v).all():
        raise ValueError(f"a heatmap needs finite values (H, W), got shape {v.shape}")
    if low is None:
        low = v.min()
    if high is None:
        high = v.max()
    shares = np.zeros_like(v)
    if high > low:
        shares = (v - low) / (high - low)
    stops = np.linspace(0, 1, len(_STOPS))
    bands = [np.interp(shares, stops, band) for band in _STOPS.T]
    rgb: NDArray[Any] = np.stack(bands, axis=-1)
    return rgb.round().astype(np.uint8)


def overlay(
    image: ImageLike,
    heat: ArrayLike,
    *,
    low: float | None = None,
    high: float | None = None,
) -> Image.Image:
    """Blend a heatmap over its image, at the heatmap's size.

    Args:
        image: see `idmetric.metric.images.read_image`; scaled to the heatmap's size.
        heat: (H, W), see `idmetric.matching.heatmaps.heatmaps`; a torch tensor on the CPU does.
        low, high: values of the darkest and brightest color, to give several pictures one scale.
    """
    over = Image.fromarray(colors(heat, low, high))
    picture = read_image(image)
    if picture.size != over.size:
        picture = picture.resize(over.size, Image.Resampling.BICUBIC)
    return Image.blend(picture, over, _OPACITY)
