"""Published numbers of a match, with their values for each image, subject and clip."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from idmetric.matching.named import FRAMES, Computed, check_needs, check_number
from idmetric.matching.published import Array, Form, by_character, mean_of_subjects, mean_of_values
from idmetric.matching.similarities import Similarities
from idmetric.scoring.records import Record

_FIELDS = ("image", "clip", "subject")
_LEVELS = (_FIELDS, ("image", "clip"), ("subject",), ("clip",))  # finest first


@dataclass(frozen=True)
class PublishedValue:
    """A published number of a match.

    Attributes:
        name, form: of the number. value: NaN where the source defines none.
        source, detector, encoder: as published. used: model, distance, cut, detector and frames in their place.
        values: what it is made of, as rows of image, clip, subject and value: for each image and subject in its cast,
            each image, each subject and each clip, as far as the number has such values. None stands for all images,
            clips or subjects, and for no value. Where the source has a value of a subject, an image or a clip, it is
            that one, else the mean of the finer ones.
        not_comparable: why the number cannot be compared with published ones; "" if the frames are those of the source.
    """

    name: str
    form: str
    value: float
    source: str
    detector: str
    encoder: str
    used: str
    values: tuple[Record, ...] = ()
    not_comparable: str = ""

    def __str__(self) -> str:
        number = f"{self.name} ({self.form}): {self.value:.4f}"
        if self.not_comparable:
            number += f", not comparable: {self.not_comparable}"
        return f"{number} ({self.source}; by {self.used})"

    @property
    def label(self) -> str:
        """As in --published: "nexus", or "nexus:corrected"."""
        if self.form == "released":
            return self.name
        return f"{self.name}:{self.form}"

    @cached_property
    def _by_key(self) -> dict[tuple[str | None, ...], float | None]:
        values = {}
        for row in self.values:
            key = tuple(row[name] for name in _FIELDS)
            values[key] = row["value"]
        return values

    @cached_property
    def _levels(self) -> list[tuple[str, ...]]:
        """The levels that have values, the finest first."""
        levels = {_level(row) for row in self.values}
        return [level for level in _LEVELS if level in levels]

    @property
    def clip_values(self) -> dict[str, float | None]:
        """The value of each clip."""
        return {row["clip"]: row["value"] for row in self.values if row["image"] is row["subject"] is None}

    @property
    def subject_values(self) -> dict[str, float | None]:
        """The value of each subject."""
        return {row["subject"]: row["value"] for row in self.values if row["image"] is row["clip"] is None}

    def value_of(self, row: Record) -> float | None:
        """The value for a row of a result: the finest one that the number and the row have, None without one.

        That is the value of the row's image and subject, else of its image, its subject or its clip. A subject outside
        of the image's cast has none.
        """
        if not row.get("expected", True):
            return None
        for level in self._levels:
            if all(name in row for name in level):
                key = tuple(row[name] if name in level else None for name in _FIELDS)
                return self._by_key.get(key)
        return None


def _level(row: Record) -> tuple[str, ...]:
    return tuple(name for name in _FIELDS if row[name] is not None)


def published_value(
    similarities: Similarities,
    name: str,
    form: str,
    signature: Mapping[str, str],
    frames: Collection[str] = tuple(FRAMES),
) -> PublishedValue:
    """Compute a published number.

    Args:
        signature: of the distances. frames: the choices of frames, keys of `FRAMES`, that the images agree with.

    Raises:
        RequestError: for an unknown name, a form that it does not have, or similarities that lack what it needs.
    """
    number = check_number(name, form)
    of_casts = number.of_casts(similarities)
    computed = Computed(float("nan"))
    if similarities.images:
        check_needs(
            name,
            has_subjects=any(similarities.names),
            has_whole=(similarities.frames if number.needs_frames else similarities.whole) is not None,
            clips=of_casts.clips,
            casts=of_casts.names,
        )
        computed = number.formula(of_casts, cast(Form, form))

    used = [signature["model"], f"distance {signature['distance']}", signature["cut"]]
    if "detector" in signature:
        used.append(signature["detector"])
    if "frames" in signature:
        used.append(f"frames {signature['frames']}")
    not_comparable = ""
    if number.frames and number.frames not in frames:
        not_comparable = f"the source takes {FRAMES[number.frames]}"
    return PublishedValue(
        name=name,
        form=form,
        value=computed.value,
        source=number.source,
        detector=number.detector,
        encoder=number.encoder,
        used=", ".join(used),
        values=tuple(_values(computed, of_casts)),
        not_comparable=not_comparable,
    )


def _values(computed: Computed, similarities: Similarities) -> list[Record]:
    """See `PublishedValue.values`."""
    rows = []
    cells = computed.of_subjects
    of_images = computed.of_images
    subjects = computed.subjects
    for time, of_subjects in enumerate(cells):
        names = similarities.names[time]
        for name, value in zip(names, of_subjects, strict=True):
            rows.append({**_image(similarities, time), "subject": name, "value": _plain(value)})
    if cells:
        of_images = [mean_of_values(of_subjects) for of_subjects in cells]
        subjects = subjects or _means_of_subjects(cells, similarities.names)
    for time, value in enumerate(of_images):
        rows.append({**_image(similarities, time), "subject": None, "value": _plain(value)})
    for name, value in subjects.items():
        rows.append({"image": None, "clip": None, "subject": name, "value": _plain(value)})
    clips = computed.clips or _means_of_clips(computed, similarities)
    for clip, value in clips.items():
        rows.append({"image": None, "clip": clip, "subject": None, "value": _plain(value)})
    return rows


def _image(similarities: Similarities, time: int) -> Record:
    return {"image": similarities.images[time], "clip": similarities.clips[time]}


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _means_of_subjects(cells: Sequence[Array], names: Sequence[Sequence[str]]) -> dict[str, float]:
    means = {}
    for name, of_images in by_character(cells, names).items():
        means[str(name)] = mean_of_values(of_images)
    return means


def _means_of_clips(computed: Computed, similarities: Similarities) -> dict[str, float]:
    """The means over the frames of each clip, and over their subjects."""
    means = {}
    for clip, times in similarities.videos.items():
        if computed.of_subjects:
            of_subjects = [computed.of_subjects[time] for time in times]
            means[clip] = mean_of_subjects(of_subjects)
        elif computed.of_images:
            of_images = [computed.of_images[time] for time in times]
            means[clip] = mean_of_values(of_images)
    return means
