"""Detectors: where subjects may be in an image, found by words or by photos of the subject.

    GroundingDino().detect("street.jpg", ["dog", "person"])  # boxes, scores, labels
    match(metric, subjects, images, regions=DetectedRegions(GroundingDino(), ["dog", "person"]))

The detectors are in `detect_models`, and in `detect_patches` the one that needs no further weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from idmetric.matching.codes import RunLengths
from idmetric.matching.regions import Cut, Region
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageLike, read_image, split_images
from idmetric.metric.masks import Images, MaskLike, Masks, split_masks

Photo = tuple[Image.Image, MaskLike | None]  # a picture of a subject, and its mask


@dataclass(frozen=True, eq=False)
class Detections:
    """What a detector finds in an image.

    Attributes:
        boxes: (N, 4) left, top, right, bottom in pixels.
        scores: (N,) in [0, 1].
        labels: the word that each was found by; "" by a photo.
        masks: bool (N, H, W), or None.
    """

    boxes: Tensor
    scores: Tensor
    labels: Sequence[str]
    masks: Tensor | None = None

    @property
    def regions(self) -> list[Region]:
        """As regions for `match`."""
        masks: list[RunLengths | None] = [None] * len(self.labels)
        if self.masks is not None:
            masks = [RunLengths.of(mask.numpy()) for mask in self.masks]
        regions = []
        for number, label in enumerate(self.labels):
            box = tuple(self.boxes[number].tolist())
            score = float(self.scores[number])
            regions.append(Region(box, masks[number], label, score))
        return regions


@dataclass(frozen=True, kw_only=True)
class Detector:
    """Base of detectors.

    Attributes:
        threshold: the lowest score of a detection.
        overlap: of two boxes with a larger intersection over union the less confident one is dropped.
    """

    threshold: float = 0.0
    overlap: float = 0.7

    name: ClassVar[str] = ""
    finds_by: ClassVar[tuple[str, ...]] = ("words",)  # "words", "photos"

    @property
    def weights(self) -> str:
        """The name of exactly its weights."""
        raise NotImplementedError

    @property
    def signature(self) -> str:
        """Name, weights and settings."""
        parts = [f"{self.name} {self.weights}"]
        for setting, value in vars(self).items():
            if isinstance(value, float):
                parts.append(f"{setting.replace('_', ' ')} {value:g}")
        return ", ".join(parts)

    def detect(
        self,
        image: ImageLike,
        words: Sequence[str] = (),
        references: Images = (),
        masks: Masks = None,
    ) -> Detections:
        """Find words, or the subject of photos, in an image.

        Args:
            words: what to look for, such as ["dog", "person"].
            references: photos of the subject, instead of words. masks: of the subject in them.

        Returns:
            The detections within the image, most confident first.

        Raises:
            RequestError: without anything to look for, and for a detector that cannot look for it.
            ImageReadError: naming the image that cannot be read.
            CheckpointError: if the weights cannot be loaded.
        """
        photos = photos_of(references, masks)
        words = self.checked(words, bool(photos))
        return self.find(read_image(image), words, [self.query(photos)] if photos else [])

    def checked(self, words: Sequence[str], with_photos: bool) -> list[str]:
        """The words; errors as in `detect`."""
        if isinstance(words, str):
            words = [words]
        words = [" ".join(word.split()) for word in words]
        if bool(words) == with_photos or not all(words):
            raise RequestError('give words to look for, such as ["dog"], or photos of the subject')
        kind = "words"
        if with_photos:
            kind = "photos"
        if kind not in self.finds_by:
            raise RequestError(f"{self.name} finds nothing by {kind}, but by {' or '.join(self.finds_by)}")
        return words

    def query(self, photos: Sequence[Photo]) -> Any:
        """The photos of a subject, prepared once for all images; here cut to the boxes of their masks."""
        cuts = []
        for picture, mask in photos:
            piece = Cut().cut(picture, Region(mask=mask))
            cuts.append(piece.pixels)
        return cuts

    def find(self, image: Image.Image, words: Sequence[str], queries: Sequence[Any]) -> Detections:
        """Detect words, or each subject by the photos that `query` prepared."""
        with torch.inference_mode():
            candidates = list(self.candidates(image, words, queries))
            return _distinct(candidates, image, self.overlap)

    def candidates(self, image: Image.Image, words: Sequence[str], queries: Sequence[Any]) -> Iterable[Detections]:
        """Detections above the threshold, in any order; boxes may reach out of the image."""
        raise NotImplementedError


def photos_of(references: Images, masks: Masks) -> list[Photo]:
    """The photos of a subject with their masks."""
    photos = split_images(references)
    masks_of_photos = split_masks(masks, photos)
    pictures = [read_image(photo) for photo in photos]
    return list(zip(pictures, masks_of_photos, strict=True))


def _distinct(parts: Sequence[Detections], image: Image.Image, overlap: float) -> Detections:
    """All detections within an image, without the less confident ones of two that overlap, most confident first."""
    from torchvision.ops import clip_boxes_to_image, nms, remove_small_boxes

    boxes = torch.cat([part.boxes for part in parts]).float().cpu()
    boxes = clip_boxes_to_image(boxes, (image.height, image.width))
    scores = torch.cat([part.scores for part in parts]).float().cpu()
    labels = list(chain.from_iterable(part.labels for part in parts))

    rows = remove_small_boxes(boxes, min_size=1)
    most_confident = nms(boxes[rows], scores[rows], overlap)
    rows = rows[most_confident]
    masks = None
    with_masks = [part.masks for part in parts if part.masks is not None]
    if with_masks:
        masks = torch.cat(with_masks).bool().cpu()
        has_pixels = list(map(_selects, masks[rows], boxes[rows]))
        rows = rows[has_pixels]
        masks = masks[rows]
    labels = [labels[row] for row in rows.tolist()]
    return Detections(boxes[rows], scores[rows], labels, masks)


def _selects(mask: Tensor, box: Tensor) -> bool:
    """Whether a mask has a pixel in its box; it could not be cut out otherwise."""
    left, top, right, bottom = map(round, box.tolist())
    in_box = mask[top:bottom, left:right]
    return bool(in_box.any())
