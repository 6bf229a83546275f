"""Pictures of heatmaps over images; needs only Pillow and NumPy.

overlay("desk.jpg", heat, truth=mask).save("desk_heat.png")
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from idmetric.images.read import ImageLike, read_image

# dark violet, blue-green, green, yellow: lightness rises evenly, so it is readable in gray and for color-blind people
_STOPS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=np.float64)
_EDGE = (255, 0, 0)


def colors(values: ArrayLike, low: float | None = None, high: float | None = None) -> NDArray[np.uint8]:
    """Color values (H, W) as RGB (H, W, 3), from dark (low, default the minimum) to bright (high, the maximum).

    Raises:
        ValueError: if a value is not finite, or the shape is not (H, W).
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 2 or not v.size or not np.isfinite(v).all():
        raise ValueError(f"a heatmap needs finite values (H, W), got shape {v.shape}")
    start, end = v.min() if low is None else low, v.max() if high is None else high
    at = np.clip((v - start) / (end - start), 0, 1) if end > start else np.zeros_like(v)
    at *= len(_STOPS) - 1
    below = np.minimum(at.astype(int), len(_STOPS) - 2)
    part = (at - below)[..., None]
    found: NDArray[np.uint8] = np.rint(_STOPS[below] * (1 - part) + _STOPS[below + 1] * part).astype(np.uint8)
    return found


def overlay(
    image: ImageLike,
    heat: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    opacity: float = 0.6,
    low: float | None = None,
    high: float | None = None,
) -> Image.Image:
    """Blend a heatmap over its image, at the heatmap's size.

    Args:
        image: see `idmetric.images.read.read_image`; scaled to the heatmap's size.
        heat: (H, W), see `idmetric.scoring.heatmaps.heatmaps`; a torch tensor on the CPU does.
        truth: bool (H, W), a mask; its outline is drawn in red.
        opacity: of the colors, 0..1. low, high: values of the darkest and brightest color, to give several pictures
            one scale.

    Raises:
        ValueError: for an opacity outside 0..1, or shapes that differ.
    """
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must be in 0..1, got {opacity}")
    over = colors(heat, low, high)
    height, width = over.shape[:2]
    picture = read_image(image)
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    mixed = np.rint(np.asarray(picture) * (1 - opacity) + over * opacity).astype(np.uint8)
    if truth is not None:
        mixed[outline(truth, (height, width))] = _EDGE
    return Image.fromarray(mixed)


def outline(mask: ArrayLike, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the pixels of a mask (H, W) that touch a pixel outside it."""
    m = np.asarray(mask).astype(bool)
    if m.shape != size:
        raise ValueError(f"a mask of {m.shape} over a heatmap of {size}")
    wide = np.pad(m, 1, mode="edge")
    inner = wide[:-2, 1:-1] & wide[2:, 1:-1] & wide[1:-1, :-2] & wide[1:-1, 2:]
    return np.asarray(m & ~inner)
