"""Which files of a folder are images, by their names, and which formats are decoded."""

from __future__ import annotations

# of a folder; a file that is named, or in a manifest, may end in anything
IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif", ".heic",
)  # fmt: skip

# Pillow's names of the formats that are decoded, whatever a file is called. Left out are formats that Pillow decodes
# pixel by pixel in Python (FITS, QOI, SGI, BLP, ...: a file of kilobytes can take minutes) or has another program draw
# (EPS, WMF), and formats that hardly anybody keeps photos in. HEIF needs its plugin, pillow-heif.
IMAGE_FORMATS = (
    "PNG", "JPEG", "MPO", "WEBP", "TIFF", "GIF", "BMP", "DIB", "PPM", "JPEG2000", "AVIF", "HEIF", "TGA", "ICO", "PSD",
)  # fmt: skip
