"""The images of a match in order: images of any kind, and the frames of videos with their times."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from idmetric.matching.frames import frames, times
from idmetric.matching.regions import Box, Region
from idmetric.metric.images import describe, is_image_like, split_images
from idmetric.metric.paths import VIDEO_ENDINGS, is_image, natural, walk

CLIP_ENDINGS = (*VIDEO_ENDINGS, ".gif")


@dataclass(frozen=True)
class Moment:
    """A still image (no clip, NaN seconds, frame -1) or a frame of a clip, counted from 0."""

    name: str
    clip: str = ""
    seconds: float = math.nan
    frame: int = -1


@dataclass
class Cutouts:
    """An image and the regions that it was cut into.

    Attributes:
        boxes: of the regions, in pixels. embedded: how many of them have an embedding.
        is_listed: whether the request lists its regions.
        problem: why the image cannot be used.
    """

    moment: Moment
    regions: list[Region] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    embedded: int = 0
    is_listed: bool = True
    problem: str = ""


def is_clip(source: Any) -> bool:
    """Whether this is the path of a video or a GIF."""
    if not isinstance(source, str | os.PathLike):
        return False
    _, ending = os.path.splitext(source)
    return ending.lower() in CLIP_ENDINGS


def sources_of(images: Any) -> list[Any]:
    """Images, and the paths of clips, in one flat list; a folder or pattern stands for what it holds.

    Raises:
        ImageReadError: for a folder or pattern that names nothing.
    """
    if isinstance(images, Iterable) and not is_image_like(images):
        lists = map(sources_of, images)
        return list(chain.from_iterable(lists))
    if isinstance(images, str | os.PathLike) and os.path.isdir(images):
        files = []
        for path in walk(Path(images)):
            if is_image(path) or is_clip(path):
                files.append(str(path))
        if files:  # without any, reading the folder says so
            return sorted(files, key=natural)
    return split_images(images)


def names_of(source: Any, number: int, is_only: bool) -> list[str]:
    """The name of an image, or of all frames of a clip; ClipError for a clip that cannot be used.

    Args:
        number: of the source in its request. is_only: whether it is the only one.
    """
    name = describe(source)
    if is_clip(source):
        count = len(times(source))
        return [f"{name} @ {frame}" for frame in range(count)]
    if isinstance(source, str | os.PathLike) or is_only:
        return [name]
    return [f"{name} {number}"]  # images in memory may be alike in kind and size


def moments_of(source: Any, names: list[str], rate: float | None) -> Iterator[tuple[Moment, Any]]:
    """Yield the image, or the frames of a clip, each with what gives its pixels; ClipError as `frames`.

    Args:
        names: of the image or of all frames. rate: frames per second, see `frames`.
    """
    if not is_clip(source):
        yield Moment(names[0]), source
        return
    clip = describe(source)
    for frame in frames(source, rate):
        name = names[frame.number]
        moment = Moment(name, clip, frame.time, frame.number)
        yield moment, lambda frame=frame: frame.image
