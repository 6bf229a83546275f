"""How sharp an image is."""

from __future__ import annotations

import numpy as np
from PIL import Image


def blur_score(image: Image.Image) -> float:
    """Variance of the Laplacian of the 8-bit gray image; higher = sharper (ID-Sim, A.2.1, after Pech-Pacheco, 2000).

    Equals `cv2.Laplacian(gray, cv2.CV_64F).var()`: kernel [[0, 1, 0], [1, -4, 1], [0, 1, 0]], borders mirrored without
    repeating the edge. Gray is ITU-R 601 luma as Pillow rounds it. The score depends on the resolution of the image.
    """
    gray = np.asarray(image.convert("L"), dtype=np.int32)
    gray = np.pad(gray, 1, mode="reflect")
    above = gray[:-2, 1:-1]
    below = gray[2:, 1:-1]
    left = gray[1:-1, :-2]
    right = gray[1:-1, 2:]
    center = gray[1:-1, 1:-1]
    laplacian = above + below + left + right - 4 * center
    return float(laplacian.var(dtype=np.float64))
