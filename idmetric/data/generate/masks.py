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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.generate.compose import mask_image
from idmetric.data.generate.jobs import Progress, require, short_hash
from idmetric.data.generate.weights import (
    AUTO,
    Place,
    Rejected,
    Weighted,
    Weights,
    load_transformer,
)
from idmetric.metric.files.hints import need
from idmetric.metric.files.output import replacing
from idmetric.metric.images.read import ImageReadError, read_image

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

DETECTOR = Weights("IDEA-Research/grounding-dino-base", "apache-2.0")
SEGMENTER = Weights("facebook/sam2.1-hiera-large", "apache-2.0")
Bits = NDArray[np.bool_]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Remover(Weighted):
    """Base of what finds the object in a picture.

    Attributes:
        least, most: share of the picture that an object may cover.
    """

    least: float = 0.02
    most: float = 0.9

    def load(self) -> None:
        """Load its models now instead of at the first `mask`."""

    def mask(self, image: Image.Image, category: str) -> Image.Image:
        """The mask of the object, "L", 0 or 255; raises Rejected without one."""
        raise NotImplementedError

    def checked(self, body: Bits, what: str) -> Image.Image:
        """The mask of an object as an image, "L", 0 or 255; it must cover from `least` to `most` of the picture."""
        covered = float(body.mean())
        if not self.least <= covered <= self.most:
            raise Rejected(f"{what} covers {covered:.1%} of the picture")
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

    name: ClassVar[str] = "clean"

    def mask(self, image: Image.Image, category: str) -> Image.Image:
        pixels = np.asarray(image.convert("RGB"), np.float64)
        rim = np.ones(pixels.shape[:2], dtype=bool)
        width = max(1, round(self.border * min(rim.shape)))
        rim[width:-width, width:-width] = False
        near = np.linalg.norm(pixels - _surface(pixels, rim, self.tolerance), axis=2) <= self.tolerance
        share = float(near[rim].mean())
        if share < self.clean:
            raise Rejected(f"the background is not clean: {share:.0%} of the border is of one smooth color")
        body = largest(~touching_rim(near, rim))
        if not body.any():
            raise Rejected("the picture shows nothing but background")
        return self.checked(body, "the object")


@dataclass(frozen=True)
class Sam(Weighted):
    """SAM 2.1 from transformers (safetensors, Apache-2.0): the single mask that it predicts for a box."""

    base: Weights = SEGMENTER

    name: ClassVar[str] = "sam"

    @cached_property
    def model(self) -> tuple[Any, Any]:
        """Processor and model."""
        return load_transformer(self.base, self.place, "Sam2Processor", "Sam2Model")

    def body(self, photo: Image.Image, box: Box) -> Bits:
        """The object in a box, (H, W)."""
        import torch

        processor, model = self.model
        inputs = processor(images=photo, input_boxes=[[list(box)]], return_tensors="pt")
        inputs = inputs.to(self.place.torch_device())
        with torch.inference_mode():
            outputs = model(**inputs, multimask_output=False)
        masks = processor.post_process_masks(outputs.pred_masks.float().cpu(), inputs["original_sizes"].cpu())
        found: Bits = masks[0].reshape(-1, photo.height, photo.width)[0].numpy().astype(bool)
        return found


@dataclass(frozen=True)
class GroundedSam(Remover):
    """Finds the object by its category's name, one where there are several: the most likely box of Grounding DINO (Liu
    et al., ECCV 2024), cut out by SAM 2.1 (Ravi et al., ICLR 2025).

    Attributes:
        threshold: smallest probability of a box; 0.25 is the default of Grounding DINO in transformers.
    """

    detector: Weights = DETECTOR
    segmenter: Weights = SEGMENTER
    threshold: float = 0.25

    name: ClassVar[str] = "grounded_sam"

    def load(self) -> None:
        _ = self.models, self.sam.model

    @cached_property
    def models(self) -> tuple[Any, Any]:
        """Processor and model of the detector."""
        return load_transformer(self.detector, self.place, "GroundingDinoProcessor", "GroundingDinoForObjectDetection")

    @cached_property
    def sam(self) -> Sam:
        """The segmenter."""
        return Sam(self.place, self.segmenter)

    def mask(self, image: Image.Image, category: str) -> Image.Image:
        photo = image.convert("RGB")
        box, score = self.box(photo, category)
        if score < self.threshold:
            raise Rejected(f"no {category} is found: the most likely box has probability {score:.2f}")
        return self.checked(self.sam.body(photo, box), f"the region found as {category}")

    def box(self, photo: Image.Image, category: str) -> tuple[Box, float]:
        """The most likely box of a category in pixels, and its probability."""
        import torch

        processor, model = self.models
        phrase = " ".join(category.replace("_", " ").casefold().split()).rstrip(". ") + "."  # as it was trained
        inputs = processor(text=phrase, images=photo, return_tensors="pt").to(self.place.torch_device())
        with torch.inference_mode():
            outputs = model(**inputs)
        scores = outputs.logits[0].float().sigmoid().amax(-1)  # of each query, over the phrase's tokens
        best = int(scores.argmax())
        x, y, width, height = outputs.pred_boxes[0, best].float().tolist()
        sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        left, top, right, bottom = (min(max(side, 0.0), 1.0) for side in sides)
        return (left * photo.width, top * photo.height, right * photo.width, bottom * photo.height), float(scores[best])


REMOVERS: dict[str, type[Remover]] = {kind.name: kind for kind in (CleanBackground, GroundedSam)}


def open_remover(name: str, place: Place = AUTO, weights: Mapping[str, str] | None = None, **settings: Any) -> Remover:
    """A remover by name; its weights are not loaded yet. Weights and settings are as in `Weighted.changed`."""
    return REMOVERS[name](place).changed(weights, settings)


def make_masks(
    manifest: Manifest, remover: Remover, folder: Path, progress: Progress = lambda items, total, what: items
) -> tuple[Manifest, dict[str, str]]:
    """The manifest with a mask of every image, and the rows without one: id -> reason.

    Rows that are a text without an image stay as they are. A mask's name is a hash of the image's pixels, the category
    and the remover's settings, so a stopped run resumes.
    """
    pictures = [k for k in range(len(manifest)) if manifest.source(k) is not None]
    require(manifest.take(pictures), "category")
    remover.load()
    key = short_hash({"remover": remover.name, **remover.settings, "versions": remover.versions})
    ids, words = manifest.column("id"), manifest.column("category")
    new, data = list(manifest.column("mask")), list(manifest.column("mask_bytes"))
    problems: dict[str, str] = {}

    for k in cast("Iterable[int]", progress(pictures, len(pictures), "masks")):
        try:
            image = read_image(cast("str | bytes", manifest.source(k)))
            digest = hashlib.sha256(image.tobytes() + repr((image.size, words[k], key)).encode()).hexdigest()
            path = folder / digest[:2] / f"{digest[:32]}.png"
            if not path.is_file():
                found = remover.mask(image, words[k])
                with replacing(path, parents=True) as temporary:
                    found.save(temporary, "PNG")
        except (ImageReadError, Rejected) as error:
            problems[ids[k]] = str(error)
        else:
            new[k], data[k] = str(path.absolute()), None

    return manifest.at(manifest.root.absolute()).replace(mask=new, mask_bytes=data), problems


def _surface(pixels: NDArray[np.float64], rim: Bits, tolerance: float) -> NDArray[np.float64]:
    """(H, W, 3): quadratic in x and y, by least squares on the rim; refitted without outliers such as the object."""
    y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in rim.shape), indexing="ij")
    terms = np.stack([np.ones_like(x), x, y, x * y, x * x, y * y], axis=-1)
    at, colors = terms[rim], pixels[rim]
    kept = np.linalg.norm(colors - np.median(colors, axis=0), axis=1) <= 2 * tolerance
    fit = np.zeros((6, 3))
    fit[0] = np.median(colors, axis=0)
    for _ in range(3):
        if kept.sum() < 24:  # too few for 6 terms
            break
        fit = np.linalg.lstsq(at[kept], colors[kept], rcond=None)[0]
        kept = np.linalg.norm(colors - at @ fit, axis=1) <= tolerance
    surface: NDArray[np.float64] = terms @ fit
    return surface


def touching_rim(mask: Bits, rim: Bits) -> Bits:
    """The connected regions of a mask that reach the rim."""
    labels = _regions(mask)
    found: Bits = np.isin(labels, np.setdiff1d(labels[rim], [0]))
    return found


def largest(mask: Bits) -> Bits:
    """The largest connected region of a mask; an empty mask stays empty."""
    labels = _regions(mask)
    sizes = np.bincount(labels.ravel(), weights=mask.ravel())
    found: Bits = mask & (labels == sizes.argmax())
    return found


def _regions(mask: Bits) -> NDArray[np.int32]:
    """Label (H, W) of each pixel's connected region (4 neighbors): 1, 2, ..., 0 outside the mask."""
    need("generate", "generating images", cv2="cv2")
    import cv2

    labels: NDArray[np.int32] = cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)[1]
    return labels
