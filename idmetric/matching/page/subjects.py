"""The page of `idmetric match --html`: images with their regions, the worst first, and timelines of clips.

See `idmetric.pages.render` for the common parts of all pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.matching.assignment import counted
from idmetric.matching.changes import StateChange
from idmetric.matching.page.clip_charts import ClipChart, ShownChange
from idmetric.matching.published_values import PublishedValue
from idmetric.matching.table import Table
from idmetric.metric.files.tables import four
from idmetric.pages.chart import percent
from idmetric.pages.near_equal import grouped
from idmetric.pages.pictures import Thumbnail
from idmetric.pages.render import render, short
from idmetric.scoring.records import Record

IMAGES = 200  # on a page, with about 3 MB of photos
REGIONS = 12  # of an image
OPEN = 24  # images that are not folded
CLIPS = 12  # with a timeline
COLUMNS = 60  # images in the matrix of subjects by images

# kind of a cell of the matrix -> how it is written
SYMBOLS = {
    "matched": "✓",
    "missing": "✗",
    "swapped": "⇄",
    "doubled": "2×",
    "blended": "◐",
    "unexpected": "!",
    "absent": "·",
    "": "",
}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Card:
    """An image on the page.

    Attributes:
        regions: the ones that are shown: of many, the assigned and the nearest ones.
        subjects: the subject that each region of the image shows, -1 for none.
        members: the image and the frames that are near-equal to it.
    """

    time: int
    regions: list[int]
    subjects: list[int]
    members: list[int]


@dataclass(frozen=True)
class MatrixCell:
    """A subject in an image, in the matrix.

    Attributes:
        kind: "swapped", or else the subject's state; "" without a threshold. row: its numbers.
        strength: of the color, 0..100: the distance to the threshold, in either direction; without a threshold, the
            nearness.
    """

    kind: str
    row: Record
    strength: float

    @classmethod
    def of(cls, row: Record, low: float, high: float) -> MatrixCell:
        """The cell of a row; low and high are the ends of all distances of the page."""
        kind = "swapped" if row["swapped"] else row["state"]
        nearest, threshold = row["nearest"], row["threshold"]
        if nearest is None:
            return cls(kind, row, 100.0 if kind else 0.0)
        weakest = high if threshold is None else threshold
        strongest = low if nearest <= weakest else high
        if strongest == weakest:
            return cls(kind, row, 100.0)
        return cls(kind, row, percent(nearest, weakest, strongest))

    @property
    def symbol(self) -> str:
        """How the kind is written."""
        return SYMBOLS[self.kind]


@dataclass(frozen=True)
class Matrix:
    """Subjects by images.

    Attributes:
        times: the images of its columns, in order. heads: their numbers, for a frame that in its clip.
        cells: of each subject, the cell of each image.
    """

    times: list[int]
    heads: list[str]
    cells: list[list[MatrixCell]]

    @classmethod
    def of(cls, table: Table, rows_of: Sequence[Sequence[Record]], low: float, high: float) -> Matrix | None:
        """The first images, without frames of longer clips, which have a timeline; None for one image or subject."""
        frame_counts = Counter(table.clips)
        times = []
        for time, clip in enumerate(table.clips):
            if not clip or frame_counts[clip] <= COLUMNS:
                times.append(time)
        times = times[:COLUMNS]
        if len(times) < 2 or len(table.subjects) < 2:
            return None

        cells = []
        for subject in range(len(table.subjects)):
            cells.append([MatrixCell.of(rows_of[time][subject], low, high) for time in times])

        heads = []
        for time in times:
            name, clip = table.times[time], table.clips[time]
            heads.append(name.removeprefix(f"{clip} @ ") if clip else str(time + 1))
        return cls(times, heads, cells)

    @property
    def kinds(self) -> list[str]:
        """The kinds of cells that occur, in the order of their symbols."""
        occurring = {cell.kind for row in self.cells for cell in row}
        return [kind for kind in SYMBOLS if kind in occurring]


def match_page(
    result: object,
    table: Table,
    rows: Sequence[Record],
    by_region: Array,
    badness: Array,
    thumbnails: Sequence[Thumbnail],
    changes: Sequence[StateChange],
    thumbnails_between: Mapping[str, Thumbnail],
    numbers: Sequence[PublishedValue],
) -> str:
    """Make the page.

    Args:
        result: the `Match`, which the template reads.
        rows: of each image and subject, image by image. by_region: distances (T, S, R).
        badness: (T, S); the image with the largest comes first.
        thumbnails: of the images. changes: of the subjects' states. thumbnails_between: of their further frames.
        numbers: published ones.

    Raises:
        ImportError: without jinja2.
    """
    worst_first = np.argsort(-badness.max(1), kind="stable").tolist()
    frames_of_clips: dict[str, list[int]] = {}
    for time in worst_first:
        frames_of_clips.setdefault(table.clips[time], []).append(time)
    frames_of_clips.pop("", None)  # images
    clips = list(frames_of_clips)

    count = len(table.subjects)
    rows_of = []
    for start in range(0, len(rows), count):
        rows_of.append(rows[start : start + count])
    pictures = dict(zip(table.times, thumbnails, strict=True)) | dict(thumbnails_between)
    shown_changes = _shown_changes(table.subjects, changes, pictures)
    charts = []
    for clip in clips[:CLIPS]:
        charts.append(_chart(clip, frames_of_clips[clip], rows_of, shown_changes.get(clip, [])))

    kinds = [_kind(clip, rows_of[time]) for time, clip in enumerate(table.clips)]
    groups = grouped(worst_first, kinds, thumbnails, IMAGES)
    cards = []
    card_of: dict[int, int] = {}  # the image that stands for each image
    for time, members in groups.items():
        distances = by_region[time, :, : len(table.regions[time])]
        cards.append(_card(time, members, rows_of[time], distances))
        card_of |= dict.fromkeys(members, time)

    files = [*table.times, *clips]
    compared = by_region[np.isfinite(by_region)]
    low = float(compared.min(initial=np.inf))
    high = float(compared.max(initial=-np.inf))
    return render(
        "idmetric.matching.page",
        "match",
        ("theme.js",),
        result=result,
        subjects=table.subjects,
        rows_of=rows_of,
        badness=badness,
        cards=cards,
        matrix=Matrix.of(table, rows_of, low, high),
        symbols=SYMBOLS,
        card_of=card_of,
        charts=charts,
        clips=len(clips),
        anchors={table.times[time]: card for time, card in card_of.items()},
        names=dict(zip(files, short(files), strict=True)),
        numbers=numbers,
        low=low,
        high=high,
        open=OPEN,
        four=four,
    )


def _kind(clip: str, rows: Sequence[Record]) -> Hashable:
    """Near-equal frames of one kind stand once: of one clip, with the same states. None for still images."""
    if not clip:
        return None
    states = tuple((row["state"], row["swapped"]) for row in rows)
    return clip, states


def _shown_changes(
    subjects: Sequence[str], changes: Sequence[StateChange], pictures: Mapping[str, Thumbnail]
) -> dict[str, list[ShownChange]]:
    """The changes of each clip."""
    shown: dict[str, list[ShownChange]] = {}
    for change in changes:
        texts = (
            _at_border(change.old_state, change.last_distance),
            _at_border(change.new_state, change.first_distance),
        )
        number = subjects.index(change.subject)
        shown_change = ShownChange.of(change.subject, number, change.border, pictures, texts)
        shown.setdefault(change.clip, []).append(shown_change)
    return shown


def _at_border(state: str, distance: float | None) -> str:
    return state if distance is None else f"{state}, {four(distance)}"


def _chart(
    clip: str, worst_first: Sequence[int], rows_of: Sequence[Sequence[Record]], changes: list[ShownChange]
) -> ClipChart:
    """The chart of a clip, by its frames and the rows of all images."""
    times = sorted(worst_first)
    seconds = [rows_of[time][0]["seconds"] for time in times]
    distances = []
    for time in times:
        distances += [row["nearest"] for row in rows_of[time] if row["nearest"] is not None]
    return ClipChart.of(clip, times, worst_first[0], seconds, distances, changes)


def _card(time: int, members: list[int], rows: Sequence[Record], distances: Array) -> Card:
    """An image; `distances` (S, R) are those to its regions."""
    thresholds = np.array([row["threshold"] for row in rows], dtype=float)  # NaN for None
    counts = counted(distances, thresholds)
    subjects = np.where(counts.any(0), counts.argmax(0), -1)
    ranks = np.fmin.reduce(distances, 0)
    for number, row in enumerate(rows):
        region = row["region"]
        if region is not None:
            ranks[region] = -1  # before all others
            if row["state"] != "missing":
                subjects[region] = number
    regions = ranks.argsort(kind="stable")[:REGIONS]
    return Card(time, sorted(regions.tolist()), subjects.tolist(), members)
