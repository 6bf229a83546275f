"""Clips: videos, animations, folders of frames and grids of panels, with their frames on the axis of time.

    match(metric, subjects, ["clip.mp4", Clip("frames/", fps=24), Clip("story.png", grid=(2, 4))], frames="2fps")

Videos and GIFs are clips by themselves; everything else is declared by `Clip`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from idmetric.matching.frames import ClipError
from idmetric.matching.video import Video
from idmetric.metric import paths
from idmetric.metric.errors import RequestError
from idmetric.metric.images import (
    ImageReadError,
    checked_path,
    describe,
    is_animated,
    is_image_like,
    open_file,
    open_image,
    split_images,
)
from idmetric.metric.paths import walk

Load = Callable[[], Any]  # -> an image of any kind
_NO_DURATION = 100  # ms, as browsers show frames with a duration of 0


@dataclass(frozen=True)
class Clip:
    """Frames in order of time.

    Attributes:
        source: a video, or an animated GIF, WebP or PNG; a folder or a list of frames; with `grid`, one image.
        fps: frames per second of a folder, a list or a grid. Videos and animations have their own times.
        grid: number of rows and of columns of panels, which are read row by row.
        name: in results; default: the path of the source, else "clip".

    Raises:
        RequestError: for a rate that is not above 0.
    """

    source: Any
    fps: float = 1.0
    grid: tuple[int, int] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.fps < math.inf:  # also for NaN
            raise RequestError(f"{self.label}: a clip has more than 0 frames per second, got fps={self.fps}")

    @property
    def label(self) -> str:
        """What results call it."""
        return self.name or (str(self.source) if _is_path(self.source) else "clip")


class Stills:
    """Images in order; `times` and `read` are as in `Video`, but for the images, which may be of any kind."""

    def __init__(self, images: Sequence[Any], fps: float = 1.0) -> None:
        self.images = images
        self.times = np.arange(len(images)) / fps

    def read(self, indices: Sequence[int]) -> Iterator[Load]:
        """For each of these images, a function that returns it."""
        for index in indices:
            yield partial(self.images.__getitem__, index)


class Animation:
    """An animated image, decoded once for its times and once for each `read`; see `Video`.

    The default image of an animated PNG, which is shown where animations are not, does not count.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        ends = [0.0]
        try:
            with open_file(checked_path(path, path)) as image:
                self._skipped = int(is_animated(image) and getattr(image, "default_image", False))
                for frame in ImageSequence.Iterator(image):
                    frame.load()
                    if frame.tell() >= self._skipped:
                        ends.append(ends[-1] + (frame.info.get("duration") or _NO_DURATION))
        except ImageReadError as error:
            raise ClipError(f"{path}: {error.reason}") from error
        except Exception as error:  # plugins raise many kinds of error on damaged files
            raise ClipError(f"{path}: damaged after {len(ends) - 1} frames, write it again ({error})") from error
        self.times = np.array(ends[:-1]) / 1000

    def read(self, indices: Sequence[int]) -> Iterator[Load]:
        """For each of these ascending indices, a function that returns the frame."""
        with open_file(self.path) as image:
            for index in indices:
                image.seek(index + self._skipped)
                yield image.copy().copy


Frames = Video | Animation | Stills


@dataclass(frozen=True)
class Moment:
    """A still image (no clip, NaN seconds, frame -1) or a frame of a clip; `frame` counts from 0."""

    name: str
    clip: str = ""
    seconds: float = math.nan
    frame: int = -1


@dataclass
class Timeline:
    """Images and frames in order, opened but not read.

    Attributes:
        parts: a still image, or a clip and the indices of its frames in use.
        clips: the opened clips by their labels.
        problems: clips that cannot be used, and why.
    """

    moments: list[Moment] = field(default_factory=list)
    parts: list[tuple[Frames, list[int]]] = field(default_factory=list)
    clips: dict[str, Frames] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the images and frames."""
        return [moment.name for moment in self.moments]

    def loads(self) -> Iterator[Load]:
        """For each moment, a function that returns its image or raises `ImageReadError`."""
        for frames, indices in self.parts:
            yield from frames.read(indices)

    def add(self, clip: Clip, frames: int | str) -> None:
        """Open a clip, and add the frames in use; ClipError or ImageReadError for a clip without any."""
        if clip.label in self.clips:
            raise RequestError(f"two clips are called {clip.label!r}: rename one of them by Clip(..., name=...)")
        opened = _opened(clip)
        indices = _chosen(opened, "all" if clip.grid else frames)
        self.clips[clip.label] = opened
        self.parts.append((opened, indices))
        for index in indices:
            name = f"{clip.label} @ {index}"
            if isinstance(opened, Stills) and _is_path(opened.images[index]):
                name = str(opened.images[index])
            self.moments.append(Moment(name, clip.label, float(opened.times[index]), index))


def timeline(sources: Sequence[Any], frames: int | str, on_error: str) -> Timeline:
    """Images and clips of a request, in order.

    Args:
        sources: see `sources_of`.
        frames: of each clip, see `match`.

    Raises:
        RequestError: for other `frames`, or two clips of one name. ClipError, ImageReadError: with on_error="fail", for
            a clip that cannot be used.
    """
    check_frames(frames)
    line = Timeline()
    for number, source in enumerate(sources):
        if not isinstance(source, Clip):
            name = describe(source)
            if len(sources) > 1 and not _is_path(source):
                name = f"{name} {number}"  # images in memory may be alike in kind and size
            line.moments.append(Moment(name))
            line.parts.append((Stills([source]), [0]))
            continue
        try:
            line.add(source, frames)
        except (ClipError, ImageReadError) as error:
            if on_error == "fail":
                raise
            line.problems[source.label] = str(error)
    return line


def sources_of(images: Any) -> list[Any]:
    """The images and `Clip`s of a request; videos and GIFs are clips, and a folder stands for what it holds.

    Raises:
        ImageReadError: for a folder or pattern that names nothing.
    """
    if isinstance(images, Clip):
        return [images]
    if isinstance(images, Iterable) and not is_image_like(images):
        lists = map(sources_of, images)
        return [source for sources in lists for source in sources]
    if _is_path(images) and os.path.isdir(images):
        files = []
        for path in walk(Path(images)):
            if paths.is_image(path) or _is_clip(path):
                files.append(str(path))
        if files:  # without any, reading the folder says so
            images = sorted(files, key=paths.natural)
    return [Clip(image) if _is_clip(image) else image for image in split_images(images)]


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def _is_clip(source: Any) -> bool:
    if not _is_path(source):
        return False
    _, ending = os.path.splitext(source)
    return ending.lower() in (*paths.VIDEO_ENDINGS, ".gif")


def _opened(clip: Clip) -> Frames:
    if clip.grid is not None:
        if _is_clip(clip.source):
            raise ClipError(f"{clip.label}: a grid of panels is one image, and this is a clip: leave out the grid")
        return Stills(_panels(clip.source, *clip.grid), clip.fps)
    if not _is_path(clip.source) or paths.names_several(clip.source):
        images = split_images(clip.source)
        if not images:
            raise ClipError(f"{clip.label}: a clip without frames")
        return Stills(images, clip.fps)
    path = str(clip.source)
    return Animation(path) if paths.is_image(path) else Video(Path(path))


def _panels(source: Any, rows: int, columns: int) -> list[Image.Image]:
    """The panels of an image, row by row; sides that cannot be divided evenly are rounded."""
    image = open_image(source)
    if not (0 < rows <= image.height and 0 < columns <= image.width):
        size = f"{image.width} x {image.height} pixels"
        raise ClipError(f"{describe(source)}: {size} cannot be cut into {rows} rows and {columns} columns of panels")
    ys = np.linspace(0, image.height, rows + 1)
    xs = np.linspace(0, image.width, columns + 1)
    panels = []
    for top, bottom in pairwise(ys.round().astype(int).tolist()):
        for left, right in pairwise(xs.round().astype(int).tolist()):
            panels.append(image.crop((left, top, right, bottom)))
    return panels


def check_frames(frames: int | str) -> None:
    """RequestError for a choice of frames that `match` does not know."""
    wanted = str(frames)
    is_count = wanted.isdecimal() and int(wanted) > 0
    if not is_count and not _rate_of(wanted) and wanted != "all":
        raise RequestError(f"unknown frames {wanted!r}: give a number, a rate such as '2fps', or 'all'")


def _rate_of(frames: str) -> float:
    """The rate in a choice such as "2fps"; 0 for other choices."""
    text = re.fullmatch("([0-9]*[.]?[0-9]+)fps", frames)
    rate = float(text[1]) if text else 0.0
    return rate if rate < math.inf else 0.0


def _chosen(clip: Frames, frames: int | str) -> list[int]:
    """The frames of a clip that are used, ascending; a clip with fewer than were asked for gives all it has."""
    wanted = str(frames)
    rate = _rate_of(wanted)
    if not rate:
        return evenly_spaced(len(clip.times), wanted)
    return _shown_at_rate(clip.times, rate)


def _shown_at_rate(times: NDArray[np.float64], rate: float) -> list[int]:
    """The frames that are shown at 0, 1 / rate, 2 / rate, ... up to the last frame; to 1e-6 seconds, of any length."""
    ends = np.append(times[1:], times[-1] + 2e-6)
    first_moments = np.ceil((times - 1e-6) * rate) / rate  # the first of these moments at which each frame is shown
    chosen: list[int] = np.flatnonzero(first_moments + 1e-6 < ends).tolist()
    return chosen


def evenly_spaced(count: int, wanted: str) -> list[int]:
    """So many of `count` frames at equal distances, with the first and the last one; "all" stands for each of them."""
    if wanted == "all":
        return [*range(count)]
    indices: list[int] = np.unique(np.linspace(0, count - 1, int(wanted)).astype(int)).tolist()
    return indices
