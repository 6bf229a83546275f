"""The page of `idmetric match --html` without subjects: what each clip shows over time, and the images that differ.

See `idmetric.pages.render` for the common parts of all pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from idmetric.matching.page.clip_charts import ClipChart, ShownChange
from idmetric.matching.published_values import PublishedValue
from idmetric.matching.table import Table
from idmetric.metric.files.tables import four
from idmetric.pages.near_equal import grouped
from idmetric.pages.pictures import Thumbnail
from idmetric.pages.render import render, short
from idmetric.scoring.records import Record

if TYPE_CHECKING:
    from idmetric.matching.clip_segments import ClipSegments, ImageGroup

IMAGES = 200  # on a page
OPEN = 24  # images that are not folded
CLIPS = 12  # with a timeline


@dataclass(frozen=True)
class ImageCard:
    """An image on the page.

    Attributes:
        members: the image and the frames that are near-equal to it.
        mean: its mean distance to the other images of its group. to_first: to the first frame of its clip.
    """

    time: int
    members: list[int]
    mean: float
    to_first: float | None


@dataclass(frozen=True)
class WorstPair:
    """The two images of a group that differ most; "" stands for still images."""

    clip: str
    times: tuple[int, int]
    distance: float


def consistency_page(
    result: object,
    table: Table,
    rows: Sequence[Record],
    groups: Sequence[ImageGroup],
    timelines: Mapping[str, ClipSegments],
    thumbnails: Sequence[Thumbnail],
    thumbnails_between: Mapping[str, Thumbnail],
    numbers: Sequence[PublishedValue],
) -> str:
    """Make the page.

    Args:
        result: the `Consistency`, which the template reads.
        rows: of each group. groups: the images that are compared with each other.
        timelines: of each clip. thumbnails: of the images. thumbnails_between: of further frames, by name.
        numbers: published ones.

    Raises:
        ImportError: without jinja2.
    """
    pictures = dict(zip(table.times, thumbnails, strict=True)) | dict(thumbnails_between)
    charts: dict[str, ClipChart] = {}
    worst_pairs = []
    means: dict[int, float] = {}
    to_first: dict[int, float] = {}
    for group in groups:
        means |= dict(zip(group.times, group.mean_to_others.tolist(), strict=True))
        if len(group.times) > 1:
            worst_pairs.append(_worst_pair(group))
        if group.clip and group.times:
            to_first |= dict(zip(group.times, group.distances[0].tolist(), strict=True))
            if len(charts) < CLIPS:
                charts[group.clip] = _chart(group, table, timelines[group.clip], pictures)

    farthest_first = sorted(means, key=lambda time: -means[time])
    kinds = [clip or None for clip in table.clips]
    cards = []
    card_of: dict[int, int] = {}  # the image that stands for each image
    for time, members in grouped(farthest_first, kinds, thumbnails, IMAGES).items():
        cards.append(ImageCard(time, members, means[time], to_first.get(time)))
        card_of |= dict.fromkeys(members, time)

    files = [*table.times, *timelines]
    return render(
        "idmetric.matching.page",
        "consistency",
        ("theme.js",),
        result=result,
        rows=rows,
        timelines=timelines,
        charts=charts,
        worst_pairs=worst_pairs,
        to_first=to_first,
        cards=cards,
        card_of=card_of,
        anchors={table.times[time]: card for time, card in card_of.items()},
        names=dict(zip(files, short(files), strict=True)),
        numbers=numbers,
        open=OPEN,
        four=four,
    )


def _chart(group: ImageGroup, table: Table, timeline: ClipSegments, pictures: Mapping[str, Thumbnail]) -> ClipChart:
    """The distance to the first frame over time."""
    to_first = group.distances[0]
    changes = []
    for change in timeline.changes:
        text = f"{change.old_segment} to {change.new_segment}, distance {four(change.distance)},"
        texts = (f"segment {change.old_segment}", f"segment {change.new_segment}")
        changes.append(ShownChange.of(text, -1, change.border, pictures, texts))
    return ClipChart.of(
        group.clip,
        group.times,
        worst=group.times[int(to_first.argmax())],
        seconds=[table.seconds[time] for time in group.times],
        distances=to_first.tolist(),
        changes=changes,
    )


def _worst_pair(group: ImageGroup) -> WorstPair:
    left, right = np.unravel_index(int(group.distances.argmax()), group.distances.shape)
    earlier, later = sorted((group.times[left], group.times[right]))
    return WorstPair(group.clip, (earlier, later), float(group.distances[left, right]))
