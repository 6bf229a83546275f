"""The result of `match`: the table of distances, who is where, and the numbers that follow from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idmetric.matching.assignment import FOUND, UNASSIGNED, Assignment, State
from idmetric.matching.output import Output, columns
from idmetric.matching.table import Table
from idmetric.scoring.references import Aggregate
from idmetric.scoring.scores import Record, Records
from idmetric.tables import first_few, four

ALL = "all"  # the summary's row of all subjects
Missing = Literal["missing", "zero", "whole", "skip"]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Match(Output):
    """Subjects in images.

    T images or frames, S subjects, K references, R regions.

    Attributes:
        table: distances (T, S, K, R).
        assignments: of each image.
        thresholds: of each subject, the largest distance that counts as this subject; NaN without one.
        threshold_sources: where each comes from, such as "own photos"; "" without one.
        cast: (T, S), whether each subject should be in each image.
        aggregate: of a subject's references. missing: the rule for subjects that are not found, see `match`.
        whole: distances (T, S, K) of whole images, with missing="whole".
        features: of each subject and image, features (R, D) of the regions by the subject's encoder, of unit length;
            with missing="whole" the whole image's comes last.
        boxes: of each image's regions (R, 4), in pixels.
        skipped: image -> why it has no rows.
        unlisted: the images that a file or a dict of regions does not list; they count as images without regions.
        signature: what the distances depend on, and how frames were chosen.
    """

    table: Table
    assignments: tuple[Assignment, ...]
    thresholds: tuple[float, ...]
    threshold_sources: tuple[str, ...]
    cast: NDArray[np.bool_]
    aggregate: Aggregate
    missing: Missing
    whole: Tensor | None = None
    features: tuple[tuple[Array, ...], ...] = ()
    boxes: tuple[Array, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    signature: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line; notebooks show it."""
        return f"Match({len(self.table.times)} images, subjects {', '.join(self.table.subjects)}, worst {self.worst})"

    # Who is where

    def _repr_html_(self) -> str:
        """Each subject's numbers, and the worst images with pictures, as a notebook shows them."""
        from idmetric.matching.display import match_html

        return match_html(self)

    def plot(self, ax: Any = None) -> Any:
        """Draw the distance of each subject in each image, and its threshold; returns matplotlib's Axes.

        Args:
            ax: Axes to draw into; default: new ones.

        Raises:
            ImportError: without matplotlib.
        """
        from idmetric.matching.display import plot_match

        return plot_match(self, ax)

    @property
    def states(self) -> list[list[State]]:
        """The state of each subject in each image, (T, S): "matched", "missing" or "doubled".

        Outside the image's cast, "unexpected" or "absent"; "" for a subject without a threshold. See
        `idmetric.matching.assignment`.
        """
        return [list(assignment.states) for assignment in self.assignments]

    @property
    def surplus(self) -> list[list[int]]:
        """The regions of each image that are within no subject's threshold."""
        return [list(assignment.surplus) for assignment in self.assignments]

    @property
    def swapped(self) -> list[list[str]]:
        """The subjects of each image that are in a region with another subject's label."""
        names = []
        for assignment in self.assignments:
            names.append([self.table.subjects[number] for number in sorted(assignment.swapped)])
        return names

    def region_features(self, subject: int, time: int) -> Array:
        """Features (R, D) of an image's regions by a subject's encoder."""
        count = len(self.table.regions[time])
        return self.features[subject][time][:count]

    @cached_property
    def times_of_clips(self) -> dict[str, list[int]]:
        """Of each clip the numbers of its frames."""
        times: dict[str, list[int]] = {}
        for time, clip in enumerate(self.table.clips):
            if clip:
                times.setdefault(clip, []).append(time)
        return times

    @cached_property
    def by_region(self) -> Array:
        """Distances (T, S, R) over the references of a subject, NaN where nothing was compared."""
        values: Array = self.table.over_references(self.aggregate).detach().cpu().double().numpy()
        return values

    @cached_property
    def nearest(self) -> Array:
        """Distance (T, S) of each subject to its assigned region, or to its nearest one if it has none.

        Whatever the threshold, so that a subject that was replaced is seen. NaN in images without regions to compare.
        """
        nearest: Array = np.fmin.reduce(self.by_region, axis=2, initial=np.nan)  # NaN only where all are
        for time, assignment in enumerate(self.assignments):
            subjects = np.flatnonzero(assignment.region != UNASSIGNED)
            nearest[time, subjects] = self.by_region[time, subjects, assignment.region[subjects]]
        return nearest

    @cached_property
    def is_found(self) -> NDArray[np.bool_]:
        """Whether each subject is in each image, (T, S), by its state; without a threshold, whether it has a region."""
        is_found = np.zeros(self.table.shape[:2], dtype=bool)
        for time, assignment in enumerate(self.assignments):
            states = np.array(assignment.states, dtype=str)
            is_assigned = assignment.region != UNASSIGNED
            is_found[time] = np.where(states == "", is_assigned, np.isin(states, FOUND))
        return is_found

    @cached_property
    def is_judged(self) -> NDArray[np.bool_]:
        """Whether each subject in each image counts in coverage, mean and worst, (T, S).

        That is so in the images with it in their cast, if it has a threshold: without one it has no state.
        """
        has_threshold = ~np.isnan(self.thresholds)
        return self.cast & has_threshold

    # Numbers

    @cached_property
    def distances(self) -> Array:
        """The distance (T, S) of each subject in each image, by the rule `missing`; NaN where it has no value."""
        distances = np.where(self.is_found & self.is_judged, self.nearest, np.nan)
        is_missing = ~self.is_found & self.is_judged
        if self.missing == "zero":
            distances[is_missing] = 1.0
        elif self.missing == "whole" and self.whole is not None:
            whole = replace(self.table, values=self.whole[..., None]).over_references(self.aggregate)
            distances[is_missing] = whole[..., 0].detach().cpu().double().numpy()[is_missing]
        elif self.missing == "skip":
            distances[is_missing.any(1)] = np.nan
        return distances

    @property
    def coverage(self) -> dict[str, float | None]:
        """The share of the images with each subject in their cast in which it is found; None without a threshold."""
        coverage: dict[str, float | None] = {}
        for number, name in enumerate(self.table.subjects):
            coverage[name] = self._coverage_of(self.is_judged[:, [number]], self.is_found[:, [number]])
        return coverage

    @staticmethod
    def _coverage_of(is_judged: NDArray[np.bool_], is_found: NDArray[np.bool_]) -> float | None:
        if not is_judged.any():
            return None
        return float(is_found[is_judged].mean())

    @property
    def _is_whole(self) -> bool:
        """Whether the region of every image is the whole image."""
        is_whole = [len(regions) == 1 and regions[0].is_whole for regions in self.table.regions]
        return bool(is_whole) and all(is_whole)

    @cached_property
    def badness(self) -> Array:
        """How bad each subject in each image is, (T, S), to sort by.

        The missing come first, then the swapped, then subjects outside the cast that are there all the same, and all
        others by their distance. Subjects outside the cast that are absent come last.
        """
        badness: Array = np.where(np.isnan(self.nearest), np.inf, self.nearest)
        badness[~self.is_found & self.cast] += _MISSING_FIRST
        for time, assignment in enumerate(self.assignments):
            badness[time, list(assignment.swapped)] += _SWAPPED_NEXT
        badness[self.is_found & ~self.cast] += _UNEXPECTED_NEXT
        badness[~self.is_found & ~self.cast] = -np.inf
        return badness

    @property
    def worst(self) -> dict[str, Any]:
        """The image and the subject that come first by `badness`; empty without any state.

        Returns:
            image, subject, state, swapped, and distance: to the nearest region whatever the threshold, None without
            regions.
        """
        badness = np.where(np.isnan(self.thresholds), -np.inf, self.badness)
        if badness.max(initial=-np.inf) == -np.inf:  # nobody has a threshold, or nobody is expected or there
            return {}
        time, subject = np.unravel_index(int(badness.argmax()), badness.shape)
        return {
            "image": self.table.times[time],
            "subject": self.table.subjects[subject],
            "state": self.assignments[time].states[subject],
            "swapped": bool(subject in self.assignments[time].swapped),
            "distance": _plain(self.nearest[time, subject]),
        }

    @property
    def summary(self) -> Records:
        """A row for each subject, and with several subjects a last one for all.

        Columns: subject, n (images with it in their cast), coverage, mean (of `distances`; None without values), worst
        (the largest distance in these images), worst_image, in how many images it has each state and is swapped, and
        its threshold with threshold_source. A subject without a threshold has None in all but n.
        """
        rows = []
        for number, name in enumerate(self.table.subjects):
            row = {"subject": name, **self._summary_of([number])}
            row["threshold"] = _plain(self.thresholds[number])
            row["threshold_source"] = self.threshold_sources[number]
            rows.append(row)
        everyone = list(range(len(self.table.subjects)))
        if len(everyone) > 1:
            rows.append({"subject": ALL, **self._summary_of(everyone), "threshold": None, "threshold_source": ""})
        return Records(rows, tuple(rows[0]) if rows else ("subject", "n"))

    def _summary_of(self, subjects: list[int]) -> Record:
        distances = self.distances[:, subjects]
        is_judged = self.is_judged[:, subjects]
        nearest = np.where(is_judged, self.nearest[:, subjects], np.nan)
        has_value = np.isfinite(distances)
        has_region = np.isfinite(nearest)
        worst_image = None
        if has_region.any():
            worst_time = np.where(has_region, nearest, -np.inf).max(1).argmax()
            worst_image = self.table.times[worst_time]
        row: Record = {
            "n": int(self.cast[:, subjects].any(1).sum()),
            "coverage": self._coverage_of(is_judged, self.is_found[:, subjects]),
            "mean": float(distances[has_value].mean()) if has_value.any() else None,
            "worst": float(nearest[has_region].max()) if has_region.any() else None,
            "worst_image": worst_image,
        }
        has_states = not np.isnan(np.array(self.thresholds)[subjects]).all()
        states = [image_states[subject] for image_states, subject in itertools.product(self.states, subjects)]
        for state in COUNTED:
            row[state] = states.count(state) if has_states else None
        row["swapped"] = sum(len(set(assignment.swapped).intersection(subjects)) for assignment in self.assignments)
        return row

    @property
    def intervals(self) -> Records:
        """A row for each time in which a subject keeps its state, in the frames of a clip that are in use.

        Columns: clip, subject, state, start and end (seconds of the first and of the last frame), frames (their
        number), and mean (of `distances`). Subjects without a threshold have none.
        """
        rows = []
        for clip, times in self.times_of_clips.items():
            for subject, name in enumerate(self.table.subjects):
                if np.isnan(self.thresholds[subject]):
                    continue
                states = [self.assignments[time].states[subject] for time in times]
                for state, frames in itertools.groupby(zip(states, times, strict=True), key=itemgetter(0)):
                    interval = [time for _, time in frames]
                    distances = self.distances[interval, subject]
                    has_value = np.isfinite(distances)
                    row: Record = {
                        "clip": clip,
                        "subject": name,
                        "state": state,
                        "start": self.table.seconds[interval[0]],
                        "end": self.table.seconds[interval[-1]],
                        "frames": len(interval),
                        "mean": float(distances[has_value].mean()) if has_value.any() else None,
                    }
                    rows.append(row)
        return Records(rows, INTERVAL_COLUMNS)

    @property
    def rows(self) -> Records:
        """A row for each image and subject.

        Columns: image, clip, seconds, subject, expected (whether it is in the image's cast), state, distance (by the
        rule `missing`), nearest (whatever the threshold), threshold, threshold_source, reference (the nearest one),
        region, left, top, right, bottom, swapped, and the signature.
        """
        rows = []
        for time, assignment in enumerate(self.assignments):
            for subject, name in enumerate(self.table.subjects):
                row: Record = {
                    "image": self.table.times[time],
                    "clip": self.table.clips[time],
                    "seconds": _plain(self.table.seconds[time]),
                    "subject": name,
                    "expected": bool(self.cast[time, subject]),
                    "state": assignment.states[subject],
                    "distance": _plain(self.distances[time, subject]),
                    "nearest": _plain(self.nearest[time, subject]),
                    "threshold": _plain(self.thresholds[subject]),
                    "threshold_source": self.threshold_sources[subject],
                }
                row |= self._region_columns(time, subject)
                row["swapped"] = subject in assignment.swapped
                for key, text in self.signature.items():
                    row["distance_name" if key == "distance" else key] = text
                rows.append(row)
        columns = tuple(rows[0]) if rows else ("image", "clip", "seconds", "subject", "state", "distance")
        return Records(rows, columns)

    def _region_columns(self, time: int, subject: int) -> Record:
        """The region of a subject, and the reference that is nearest to it."""
        row: Record = dict.fromkeys(("reference", "region", "left", "top", "right", "bottom"))
        region = int(self.assignments[time].region[subject])
        if region == UNASSIGNED:
            return row
        to_references = self.table.at(time)[subject, :, region]
        row["reference"] = self.table.references[subject][int(np.nanargmin(to_references))]
        row["region"] = region
        box = self.table.regions[time][region].box
        if box is not None:
            row["left"], row["top"], row["right"], row["bottom"] = box
        return row

    def contents(self) -> dict[str, Any]:
        """Summary, worst image, the intervals of clips, and the surplus regions by image."""
        surplus = {}
        for time, regions in zip(self.table.times, self.surplus, strict=True):
            if regions:
                surplus[time] = regions
        return {
            "summary": self.summary.to_records(),
            "worst": self.worst,
            "intervals": self.intervals.to_records(),
            "surplus": surplus,
        }

    def lines(self) -> list[str]:
        """Rows, summary, intervals of clips, and notes."""
        names = ["subject", "state", "distance", "nearest", "threshold", "region", "image"]
        if self.times_of_clips:
            names.insert(-1, "seconds")
        lines = columns(self.rows, names)
        lines.append("")
        lines += columns(self.summary, ("subject", "n", "coverage", "mean", "worst", "swapped", "worst_image"))
        if self.intervals:
            lines.append("")
            lines += columns(self.intervals, ("subject", "state", "start", "end", "frames", "mean", "clip"))
        return lines + self._notes()

    def _notes(self) -> list[str]:
        """Swaps, surplus regions and subjects without states, which the columns of the table do not show."""
        notes = []
        for name, threshold, source in zip(self.table.subjects, self.thresholds, self.threshold_sources, strict=True):
            if source:
                notes.append(f"threshold of {name}: {four(threshold)} ({source})")
        swapped_in: dict[str, list[str]] = {}
        for image, subjects in zip(self.table.times, self.swapped, strict=True):
            for subject in subjects:
                swapped_in.setdefault(subject, []).append(image)
        for subject, images in swapped_in.items():
            notes.append(f"swapped: {subject} is in another subject's region in {', '.join(first_few(images))}")
        surplus_in = [image for image, regions in zip(self.table.times, self.surplus, strict=True) if regions]
        if surplus_in and self.table.subjects:
            count = sum(len(regions) for regions in self.surplus)
            notes.append(f"surplus regions: {count}, in {', '.join(first_few(surplus_in))}")
        if self._is_whole and len(self.table.subjects) > 1:
            notes.append("whole images are compared, so each can show only one subject: give regions for several")
        stateless = []
        for name, threshold in zip(self.table.subjects, self.thresholds, strict=True):
            if np.isnan(threshold):
                stateless.append(name)
        if stateless:
            notes.append(
                f"no states of {', '.join(stateless)}, and no coverage, mean or worst: give a threshold, a calibration "
                "or five photos of each"
            )
        return notes


INTERVAL_COLUMNS = ("clip", "subject", "state", "start", "end", "frames", "mean")
COUNTED: tuple[State, ...] = ("matched", "missing", "doubled", "unexpected")
# added to distances, which are at most 2
_MISSING_FIRST = 30.0
_SWAPPED_NEXT = 10.0
_UNEXPECTED_NEXT = 5.0


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
