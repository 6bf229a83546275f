"""Filters by which images are resized."""

from __future__ import annotations

from PIL import Image

Sides = tuple[int, int]  # height and width
RESAMPLE = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}


def check_interpolation(name: str) -> None:
    """Refuse a name that is not one of `RESAMPLE`: ValueError."""
    if name not in RESAMPLE:
        raise ValueError(f"unknown interpolation {name!r}: choose one of {', '.join(RESAMPLE)}")
