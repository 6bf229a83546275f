"""The timeline of a clip: the distance of each subject by time, with points to click and small pictures of frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.match.page.chart import Scale, percent, round_step
from idmetric.match.page.thumbnails import Thumbnail

_STEPS = 1000  # of a line
_FRAMES = 8  # of the strip


@dataclass(frozen=True)
class Label:
    """What to say of a subject in a frame."""

    text: str
    is_found: bool


@dataclass(frozen=True)
class Point:
    """A subject in a frame that the page shows; x and y in percent."""

    time: int
    subject: int
    seconds: float
    x: float
    y: float
    label: Label
    is_worst: bool


@dataclass(frozen=True)
class Frame:
    """A frame in the strip below."""

    time: int
    seconds: float
    picture: str
    is_shown: bool
    is_worst: bool


@dataclass(frozen=True)
class Timeline:
    """The distances of a clip.

    Attributes:
        count: of the frames. lines: of each subject, pieces between frames without regions, as points of an SVG line.
    """

    clip: str
    count: int
    x: Scale
    y: Scale
    lines: list[list[str]]
    points: list[Point]
    frames: list[Frame]


def timeline_of(
    clip: str,
    *,
    times: Sequence[int],
    seconds: Sequence[float],
    nearest: NDArray[np.float64],
    labels: Mapping[int, Sequence[Label]],
    worst: tuple[int, int],
    thumbnails: Sequence[Thumbnail],
) -> Timeline:
    """Lay out the timeline of a clip.

    Args:
        times: of its frames, in the table. seconds, thumbnails: of all times.
        nearest: distances (frames, S); NaN without a region.
        labels: of each subject in the frames that the page shows.
        worst: frame and subject.
    """
    clip_seconds = [seconds[time] for time in times]
    x = _seconds(clip_seconds)
    y = Scale.of("distance", [0.0, *nearest[np.isfinite(nearest)].tolist()])
    lines = []
    points = []
    for subject in range(nearest.shape[1]):
        lines.append(_line(x, y, clip_seconds, nearest[:, subject]))
        for time, second, distance in zip(times, clip_seconds, nearest[:, subject].tolist(), strict=True):
            if time in labels and not math.isnan(distance):
                point = Point(
                    time=time,
                    subject=subject,
                    seconds=second,
                    x=x.at(second),
                    y=y.at(distance),
                    label=labels[time][subject],
                    is_worst=(time, subject) == worst,
                )
                points.append(point)

    frames = []
    indices = np.linspace(0, len(times) - 1, min(_FRAMES, len(times))).round().astype(int)
    evenly_spaced = [times[index] for index in indices]
    for time in sorted({worst[0], *evenly_spaced}):
        frame = Frame(
            time=time,
            seconds=seconds[time],
            picture=thumbnails[time].smaller(),
            is_shown=time in labels,
            is_worst=time == worst[0],
        )
        frames.append(frame)
    return Timeline(clip, len(times), x, y, lines, points, frames)


def _seconds(seconds: Sequence[float]) -> Scale:
    """The axis of time, from the first to the last frame."""
    low = seconds[0]
    high = max(seconds[-1], low + 1e-3)
    unit = round_step((high - low) / 6)
    lowest = math.ceil(low / unit)
    highest = math.floor(high / unit)
    ticks = []
    for number in range(lowest, highest + 1):
        second = round(number * unit, 9)
        ticks.append((percent(second, low, high), f"{second:g}"))
    return Scale("seconds", low, high, ticks)


def _line(x: Scale, y: Scale, seconds: Sequence[float], distances: NDArray[np.float64]) -> list[str]:
    """The pieces of a line; of a long clip, the largest distance of each few frames."""
    stride = math.ceil(len(seconds) / _STEPS)
    pieces: list[list[str]] = [[]]
    for start in range(0, len(seconds), stride):
        few = distances[start : start + stride]
        few = few[np.isfinite(few)]
        if few.size:
            pieces[-1].append(f"{x.at(seconds[start])},{round(100 - y.at(few.max()), 2)}")
        elif pieces[-1]:
            pieces.append([])
    return [" ".join(piece) for piece in pieces if len(piece) > 1]
