"""Masks of the objects in pictures, as ILGen cuts its generated objects out.

ILGen uses RMBG v1.4 (appendix A). Its weights need code from their repository and have a non-commercial license, so
this module offers two other ways; `idmetric.data.curate.external_masks` takes the masks of another program, such as
RMBG itself:

* `CleanBackground` needs no model, only the "clean background" that ILGen asks its generator for. Soft edges and holes
  through an object come out worse than with RMBG, and a shadow may count as object.
* `GroundedSam` segments by the category's name, on any background.

Both return a mask of 0 and 255; RMBG returns a soft one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.generate.compose import Bits, mask_image
from idmetric.data.generate.jobs import Progress, require, short_hash
from idmetric.data.generate.weights import AUTO, Place, Rejection, Repository, Weighted
from idmetric.data.manifest.table import Manifest
from idmetric.matching.detect_models import GroundingDino, Sam2
from idmetric.matching.regions import Box
from idmetric.metric.files.hints import need
from idmetric.metric.files.output import replacing
from idmetric.metric.images.read import ImageReadError

SEGMENTER = Repository("facebook/sam2.1-hiera-large", "apache-2.0")
Pixels = NDArray[np.float64]  # (..., 3)


@dataclass(frozen=True)
class Remover(Weighted):
    """Base of what finds the object in a picture.

    Attributes:
        least, most: share of the picture that an object may cover.
    """

    least: float = 0.02
    most: float = 0.9

    def mask(
        self,
        image: Image.Image,
        category: str,
    ) -> Image.Image | Rejection:
        """The mask of the object, "L", 0 or 255."""
        raise NotImplementedError

    def checked(self, body: Bits, what: str) -> Image.Image | Rejection:
        """The mask of an object as an image, "L", 0 or 255, if it covers from `least` to `most` of the picture."""
        covered = body.mean()
        if not self.least <= covered <= self.most:
            return Rejection(f"{what} covers {covered:.1%} of the picture")
        return mask_image(body)


@dataclass(frozen=True)
class CleanBackground(Remover):
    """Finds the object on a clean background by color alone.

    A quadratic surface is fitted to each color channel along the border. Pixels within `tolerance` of it that are
    connected to the border are background. The largest connected region of the rest, with its holes filled, is the
    object.

    Attributes:
        tolerance: largest distance from the surface, Euclidean, in RGB of 0-255.
        border: width of the border, as a share of the shorter side.
        clean: smallest share of the border within tolerance; with less, the picture is rejected.
    """

    tolerance: float = 30.0
    border: float = 0.02
    clean: float = 0.8

    name = "clean"

    def mask(
        self,
        image: Image.Image,
        category: str,
    ) -> Image.Image | Rejection:
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
            return Rejection(f"the background is not clean: {share:.0%} of the border is of one smooth color")

        # the largest region of all pixels that are not connected to the rim by the background's color
        _, regions = cv2.connectedComponents(is_clean.astype(np.uint8), connectivity=4)
        is_object = ~np.isin(regions, regions[rim & is_clean])
        _, regions, statistics, _ = cv2.connectedComponentsWithStats(is_object.astype(np.uint8), connectivity=4)
        areas = statistics[1:, cv2.CC_STAT_AREA]  # region 0 is the rest of the picture
        if not len(areas):
            return Rejection("the picture shows nothing but background")
        return self.checked(regions == areas.argmax() + 1, "the object")


def _background(pixels: Pixels, rim: Bits, tolerance: float) -> Pixels:
    """(H, W, 3): quadratic in x and y, by least squares on the rim; refitted without outliers such as the object."""
    height, width = rim.shape
    rows = np.linspace(-1, 1, height)
    columns = np.linspace(-1, 1, width)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    powers = [
        np.ones_like(x),
        x,
        y,
        x * y,
        x * x,
        y * y,
    ]
    terms = np.stack(powers, axis=-1)
    rim_terms, colors = terms[rim], pixels[rim]

    median = np.median(colors, axis=0)
    coefficients = np.vstack([median, np.zeros((len(powers) - 1, 3))])
    is_inlier = _distances(colors, median) <= 2 * tolerance
    for _ in range(3):
        if is_inlier.sum() < 4 * len(powers):
            break  # too few for a fit
        coefficients, *_ = np.linalg.lstsq(rim_terms[is_inlier], colors[is_inlier], rcond=None)
        is_inlier = _distances(colors, rim_terms @ coefficients) <= tolerance

    surface: Pixels = terms @ coefficients
    return surface


def _distances(colors: Pixels, others: Pixels) -> Pixels:
    distances: Pixels = np.linalg.norm(colors - others, axis=-1)
    return distances


@dataclass(frozen=True)
class Sam(Weighted):
    """SAM 2.1 (safetensors, Apache-2.0): the single mask that it predicts for a box."""

    base: Repository = SEGMENTER

    name = "sam"

    @cached_property
    def model(self) -> Sam2:
        """The model; its weights are loaded at the first use."""
        return Sam2(source=self.base.repo, revision=self.base.revision, device=self.place.device)

    def body(self, photo: Image.Image, box: Box) -> Bits:
        """The object in a box, (H, W)."""
        return self.model.mask(photo, box)


@dataclass(frozen=True)
class GroundedSam(Remover):
    """Finds the object by its category's name, one where there are several: the most likely box of Grounding DINO (Liu
    et al., ECCV 2024), cut out by SAM 2.1 (Ravi et al., ICLR 2025).

    Attributes:
        threshold: smallest probability of a box; 0.25 is the default of Grounding DINO in transformers.
    """

    detector: Repository = Repository("IDEA-Research/grounding-dino-base", "apache-2.0")
    segmenter: Repository = SEGMENTER
    threshold: float = 0.25

    name = "grounded_sam"

    def load(self) -> None:
        _ = self.finder.loaded, self.sam.model.loaded

    @cached_property
    def finder(self) -> GroundingDino:
        """The detector, with all its boxes: the best one is reported whatever its probability."""
        return GroundingDino(
            source=self.detector.repo,
            revision=self.detector.revision,
            device=self.place.device,
            threshold=0.0,
        )

    @cached_property
    def sam(self) -> Sam:
        """The segmenter."""
        return Sam(self.place, self.segmenter)

    def mask(
        self,
        image: Image.Image,
        category: str,
    ) -> Image.Image | Rejection:
        box, score = self.box(image, category)
        if score < self.threshold:
            return Rejection(f"no {category} is found: the most likely box has probability {score:.2f}")
        body = self.sam.body(image, box)
        return self.checked(body, f"the region found as {category}")

    def box(
        self,
        photo: Image.Image,
        category: str,
    ) -> tuple[Box, float]:
        """The most likely box of a category in pixels, and its probability."""
        detections = self.finder.detect(photo, [category.replace("_", " ")])
        left, top, right, bottom = detections.boxes[0].tolist()
        return (left, top, right, bottom), float(detections.scores[0])


REMOVERS: dict[str, type[Remover]] = {"clean": CleanBackground, "grounded_sam": GroundedSam}


def open_remover(
    name: str,
    place: Place = AUTO,
    weights: Mapping[str, str] | None = None,
    **settings: Any,
) -> Remover:
    """A remover by name; its weights are not loaded yet. Weights and settings are as in `Weighted.changed`."""
    need("generate", "masks", cv2="cv2", transformers="transformers")
    return REMOVERS[name](place).changed(weights or {}, settings)


def make_masks(
    manifest: Manifest, remover: Remover, folder: Path, progress: Progress
) -> tuple[Manifest, dict[str, str]]:
    """The manifest with a mask of every image, and the rows without one: id -> reason.

    Rows that are a text without an image stay as they are. A mask's name is a hash of the image's pixels, the category
    and the remover's settings, so a stopped run resumes.
    """
    rows = [index for index in range(len(manifest)) if manifest.source(index) is not None]
    require(manifest.take(rows), "category")
    remover.load()
    key = short_hash({"remover": remover.name, **remover.settings, "versions": remover.versions})
    ids, categories = manifest.column("id"), manifest.column("category")
    masks, mask_bytes = manifest.column("mask"), manifest.column("mask_bytes")
    problems: dict[str, str] = {}

    for index in progress(rows, len(rows), "masks"):
        category = categories[index]
        try:
            image = manifest.image(index)
            origin = repr((image.size, category, key)).encode()
            digest = hashlib.sha256(image.tobytes() + origin).hexdigest()
            path = folder / digest[:2] / f"{digest[:32]}.png"
            if not path.is_file():
                mask = remover.mask(image, category)
                if isinstance(mask, Rejection):
                    problems[ids[index]] = mask.reason
                    continue
                with replacing(path, parents=True) as temporary:
                    mask.save(temporary, "PNG")
        except ImageReadError as error:
            problems[ids[index]] = str(error)
        else:
            masks[index], mask_bytes[index] = str(path.absolute()), None

    moved = manifest.at(manifest.root.absolute())
    return moved.replace(mask=masks, mask_bytes=mask_bytes), problems
