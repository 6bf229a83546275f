"""The page of `idmetric score --html`: images sorted by distance, a threshold to move, matched patches side by side.

See `idmetric.evaluate.report.page` for the common parts of all pages.
"""

from __future__ import annotations

import base64
import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.report.chart import percent, round_step
from idmetric.evaluate.report.heatmap import colors
from idmetric.evaluate.report.page import render
from idmetric.metric.scoring.references import ENOUGH

if TYPE_CHECKING:
    from idmetric.evaluate.report.album import Album, Entry
    from idmetric.metric.scoring.scores import Scores

_COPY = " repeats the pixels of "  # in the warning of a copy
_BINS = 100  # in the strip of distances
_DOT = 9.0  # distance between stacked dots in pixels, if there is room
_STRIP = 96  # greatest height of the strip in pixels


@dataclass(frozen=True)
class Offer:
    """A threshold that the page offers; if it is not `firm`, it sorts the images without a verdict."""

    label: str
    distance: float
    firm: bool = True


def score_page(scores: Scores, album: Album, *, messages: Sequence[str] = ()) -> str:
    """Make the page of scores; it starts at the first threshold, the given one or that of the references.

    Args:
        album: the pictures and matches of the rows; it has watched the scoring.
        messages: warnings to show.

    Raises:
        ImportError: without jinja2.
    """
    entries = album.finish(sorted(scores.rows, key=lambda row: row["rank"]))
    thresholds, found = _offers(scores), scores.to_dict()
    references = list(album.references)
    names = _short([file[0] for file in references] + [entry.image[0] for entry in entries])
    finite = [e.row["distance"] for e in entries if math.isfinite(e.row["distance"])] or [math.nan]
    baseline = found.get("baseline")
    real = baseline["distances"] if baseline else {}
    axis = _axis([e.row["distance"] for e in entries], real, [offer.distance for offer in thresholds])
    number = {file: k for k, file in enumerate(references)}
    beside = Counter(entry.reference for entry in entries)
    cards = [
        {
            "row": entry.row, "name": name, "path": entry.image[0], "picture": album.pictures[entry.image],
            "reference": number[entry.reference], "bar": percent(entry.row["distance"], axis.low, axis.high),
            "itself": _is_itself(entry), "copied": bool(entry.row.get("copy")) and not _is_itself(entry),
            "agreement": entry.row.get("copy_agreement", 0.0), "closer": _closer(entry.row, real),
        }
        for entry, name in zip(entries, names[len(references) :], strict=True)
    ]  # fmt: skip
    shown = [
        {"path": file[0], "name": name, "picture": album.pictures[file], "apart": real.get(file[0]),
         "nearest": beside[file]}
        for file, name in zip(references, names, strict=False)
    ]  # fmt: skip
    rows = [entry.row for entry in entries]
    return render(
        "score", ("theme.js", "score.js", "compare.js"), {"record": found, "matches": _matches(entries)},
        signature=found["signature"], skipped=found["skipped"], details=album.details,
        messages=[message for message in messages if _COPY not in message],
        copy_messages=[message for message in messages if _COPY in message],
        baseline=baseline, baseline_note=found.get("baseline_note"), named=found["summary"].get("named"),
        summary=found["summary"], new=found["summary"].get("without_copies"),
        pairs=baseline is None and "baseline_note" not in found, cards=cards, references=shown, axis=axis,
        thresholds=thresholds, enough=ENOUGH,
        basis=next((row["probability_basis"] for row in rows if "probability_basis" in row), None),
        nearest=min(finite), farthest=max(finite), median=statistics.median(finite),
        mean=statistics.fmean(finite),
        copies=sum(card["copied"] for card in cards), themselves=sum(card["itself"] for card in cards),
        has={"probability": any("probability" in row for row in rows),
             "percentile": any("real_percentile" in row for row in rows),
             "matches": sum(entry.matches is not None for entry in entries)},
    )  # fmt: skip


def _offers(scores: Scores) -> list[Offer]:
    """Return the thresholds that the page offers."""
    offered = [] if scores.threshold is None else [Offer("your threshold", scores.threshold)]
    if scores.baseline is not None:
        firm = len(scores.baseline.distances) >= ENOUGH
        offered.append(Offer("farthest real photo", scores.baseline.max, firm))
    if (curve := scores.calibration) is not None:
        for one in curve.thresholds:
            label = f"false accepts {100 * one['false_accept_rate']:g} %"
            offered.append(Offer(label, float(one["distance"]), curve.rests_on_photos))
    return offered


def _is_itself(entry: Entry) -> bool:
    """Whether an image is the same file as the reference next to it, which makes it no copy."""
    return os.path.realpath(entry.image[0]) == os.path.realpath(entry.reference[0])


def _closer(row: Mapping[str, Any], real: Mapping[str, float]) -> str | None:
    """Return how many real photos are closer to the others than an image is; a percentage only of enough photos."""
    if "real_percentile" not in row:
        return None
    if len(real) >= ENOUGH:
        return f"{row['real_percentile']:.0f} % of real photos"
    return f"{sum(d < row['distance'] for d in real.values())} of {len(real)} real photos"


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
    ticks: list[dict[str, Any]]
    dots: list[dict[str, float]]
    height: float
    real: list[tuple[str, float]]


def _axis(distances: Sequence[float], real: Mapping[str, float], thresholds: Sequence[float]) -> Axis:
    known = [d for d in (*distances, *real.values()) if math.isfinite(d)] or [1.0]
    farthest = max(max(known), 1e-3)
    known += [t for t in thresholds if 0 <= t <= 2 * farthest]
    unit = round_step((max(farthest, *known) - min(0.0, *known)) / 5)
    low, high = math.floor(min(0.0, *known) / unit) * unit, math.ceil(max(farthest, *known) / unit) * unit
    count = round((high - low) / unit)
    bins = [int(percent(d, low, high) * _BINS / 100.001) for d in distances]
    stacked: Counter[int] = Counter()
    places = []
    apart = min(_DOT, _STRIP / max(Counter(bins).values()))
    for distance, cell in zip(distances, bins, strict=True):
        # a few dots stand at their distances, many in columns
        x = percent(distance, low, high) if apart == _DOT else round(100 * (cell + 0.5) / _BINS, 2)
        places.append({"x": x, "y": round(2 + apart * stacked[cell], 1)})
        stacked[cell] += 1
    return Axis(
        round(low, 10), round(high, 10), round(unit / 200, 12),
        [{"x": round(100 * k / count, 2), "text": f"{round(low + k * unit, 9) + 0.0:.4f}"} for k in range(count + 1)],
        places, round(max(36.0, apart * max(stacked.values()) + 10)),
        [(name, percent(d, low, high)) for name, d in real.items()],
    )  # fmt: skip


def _short(paths: Sequence[str]) -> list[str]:
    """Remove the folders that all paths share."""
    try:
        shared = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    except ValueError:  # absolute and relative paths, or several drives
        shared = ""
    return [os.path.relpath(path, shared) if shared else path for path in paths]


# Matched patches


def _matches(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the data that the script draws; all heatmaps of a page share one scale."""
    found = [entry.matches for entry in entries if entry.matches is not None]
    strengths = [side.strength for m in found for side in (m.reference, m.image)]
    known = np.concatenate(strengths) if strengths else np.array([0.0, 1.0])
    low, high = (float(q) for q in np.quantile(known, (0.05, 0.95)))  # beyond them the colors no longer change
    return {
        "low": round(max(low, 0), 4), "high": round(max(low + 0.01, high), 4),
        "palette": base64.b64encode(colors(np.linspace(0, 1, 256)[None]).tobytes()).decode("ascii"),
        "note": f"Matched patches are kept for the {len(found)} nearest images (--html-details)." if found else
        "This page has no matched patches; the foot of the page says why.",
        "items": [None if entry.matches is None else entry.matches.packed() for entry in entries],
    }  # fmt: skip
