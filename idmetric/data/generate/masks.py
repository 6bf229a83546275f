"""Masks of the objects in pictures, as ILGen cuts its generated objects out.

ILGen uses RMBG v1.4 (appendix A). Its weights need code from their repository and have a non-commercial license, so
`CleanBackground` takes its place, and `idmetric.data.curate.external_masks` takes the masks of another program, such as
RMBG itself or rembg.

`CleanBackground` needs no model, only the "clean background" that ILGen asks its generator for. Its mask is 0 or 255,
RMBG's is soft. Soft edges and holes through an object come out worse than with RMBG, and a shadow may count as object.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.generate.compose import Bits, mask_image
from idmetric.metric.files import need

Pixels = NDArray[np.float64]  # (..., 3)


@dataclass(frozen=True)
class CleanBackground:
    """Finds the object on a clean background by color alone.

    A quadratic surface is fitted to each color channel along the border. Pixels within `tolerance` of it that are
    connected to the border are background. The largest connected region of the rest, with its holes filled, is the
    object.

    Attributes:
        tolerance: largest distance from the surface, Euclidean, in RGB of 0-255.
        border: width of the border, as a share of the shorter side.
        clean: smallest share of the border within tolerance; with less, the picture is rejected.
        least, most: share of the picture that an object may cover.
    """

    least: float = 0.02
    most: float = 0.9
    tolerance: float = 30.0
    border: float = 0.02
    clean: float = 0.8

    def mask(self, image: Image.Image) -> Image.Image | str:
        """The mask of the object, "L", 0 or 255, or the reason why it is not found."""
        need("generate", "masks", cv2="cv2")
        import cv2

        pixels = np.asarray(image, np.float64)
        rim = np.ones((image.height, image.width), bool)
        width = max(1, round(self.border * min(image.size)))
        rim[width:-width, width:-width] = False

        # pixels with the background's color
        background = _background(pixels, rim, self.tolerance)
        is_clean = _distances(pixels, background) <= self.tolerance
        share = is_clean[rim].mean()
        if share < self.clean:
            return f"the background is not clean: {share:.0%} of the border is of one smooth color"

        # the largest region of all pixels that are not connected to the rim by the background's color
        _, regions = cv2.connectedComponents(is_clean.astype(np.uint8), connectivity=4)
        is_object = ~np.isin(regions, regions[rim & is_clean])
        _, regions, statistics, _ = cv2.connectedComponentsWithStats(is_object.astype(np.uint8), connectivity=4)
        areas = statistics[1:, cv2.CC_STAT_AREA]  # region 0 is the rest of the picture
        if not len(areas):
            return "the picture shows nothing but background"
        body = regions == areas.argmax() + 1
        covered = body.mean()
        if not self.least <= covered <= self.most:
            return f"the object covers {covered:.1%} of the picture"
        return mask_image(body)


def _background(pixels: Pixels, rim: Bits, tolerance: float) -> Pixels:
    """(H, W, 3): quadratic in x and y, by least squares on the rim; refitted without outliers such as the object."""
    height, width = rim.shape
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    terms = np.stack([np.ones_like(x), x, y, x * y, x * x, y * y], axis=-1)
    rim_terms, colors = terms[rim], pixels[rim]
    count = terms.shape[-1]

    median = np.median(colors, axis=0)
    coefficients = np.vstack([median, np.zeros((count - 1, 3))])
    is_inlier = _distances(colors, median) <= 2 * tolerance
    for _ in range(3):
        if is_inlier.sum() < 4 * count:
            break  # too few for a fit
        coefficients, *_ = np.linalg.lstsq(rim_terms[is_inlier], colors[is_inlier], rcond=None)
        is_inlier = _distances(colors, rim_terms @ coefficients) <= tolerance

    surface: Pixels = terms @ coefficients
    return surface


def _distances(colors: Pixels, others: Pixels) -> Pixels:
    distances: Pixels = np.linalg.norm(colors - others, axis=-1)
    return distances
