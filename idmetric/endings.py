"""Which files of a folder are images, by their names."""

from __future__ import annotations

# of a folder; a file that is named, or in a manifest, may end in anything
IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif", ".heic",
)  # fmt: skip
