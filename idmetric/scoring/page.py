"""The page of `idmetric score --html`: images sorted by distance, and a threshold to move.

See `idmetric.pages.render` for the common parts of all pages.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from idmetric.pages.chart import Scale, percent
from idmetric.pages.render import render, short
from idmetric.scoring.album import Album, FileAlbum

_COPY = " repeats the pixels of "  # in the warning of a copy
_BINS = 100  # in the strip of distances
_DOT = 9.0  # distance between stacked dots in pixels, if there is room
_STRIP = 96  # greatest height of the strip in pixels


def score_page(scores: Any, album: Album | FileAlbum, *, messages: Sequence[str] = ()) -> str:
    """Make the page of scores; it starts at the threshold in force.

    Args:
        scores: `Scores`, whose module imports this one.
        album: the pictures of the rows; it has watched the scoring, or reads the files.
        messages: warnings to show.

    Raises:
        ImportError: without jinja2.
    """
    ranked = sorted(scores.rows, key=lambda row: row["rank"])
    entries = album.finish(ranked)
    facts = scores.to_dict()
    limit = scores.limit
    real: Mapping[str, float] = {}
    if scores.baseline is not None:
        real = scores.baseline.distances
    distances = [entry.row["distance"] for entry in entries]
    axis = _axis(distances, real, limit.distance if limit is not None else math.nan)

    references = list(album.references)
    number = {file: index for index, file in enumerate(references)}
    files = references + [entry.image for entry in entries]
    paths = [path for path, _ in files]
    names = dict(zip(paths, short(paths), strict=True))
    cards = []
    for entry in entries:
        path, reference_path = entry.image[0], entry.reference[0]
        itself = os.path.realpath(path) == os.path.realpath(reference_path)
        cards.append(
            {
                "row": entry.row,
                "path": path,
                "picture": album.pictures[entry.image],
                "reference": number[entry.reference],
                "bar": percent(entry.row["distance"], axis.low, axis.high),
                "itself": itself,  # no copy
                "copied": bool(entry.row.get("copy")) and not itself,
            }
        )

    finite = [distance for distance in distances if math.isfinite(distance)] or [math.nan]
    return render(
        "idmetric.scoring",
        "score",
        ("theme.js", "score.js"),
        record=facts,
        **facts,
        names=names,
        messages=[message for message in messages if _COPY not in message],
        copy_messages=[message for message in messages if _COPY in message],
        cards=cards,
        references=references,
        pictures=album.pictures,
        nearest_of=Counter(entry.reference for entry in entries),
        axis=axis,
        limit=limit,
        nearest=min(finite),
        farthest=max(finite),
        median=statistics.median(finite),
        mean=statistics.fmean(finite),
    )


# The strip of distances


@dataclass(frozen=True)
class Axis:
    """The axis of distances.

    Attributes:
        low, high: its ends, round numbers. step: of the slider. ticks: x in percent, and text.
        dots: x in percent and y in pixels of each distance; dots of a bin are stacked. height: in pixels.
        real: name, and x in percent, of each genuine photo.
    """

    low: float
    high: float
    step: float
    ticks: list[tuple[float, str]]
    dots: list[tuple[float, float]]
    height: float
    real: list[tuple[str, float]]


def _axis(
    distances: Sequence[float],
    real: Mapping[str, float],
    threshold: float,
) -> Axis:
    # the ends are round numbers
    finite = [distance for distance in (*distances, *real.values()) if math.isfinite(distance)]
    farthest = 1.0
    if finite:
        farthest = max(1e-3, *finite)
    values = [0.0, farthest, *finite]
    if 0 <= threshold <= 2 * farthest:
        values.append(threshold)
    scale = Scale.of("distance", values, style=".4f")
    low = scale.low
    high = scale.high

    # a few dots stand at their distances, many in columns
    positions = [percent(distance, low, high) for distance in distances]
    columns = [int(x * _BINS / 100.001) for x in positions]
    gap = min(_DOT, _STRIP / max(Counter(columns).values(), default=1))
    heights: Counter[int] = Counter()
    dots = []
    for x, column in zip(positions, columns, strict=True):
        if gap < _DOT:
            x = round(100 * (column + 0.5) / _BINS, 2)
        y = round(2 + gap * heights[column], 1)
        dots.append((x, y))
        heights[column] += 1

    return Axis(
        low=round(low, 10),
        high=round(high, 10),
        step=round((high - low) / 1000, 12),
        ticks=scale.ticks,
        dots=dots,
        height=round(max(36.0, gap * max(heights.values()) + 10)),
        real=[(name, percent(distance, low, high)) for name, distance in real.items()],
    )
