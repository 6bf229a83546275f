"""Which files of a folder are images, by their names."""

from __future__ import annotations

IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif", ".heic",
)  # fmt: skip
