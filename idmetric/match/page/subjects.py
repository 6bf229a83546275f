"""The page of `idmetric match --html`: images with their regions, the worst first, and timelines of clips.

See `idmetric.match.page.render` for the common parts of all pages.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.match.page.render import render, short
from idmetric.match.page.thumbnails import Thumbnail
from idmetric.match.page.timeline import Label, Timeline, timeline_of
from idmetric.match.regions import Box
from idmetric.match.table import Table
from idmetric.metric.files.hints import need
from idmetric.metric.files.tables import first_few, four
from idmetric.metric.scoring.records import Record

IMAGES = 200  # on a page, with about 3 MB of photos
REGIONS = 12  # of an image
OPEN = 24  # images that are not folded
CLIPS = 12  # with a timeline
_SKIPPED = 100  # lines
_STRONGEST = 45  # percent of the accent color in the nearest cell: text stays legible on it
_WORDS = {
    "matched": "matched at",
    "missing": "missing; nearest region at",
    "doubled": "doubled; its region at",
    "blended": "blended with another subject; region at",
    "": "region at",
}


@dataclass(frozen=True)
class Content:
    """What the page shows of a `Match`: T images, S subjects, R regions.

    Attributes:
        rows: of each image and subject, image by image. summary, worst, skipped, signature: as in `Match`.
        by_region: distances (T, S, R). badness: (T, S); the image with the largest comes first.
        surplus: of each image, regions that show no subject. boxes: of its regions (R, 4), in pixels.
    """

    table: Table
    rows: Sequence[Record]
    summary: Sequence[Record]
    worst: Mapping[str, Any]
    by_region: NDArray[np.float64]
    badness: NDArray[np.float64]
    surplus: Sequence[Sequence[int]]
    boxes: Sequence[NDArray[np.float64]]
    thumbnails: Sequence[Thumbnail]
    skipped: Mapping[str, str]
    signature: Mapping[str, str]

    def rows_of(self, time: int) -> Sequence[Record]:
        """The rows of an image, one for each subject."""
        count = len(self.table.subjects)
        return self.rows[time * count : (time + 1) * count]


@dataclass(frozen=True)
class Outline:
    """A region on its image.

    Attributes:
        box: left, top, width and height in percent.
        subject: that it shows, or None. is_assigned: whether it is this subject's region.
        text: the name.
    """

    number: int
    box: Box
    subject: int | None
    is_assigned: bool
    text: str


@dataclass(frozen=True)
class Card:
    """An image on the page.

    Attributes:
        states: of each subject, in words, and the state. regions: the ones that are shown. count: of all.
        cells: of each subject, the text and the strength of the color for each shown region.
    """

    time: int
    name: str
    picture: str
    thumbnail: Thumbnail
    states: list[tuple[str, str]]
    regions: list[Outline]
    count: int
    cells: list[list[tuple[str, int]]]


def match_page(content: Content) -> str:
    """Make the page.

    Raises:
        ImportError: without jinja2.
    """
    need("match", "an HTML page", jinja2="jinja2")
    table = content.table
    worst_first = np.argsort(-content.badness.max(1), kind="stable").tolist()
    shown = worst_first[:IMAGES]
    compared = content.by_region[np.isfinite(content.by_region)]
    low, high = (compared.min(), compared.max()) if compared.size else (0.0, 1.0)
    timelines = _timelines(content, worst_first, set(shown))
    anchors = {table.times[time]: time for time in reversed(shown)}
    thresholds = [row["threshold"] for row in content.rows_of(0)]
    skipped = [f"{image}: {reason}" for image, reason in content.skipped.items()]
    files = [*table.times, *(clip for clip in table.clips if clip)]
    worst_words = ""
    if shown:
        worst_words = words(content.rows_of(shown[0])[int(content.badness[shown[0]].argmax())])
    return render(
        "idmetric.match.page",
        "match",
        ("theme.js",),
        {},
        cards=[_card(content, time, low, high) for time in shown],
        timelines=timelines,
        clips=len(set(table.clips) - {""}),
        anchors=anchors,
        names=dict(zip(files, short(files), strict=True)),
        open=OPEN,
        worst_words=worst_words,
        count=len(table.times),
        subjects=table.subjects,
        thresholds=dict(zip(table.subjects, thresholds, strict=False)),
        summary=content.summary,
        worst=content.worst,
        surplus=sum(map(len, content.surplus)),
        skipped=first_few(skipped, _SKIPPED),
        skipped_count=len(skipped),
        signature=content.signature,
        four=four,
    )


def _timelines(content: Content, worst_first: Sequence[int], shown: set[int]) -> list[Timeline]:
    """The timelines of the clips, the one with the worst frame first."""
    times_of: dict[str, list[int]] = {}
    for time in worst_first:
        clip = content.table.clips[time]
        if clip:
            times_of.setdefault(clip, []).append(time)
    timelines = []
    for clip, times in list(times_of.items())[:CLIPS]:
        nearest = []
        for time in sorted(times):
            nearest.append([row["nearest"] for row in content.rows_of(time)])
        labels = {}
        for time in shown.intersection(times):
            rows = content.rows_of(time)
            labels[time] = [Label(words(row), row["state"] != "missing") for row in rows]
        timelines.append(
            timeline_of(
                clip,
                times=sorted(times),
                seconds=content.table.seconds,
                nearest=np.array(nearest, dtype=float),  # NaN for None
                labels=labels,
                worst=(times[0], int(content.badness[times[0]].argmax())),
                thumbnails=content.thumbnails,
            )
        )
    return timelines


def words(row: Record) -> str:
    """The state of a subject in an image.

    >>> words({"state": "missing", "nearest": 0.34, "distance": None, "region": 1, "swapped": False})
    'missing; nearest region at 0.3400'
    """
    state = row["state"]
    if row["nearest"] is None:
        text = f"{state or 'not found'}; no region to compare"
    elif state == "" and row["region"] is None:
        text = f"no region left; nearest region at {four(row['nearest'])}"
    else:
        text = f"{_WORDS[state]} {four(row['nearest'])}"
    if row["distance"] not in (None, row["nearest"]):
        text += f"; counts as {four(row['distance'])}"
    if row["swapped"]:
        text += "; swapped"
    return text


# Images


def _card(content: Content, time: int, low: float, high: float) -> Card:
    """An image; `low` and `high` are the ends of the colors of distances."""
    thumbnail = content.thumbnails[time]
    count = len(content.table.regions[time])
    distances = content.by_region[time, :, :count]
    rows = content.rows_of(time)
    regions = _shown_regions(distances, rows)
    cells = []
    for row in distances[:, regions]:
        cells.append([_cell(distance, low, high) for distance in row])
    return Card(
        time=time,
        name=content.table.times[time],
        picture=f"data:image/jpeg;base64,{base64.b64encode(thumbnail.jpeg).decode('ascii')}",
        thumbnail=thumbnail,
        states=[(words(row), row["state"]) for row in rows],
        regions=[_outline(content, time, region) for region in regions],
        count=count,
        cells=cells,
    )


def _shown_regions(distances: NDArray[np.float64], rows: Sequence[Record]) -> list[int]:
    """The regions of an image that the page shows: of many, the assigned and the nearest ones."""
    assigned = [row["region"] for row in rows]

    def rank(region: int) -> tuple[bool, float]:
        nearest = np.nan_to_num(distances[:, region], nan=np.inf).min()
        return region not in assigned, nearest

    ranked = sorted(range(distances.shape[1]), key=rank)
    return sorted(ranked[:REGIONS])


def _cell(distance: float, low: float, high: float) -> tuple[str, int]:
    """Text and strength of the color, in percent; the nearest is the strongest."""
    if np.isnan(distance):
        return "–", 0
    nearness = (high - distance) / (high - low) if high > low else 0.0
    return four(distance), round(_STRONGEST * nearness)


def _outline(content: Content, time: int, region: int) -> Outline:
    """A region, in the color of the subject that it shows."""
    thumbnail = content.thumbnails[time]
    left, top, right, bottom = content.boxes[time][region].tolist()
    across = 100 / thumbnail.width
    along = 100 / thumbnail.height
    subject = None
    is_assigned = False
    for number, row in enumerate(content.rows_of(time)):
        distance = content.by_region[time, number, region]
        is_within = row["threshold"] is not None and distance <= row["threshold"]
        if row["region"] == region and row["state"] != "missing":
            subject = number
            is_assigned = True
        elif is_within and subject is None:
            subject = number

    if subject is None:
        text = "surplus" if region in content.surplus[time] else ""
    elif is_assigned:
        text = content.table.subjects[subject]
    else:
        text = f"also {content.table.subjects[subject]}"
    box = (left * across, top * along, (right - left) * across, (bottom - top) * along)
    return Outline(region, box, subject, is_assigned, text)
