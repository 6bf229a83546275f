"""The page of `idmetric match --html`: images with their regions, the worst first, and timelines of clips.

See `idmetric.match.page.render` for the common parts of all pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.match.page.render import render, short
from idmetric.match.page.thumbnails import Thumbnail
from idmetric.match.page.timeline import Timeline
from idmetric.match.table import Table
from idmetric.metric.files.tables import four
from idmetric.metric.scoring.records import Record

IMAGES = 200  # on a page, with about 3 MB of photos
REGIONS = 12  # of an image
OPEN = 24  # images that are not folded
CLIPS = 12  # with a timeline


@dataclass(frozen=True)
class Content:
    """What the page shows of a `Match`: T images, S subjects, R regions.

    Attributes:
        rows: of each image and subject, image by image. summary, skipped, signature: as in `Match`.
        by_region: distances (T, S, R). nearest: (T, S).
        badness: (T, S); the image with the largest comes first.
        surplus: of each image, regions that show no subject. boxes: of its regions (R, 4), in pixels.
    """

    table: Table
    rows: Sequence[Record]
    summary: Sequence[Record]
    by_region: NDArray[np.float64]
    nearest: NDArray[np.float64]
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
class Card:
    """An image on the page.

    Attributes:
        regions: the ones that are shown: of many, the assigned and the nearest ones.
        subjects: the subject that each region of the image shows, -1 for none.
    """

    time: int
    regions: list[int]
    subjects: list[int]


def match_page(content: Content) -> str:
    """Make the page.

    Raises:
        ImportError: without jinja2.
    """
    table = content.table
    worst_first = np.argsort(-content.badness.max(1), kind="stable").tolist()
    frames_of_clips: dict[str, list[int]] = {}
    for time in worst_first:
        frames_of_clips.setdefault(table.clips[time], []).append(time)
    frames_of_clips.pop("", None)  # images
    timelines = []
    for clip, frames in list(frames_of_clips.items())[:CLIPS]:
        timelines.append(Timeline.of(clip, frames, table.seconds, content.nearest))

    shown = worst_first[:IMAGES]
    files = [*table.times, *frames_of_clips]
    compared = content.by_region[np.isfinite(content.by_region)]
    return render(
        "idmetric.match.page",
        "match",
        ("theme.js",),
        content=content,
        subjects=table.subjects,
        cards=[_card(content, time) for time in shown],
        timelines=timelines,
        clips=len(frames_of_clips),
        anchors={table.times[time]: time for time in reversed(shown)},
        names=dict(zip(files, short(files), strict=True)),
        low=compared.min(initial=np.inf),
        high=compared.max(initial=-np.inf),
        open=OPEN,
        four=four,
    )


def _card(content: Content, time: int) -> Card:
    rows = content.rows_of(time)
    distances = content.by_region[time, :, : len(content.table.regions[time])]
    thresholds = np.array([row["threshold"] for row in rows], dtype=float)  # NaN for None
    is_within = distances <= thresholds[:, None]
    subjects = np.where(is_within.any(0), is_within.argmax(0), -1)
    ranks = np.fmin.reduce(distances, 0)
    for number, row in enumerate(rows):
        region = row["region"]
        if region is not None:
            ranks[region] = -1  # before all others
            if row["state"] != "missing":
                subjects[region] = number
    regions = ranks.argsort(kind="stable")[:REGIONS]
    return Card(time, sorted(regions.tolist()), subjects.tolist())
