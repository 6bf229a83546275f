"""What published numbers are computed from: the table of `match` as similarities, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from idmetric.matching import published
from idmetric.matching.published import Array

T = TypeVar("T")
Members = NDArray[np.int64]  # the numbers of the subjects in an image's cast


@dataclass(frozen=True)
class Similarities:
    """Similarities 1 - distance of S subjects in T images. Each attribute has a value for each image.

    Attributes:
        images: names. clips: "" of still images, which are one clip in order. seconds: of frames.
        names, words: of the subjects (S,); "" without a class word.
        casts: (S,), which subjects should be in the image; empty for all.
        to_references: (S, K, R), NaN where nothing was compared.
        aggregated: the same over references, by the rule of the request (S, R).
        whole: of the whole image (S, K), or None.
        scores: a detector's, of the regions (R,).
        found_for: of each region, the names of the subjects that it was found for, or labeled with; empty for all.
        features: of each subject, by its encoder, the features (R, D) of the regions.
        frames: features (D,) of the whole image by the first encoder; None if they were not embedded.
    """

    images: list[str] = field(default_factory=list)
    clips: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    names: list[tuple[str, ...]] = field(default_factory=list)
    words: list[tuple[str, ...]] = field(default_factory=list)
    casts: list[NDArray[np.bool_]] = field(default_factory=list)
    to_references: list[Array] = field(default_factory=list)
    aggregated: list[Array] = field(default_factory=list)
    whole: list[Array] | None = None
    scores: list[Array] = field(default_factory=list)
    found_for: list[list[tuple[str, ...]]] = field(default_factory=list)
    features: list[tuple[Array, ...]] = field(default_factory=list)
    frames: list[Array] | None = None

    # Parts

    def of_images(self, times: Sequence[int]) -> Similarities:
        """The same of some images, by their numbers."""
        selected = {}
        for attribute in fields(self):
            values = getattr(self, attribute.name)
            if values:
                selected[attribute.name] = [values[time] for time in times]
        return replace(self, **selected)

    def joined(self, further: Similarities) -> Similarities:
        """These images and further ones."""
        values: dict[str, Any] = {}
        for attribute in fields(self):
            values[attribute.name] = None
            own_values = getattr(self, attribute.name)
            further_values = getattr(further, attribute.name)
            if own_values is not None and further_values is not None:
                values[attribute.name] = own_values + further_values
        return Similarities(**values)

    def of_casts(self) -> Similarities:
        """The same without the subjects outside of each image's cast."""
        if not self.casts:
            return self
        members = [np.flatnonzero(cast) for cast in self.casts]
        whole = self.whole
        if whole is not None:
            whole = _rows(whole, members)
        return replace(
            self,
            casts=[],
            names=_of_members(self.names, members),
            words=_of_members(self.words, members),
            to_references=_rows(self.to_references, members),
            aggregated=_rows(self.aggregated, members),
            whole=whole,
            features=_of_members(self.features, members),
        )

    def with_subjects(self) -> Similarities:
        """The same without the images that have no subject."""
        counts = [len(similarity) for similarity in self.to_references]
        return self.of_images(np.flatnonzero(counts).tolist())

    @property
    def videos(self) -> dict[str, list[int]]:
        """The numbers of each clip's images."""
        times_of_clips: dict[str, list[int]] = {}
        for time, clip in enumerate(self.clips):
            times_of_clips.setdefault(clip, []).append(time)
        return times_of_clips

    @property
    def moving_videos(self) -> dict[str, list[int]]:
        """The clips with two images or more; the others have no consistency."""
        return {clip: times for clip, times in self.videos.items() if len(times) > 1}

    @property
    def frames_of_clips(self) -> dict[str, Array]:
        """Features (N, D) of the frames of each clip with two images or more."""
        frames = self.frames or []
        stacks = {}
        for clip, times in self.moving_videos.items():
            stacks[clip] = np.stack([frames[time] for time in times])
        return stacks

    # Values

    @property
    def are_human(self) -> list[NDArray[np.bool_]]:
        """Of each image's subjects (S,), whether XVerseBench counts them as humans: by the beginning of the name."""
        are_human = []
        for names in self.names:
            is_human = [name.startswith("human") for name in names]
            are_human.append(np.array(is_human, dtype=bool))
        return are_human

    @property
    def are_scored(self) -> bool:
        """Whether a detector has scored the regions; the score of all given regions is 1."""
        return any((scores != 1).any() for scores in self.scores)

    @property
    def best(self) -> list[Array]:
        """Similarities (S, R) to the nearest reference."""
        best = []
        for similarity in self.to_references:
            of_regions = similarity.swapaxes(1, 2)
            best.append(published.best_region(of_regions))
        return best

    @property
    def mean(self) -> list[Array]:
        """Mean similarities (S, R) over references."""
        means = []
        for similarity in self.to_references:
            compared = np.ma.masked_invalid(similarity)
            means.append(compared.mean(1).filled(np.nan))
        return means

    @property
    def in_own_regions(self) -> list[Array]:
        """`aggregated`, NaN in a region that was found for other subjects."""
        similarities = []
        for time, aggregated in enumerate(self.aggregated):
            similarity = aggregated.copy()
            if self.found_for:
                for region, owners in enumerate(self.found_for[time]):
                    is_other = [bool(owners) and name not in owners for name in self.names[time]]
                    similarity[is_other, region] = np.nan
            similarities.append(similarity)
        return similarities


def _rows(arrays: Sequence[Array], members: Sequence[Members]) -> list[Array]:
    """The rows of the members of each image's cast."""
    return [array[rows] for array, rows in zip(arrays, members, strict=True)]


def _of_members(values: Sequence[tuple[T, ...]], members: Sequence[Members]) -> list[tuple[T, ...]]:
    """The values of the members of each image's cast."""
    selected = []
    for of_image, rows in zip(values, members, strict=True):
        selected.append(tuple(of_image[row] for row in rows))
    return selected
