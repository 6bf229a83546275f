"""The result of `match`: the distances of every region to every subject, and who is where."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.matching.assignment import FOUND, Assignment, State
from idmetric.matching.clips import Cutouts
from idmetric.metric.files import StrPath, first_few, json_text
from idmetric.scoring.references import Aggregate
from idmetric.scoring.scores import Limit, Record, Records
from idmetric.tables import aligned, four, rounded

COLUMNS = (
    *("image", "clip", "seconds", "subject", "expected", "state", "region", "label", "left", "top", "right", "bottom"),
    *("distance", "counts", "assigned", "threshold", "threshold_source"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Match(Records):
    """A row for each image, subject and region, and one for each unknown region.

    T images or frames, S subjects, K references, R regions. Columns: image, clip, seconds, subject (None for an unknown
    region), expected (whether it is in the image's cast), state (of the subject in the image), region (its number; None
    in an image without any), label, left, top, right, bottom (in pixels), distance (over the references), counts
    (whether the region counts as the subject), assigned, threshold, threshold_source, and the signature.

    Attributes:
        distances: (T, S, K, R); lower = more surely the same identity. NaN where a subject has fewer references, or an
            image fewer regions. With gradients if the pixels had them.
        images: with their regions. assignments: of each image.
        limits: of each subject, the largest distance that counts as it, and its source; None without one.
        skipped: image or clip -> why it has no rows.
        unlisted: the images that a file or a dict of regions does not list; they count as images without regions.
        signature: what distances and states depend on.
    """

    distances: Tensor
    images: tuple[Cutouts, ...]
    assignments: tuple[Assignment, ...]
    limits: Mapping[str, Limit | None]
    skipped: Mapping[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    signature: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Match({len(self.images)} images, subjects {', '.join(self.limits)})"

    @property
    def states(self) -> list[list[State]]:
        """The state of each subject in each image, (T, S), see `idmetric.matching.assignment`."""
        return [list(assignment.states) for assignment in self.assignments]

    @property
    def table(self) -> Any:
        """The rows as a pandas DataFrame."""
        numbers = dict.fromkeys(("seconds", "distance", "threshold"), float)
        return self.to_pandas().astype(numbers)

    @property
    def best(self) -> Any:
        """A DataFrame with one row for each image and subject: that of its assigned region, else of the nearest one."""
        table = self.table
        of_subjects = table[table["subject"].notna()]
        in_order = of_subjects.sort_values(["assigned", "distance"], ascending=[False, True])
        return in_order.drop_duplicates(["image", "subject"]).sort_index()

    @property
    def summary(self) -> Any:
        """A DataFrame with a row for each subject, over the images with it in their cast.

        Columns: subject, n (such images), found (their share in which it is found, by its state; NaN without a
        threshold), mean (distance where it is found), worst (the largest distance to its region, whatever the
        threshold) and worst_image.
        """
        best = self.best
        is_expected = best["expected"].astype(bool)
        best = best[is_expected].sort_values("distance", ascending=False, kind="stable")
        is_found = best["state"].isin(FOUND)
        best["found"] = is_found.astype(float).where(best["state"] != "")
        best["mean"] = best["distance"].where(is_found)

        groups = best.groupby("subject")
        summary = groups["image"].size().rename("n").to_frame()
        summary["found"] = groups["found"].mean()
        summary["mean"] = groups["mean"].mean()
        summary["worst"] = groups["distance"].first()
        summary["worst_image"] = groups["image"].first()
        summary = summary.reindex(self.limits)
        summary["n"] = summary["n"].fillna(0).astype(int)  # a subject may be in no cast
        return summary.rename_axis("subject").reset_index()

    def intervals(self) -> Any:
        """A DataFrame with a row for each time in which a subject keeps its state, in the frames of a clip.

        Columns: clip, subject, state, start and end (seconds of the first and of the last frame), frames (their
        number), and mean (distance where it is found). Subjects without a threshold have none.
        """
        best = self.best
        has_time = best["clip"] != ""
        has_state = best["state"] != ""
        frames = best[has_time & has_state].sort_values(["clip", "subject"], kind="stable")  # each in order of time
        is_found = frames["state"].isin(FOUND)
        frames["mean"] = frames["distance"].where(is_found)

        keys = ["clip", "subject", "state"]
        is_new = frames[keys] != frames[keys].shift()
        frames["run"] = is_new.any(axis=1).cumsum()
        groups = frames.groupby([*keys, "run"], sort=False)
        intervals = groups["seconds"].agg(start="first", end="last", frames="size")
        intervals["mean"] = groups["mean"].mean()
        return intervals.reset_index().drop(columns="run")

    # Output

    def to_json(self) -> str:
        """Signature, rows, summary and intervals, and the images without rows or regions."""
        content = {
            "signature": dict(self.signature),
            "rows": self.to_records(),
            "summary": _records(self.summary),
            "intervals": _records(self.intervals()),
            "skipped": dict(self.skipped),
            "unlisted": list(self.unlisted),
        }
        return json_text(rounded(content), indent=2) + "\n"

    def to_table(self) -> str:
        """Best rows, summary and intervals in aligned columns for a terminal, then what all rows share."""
        best = _records(self.best)
        lines = column_lines(best, ("subject", "state", "distance", "threshold", "region", "image"))
        for frame in (self.summary, self.intervals()):
            if len(frame):
                lines.append("")
                lines += column_lines(_records(frame), list(frame.columns))
        lines += self.notes
        lines.append(signature_line(self.signature))
        return "\n".join(lines) + "\n"

    @property
    def notes(self) -> list[str]:
        """Thresholds, and images with unknown regions."""
        notes = []
        for name, limit in self.limits.items():
            notes.append(f"threshold of {name}: {limit or 'none, so no states: give one, or five photos'}")
        unknown = []
        for image, assignment in zip(self.images, self.assignments, strict=True):
            if assignment.unknown:
                unknown.append(image.moment.name)
        if unknown:
            notes.append(f"unknown regions in {len(unknown)} images: {', '.join(first_few(unknown, 5))}")
        are_whole = all(region.is_whole for image in self.images for region in image.regions)
        if len(self.limits) > 1 and are_whole:
            notes.append("whole images are compared, so each can show only one subject: give regions for several")
        return notes

    def write(self, path: StrPath) -> None:
        """Write the rows as .csv, .json or .jsonl, or the page (.html), atomically; ValueError for another ending."""
        if os.fspath(path).lower().endswith(".html"):
            from idmetric.matching.sheet import match_page
            from idmetric.page import write_page

            write_page(match_page(self), path)
            return
        super().write(path)


def image_rows(
    image: Cutouts,
    assignment: Assignment,
    distances: NDArray[Any],
    limits: Mapping[str, Limit | None],
    members: Sequence[bool],
) -> list[Record]:
    """The rows of an image, without the signature.

    Args:
        distances: (S, R), over the references. members: whether each subject should be in the image.
    """
    regions = []
    for number, (region, box) in enumerate(zip(image.regions, image.boxes, strict=True)):
        left, top, right, bottom = box
        columns = {
            "region": number,
            "label": region.label,
            "left": left,
            "top": top,
            "right": right,
            "bottom": bottom,
        }
        regions.append(columns)
    moment = image.moment
    shared: Record = dict.fromkeys(COLUMNS) | {"image": moment.name, "clip": moment.clip}
    if moment.clip:
        shared["seconds"] = moment.seconds
    shared |= {"counts": False, "assigned": False}

    rows = []
    for subject, (name, limit) in enumerate(limits.items()):
        of_subject = {
            "subject": name,
            "expected": members[subject],
            "state": assignment.states[subject],
        }
        row = shared | of_subject
        if limit is not None:
            row |= {"threshold": limit.distance, "threshold_source": limit.source}
        if not regions:
            rows.append(row)
        for number, region_columns in enumerate(regions):
            of_both = {
                "distance": float(distances[subject, number]),
                "counts": bool(assignment.within[subject, number]),
                "assigned": bool(assignment.region[subject] == number),
            }
            rows.append(row | region_columns | of_both)
    for number in assignment.unknown:
        rows.append(shared | regions[number] | {"state": "unknown"})
    return rows


def over_references(distances: Tensor, aggregate: Aggregate = "best") -> Tensor:
    """Distances (T, S, R): to the nearest reference of a subject, or the mean over its references.

    Args:
        distances: (T, S, K, R), NaN where nothing was compared, as the result is.
    """
    if aggregate == "mean":
        return distances.nanmean(2)
    is_compared = ~distances.isnan()
    nearest = torch.where(is_compared, distances, torch.inf).amin(2)
    return torch.where(is_compared.any(2), nearest, torch.nan)


def _records(frame: Any) -> list[Record]:
    """The rows of a DataFrame, None where a value is missing."""
    records: list[Record] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return records


def column_lines(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Some columns of a table, aligned; "-" where there is no value."""
    lines = [list(names)]
    for row in records:
        cells = []
        for name in names:
            value = row[name]
            if value in (None, ""):
                value = "-"
            elif isinstance(value, float):
                value = four(value)
            cells.append(str(value))
        lines.append(cells)
    return aligned(lines)


def signature_line(signature: Mapping[str, str]) -> str:
    """The signature in a line for a terminal."""
    return "  ".join(f"{name}={value}" for name, value in signature.items())
