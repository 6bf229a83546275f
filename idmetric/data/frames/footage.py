"""Opened clips: the times of frames, their annotation and their objects.

    footage = open_clip(clip, fps=24)
    for frame in footage.read([0, 5, 10]):
        frame.image(), frame.objects()

Masks may be a folder of images named like the frames, with gaps, or a video of the same length, which show one object,
or run-length codes of several objects (YouTube-VIS).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.clips import BOXES, Box, Clip, ClipError, is_image, read_text
from idmetric.data.frames.video import Video
from idmetric.metric.images.masks import SeveralLabels, read_mask
from idmetric.metric.images.paths import natural
from idmetric.metric.images.read import ImageLike, ImageReadError, read_image

if TYPE_CHECKING:
    from idmetric.data.generate.masks import Sam

ABSENT = ("absence.label", "full_occlusion.txt", "out_of_view.txt")  # next to boxes; 1 = the object is not visible


@dataclass(frozen=True)
class FrameObject:
    """An object in a frame: its number (0: the only one), the share of the frame that it covers, its mask (H, W)."""

    number: int
    coverage: float
    mask: NDArray[np.bool_]

    @classmethod
    def of(cls, number: int, mask: NDArray[np.bool_]) -> FrameObject:
        return cls(number, float(mask.mean()), mask)


@dataclass(frozen=True)
class Frame:
    """A frame, read on demand: `image` returns it as RGB, `objects` its annotated objects; `name` is for messages.

    Both raise `ImageReadError` if the file, or this frame of the video, cannot be read.
    """

    index: int
    name: str
    image: Callable[[], Image.Image]
    objects: Callable[[], list[FrameObject]]


@dataclass(frozen=True)
class Footage:
    """An opened clip.

    Attributes:
        times: (frames,) seconds since the first frame, ascending.
        annotated: (frames,) true for frames with a mask or box.
        indexed: whether the annotation numbers several objects.
        read: returns the frames of ascending indices; use each frame before taking the next.
    """

    clip: Clip
    times: NDArray[np.float64]
    annotated: NDArray[np.bool_]
    indexed: bool
    read: Callable[[Sequence[int]], Iterator[Frame]]


class Folder:
    """Images of a folder, some of which may be missing; `times` and `read` are as in `Video`."""

    def __init__(self, paths: Sequence[Path | None], fps: float = 1.0) -> None:
        self.paths = list(paths)
        self.times = np.arange(len(self.paths)) / fps

    @property
    def stems(self) -> list[str]:
        return [path.stem for path in self.paths if path is not None]

    def read(self, wanted: Sequence[int]) -> Iterator[Callable[[], ImageLike]]:
        """For each of these images, a function that returns its path."""
        for index in wanted:
            path = self.paths[index]
            assert path is not None  # only annotated frames are wanted
            yield lambda path=path: path  # type: ignore[misc]


def open_clip(clip: Clip, fps: float, sam: Sam | None = None) -> Footage:
    """Open a clip: find the times and annotation of its frames without reading them.

    Args:
        fps: frames per second of a folder; each file is one frame, whatever the numbers in file names. A video has its
            own times.
        sam: draws masks of the clip's boxes; None: the clip has masks.

    Raises:
        ClipError: if the annotation is missing or does not fit the frames, or a video cannot be read.
    """
    source: Folder | Video = Video(clip.frames) if clip.frames.is_file() else Folder(_frames_in(clip.frames), fps)
    masks: Folder | Video | None = None
    show: Callable[..., list[FrameObject]]  # of a frame's mask or number, and of what returns its image
    indexed = False
    if sam is not None:
        boxes = read_boxes(clip, len(source.times))
        annotated, show = [box is not None for box in boxes], partial(_boxed, sam, boxes)
    elif isinstance(clip.masks, dict) and isinstance(source, Folder):
        codes = [clip.masks.get(stem) for stem in source.stems]
        annotated, show, indexed = [code is not None for code in codes], partial(_decoded, clip, codes), True
    else:
        masks = _masks(clip, source)
        present = masks.paths if isinstance(masks, Folder) else masks.times
        annotated = [one is not None for one in present]
        show = _masked

    def read(wanted: Sequence[int]) -> Iterator[Frame]:
        given = wanted if masks is None else masks.read(wanted)
        for index, picture, one in zip(wanted, source.read(wanted), given, strict=True):
            image = cache(lambda picture=picture: read_image(picture()))
            yield Frame(index, f"{clip.frames}, frame {index}", image, partial(show, one, image))

    return Footage(clip, source.times, np.array(annotated), indexed, read)


def _boxed(sam: Sam, boxes: Sequence[Any], index: int, image: Callable[[], Image.Image]) -> list[FrameObject]:
    return [FrameObject.of(0, sam.body(image(), boxes[index]))]


def _decoded(clip: Clip, codes: Sequence[Any], index: int, _: object) -> list[FrameObject]:
    from idmetric.data.frames.annotations import decode

    try:
        return [FrameObject.of(number, decode(code)) for number, code in codes[index].items()]
    except ValueError as error:
        raise ClipError(f"{clip.frames}: {error}") from error


def _masked(mask: Any, _: object) -> list[FrameObject]:
    try:
        return [FrameObject.of(0, read_mask(mask()).numpy() >= 0.5)]
    except ImageReadError as error:
        if not isinstance(error.__cause__, SeveralLabels):
            raise
        advice = "save one in masks of 0 and 255, or all as run-length codes of YouTube-VIS"
        raise ClipError(f"{error.source}: the mask shows several objects: {advice}") from error


def read_boxes(clip: Clip, count: int) -> list[Box | None]:
    """The box of each frame from `groundtruth.txt`: left, top, width, height, separated by commas, tabs or spaces.

    A box is None if it has no area, or if a file in the same folder (`absence.label` of GOT-10k; `full_occlusion.txt`
    and `out_of_view.txt` of LaSOT) marks the object as not visible.
    """
    if clip.boxes is None:
        raise ClipError(f"{clip.frames}: no boxes; they are expected in {BOXES}, in the folder or above it")
    lines = [line for line in read_text(clip.boxes).splitlines() if line.strip()]
    if len(lines) != count:
        raise ClipError(f"{clip.boxes}: {len(lines)} boxes for the {count} frames of {clip.frames}")

    absent = np.zeros(count, dtype=bool)
    for path in (clip.boxes.with_name(name) for name in ABSENT):
        if path.is_file():
            flags = _split(read_text(path))
            if len(flags) != count:
                raise ClipError(f"{path}: {len(flags)} values for the {count} frames of {clip.frames}")
            absent |= np.array([flag != "0" for flag in flags])

    boxes: list[Box | None] = []
    for number, line in enumerate(lines, 1):
        try:
            left, top, width, height = (float(value) for value in _split(line))
        except ValueError as error:
            raise ClipError(f"{clip.boxes}: line {number} is not left, top, width, height: {line[:80]!r}") from error
        seen = np.isfinite([left, top]).all() and 0 < width < np.inf and 0 < height < np.inf
        boxes.append((left, top, left + width, top + height) if seen and not absent[number - 1] else None)

    return boxes


def _frames_in(folder: Path) -> list[Path]:
    """Frames sorted by the numbers in their names: 10 comes after 9."""
    names: dict[str, Path] = {}
    for path in sorted((p for p in folder.iterdir() if is_image(p)), key=lambda p: (natural(p.stem), p.name)):
        if names.setdefault(path.stem, path) != path:
            raise ClipError(f"{names[path.stem]} and {path} are both the frame {path.stem!r}: keep one of them")
    return list(names.values())


def _masks(clip: Clip, frames: Folder | Video) -> Folder | Video:
    if not isinstance(clip.masks, Path):
        raise ClipError(f"{clip.frames}: no masks found; give --masks, or draw them of boxes: --segment")
    masks: Folder | Video = Video(clip.masks) if clip.masks.is_file() else Folder(_frames_in(clip.masks))
    if isinstance(frames, Folder) and isinstance(masks, Folder):
        found = dict(zip(masks.stems, masks.paths, strict=True))
        if found.keys().isdisjoint(frames.stems):
            first = frames.stems[0]
            raise ClipError(f"{clip.masks}: no mask is named like a frame of {clip.frames}, such as {first!r}")
        return Folder([found.get(stem) for stem in frames.stems])
    if len(masks.times) != len(frames.times):
        raise ClipError(f"{clip.masks}: {len(masks.times)} masks for the {len(frames.times)} frames of {clip.frames}")
    return masks


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,;]+", text) if part]
