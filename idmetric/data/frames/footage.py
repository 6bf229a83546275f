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
from functools import cache, cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.clips import BOXES, AnnotatedClip, Box, is_image, read_text
from idmetric.matching.codes import decode
from idmetric.matching.frames import ClipError
from idmetric.matching.video import Video
from idmetric.metric.images import ImageReadError, read_image
from idmetric.metric.masks import read_mask
from idmetric.metric.paths import matching, natural
from idmetric.tables import text_lines

if TYPE_CHECKING:
    from idmetric.data.generate.masks import Sam

Picture = Callable[[], Any]  # what returns an image
ABSENT = ("absence.label", "full_occlusion.txt", "out_of_view.txt")  # next to boxes; 1 = the object is not visible


@dataclass(frozen=True)
class FrameObject:
    """An object in a frame: its number (0: the only one) and its mask (H, W)."""

    number: int
    mask: NDArray[np.bool_]

    @cached_property
    def coverage(self) -> float:
        """The share of the frame that it covers."""
        return float(self.mask.mean())


@dataclass(frozen=True)
class AnnotatedFrame:
    """A frame, read on demand: `image` returns it as RGB, `objects` its annotated objects; `name` is for messages.

    Both raise `ImageReadError` if the file, or this frame of the video, cannot be read.
    """

    index: int
    name: str
    image: Callable[[], Image.Image]
    objects: Callable[[], list[FrameObject]]


class Folder:
    """Images of a folder, some of which may be missing; `times` and `read` are as in `Video`."""

    def __init__(self, paths: Sequence[Path | None], fps: float = 1.0) -> None:
        self.paths = paths
        self.times = np.arange(len(paths)) / fps

    @property
    def stems(self) -> list[str]:
        """The names of all images without extensions."""
        return [path.stem for path in self.paths if path]

    def read(self, indices: Sequence[int]) -> Iterator[Picture]:
        """For each of these images, a function that returns its path."""
        for index in indices:
            yield partial(str, self.paths[index])


@dataclass(frozen=True)
class Footage:
    """An opened clip.

    Attributes:
        frames: its pictures.
        annotations: (frames,) None for frames without a mask or box.
        masks: the pictures of masks; None if `annotations` are boxes or run-length codes.
        sam: draws masks of boxes.
    """

    clip: AnnotatedClip
    frames: Folder | Video
    annotations: Sequence[Any]
    masks: Folder | Video | None = None
    sam: Sam | None = None

    @property
    def times(self) -> NDArray[np.float64]:
        """(frames,) seconds since the first frame, ascending."""
        return self.frames.times

    @property
    def indexed(self) -> bool:
        """Whether the annotation numbers several objects."""
        return isinstance(self.clip.masks, dict)

    def read(self, indices: Sequence[int]) -> Iterator[AnnotatedFrame]:
        """The frames of ascending indices; use each frame before taking the next."""
        pictures = self.frames.read(indices)
        masks: Iterator[Any] = repeat(None)
        if self.masks:
            masks = self.masks.read(indices)
        for index, picture, mask in zip(indices, pictures, masks, strict=False):
            name = f"{self.clip.frames}, frame {index}"
            image = cache(partial(_read, picture))
            objects = partial(self._objects, self.annotations[index], image, mask)
            yield AnnotatedFrame(index, name, image, objects)

    def _objects(self, annotation: Any, image: Picture, mask: Any) -> list[FrameObject]:
        if self.sam is not None:
            return [FrameObject(0, self.sam.body(image(), annotation))]
        if self.masks is None:
            try:
                return [FrameObject(number, decode(code)) for number, code in annotation.items()]
            except ValueError as error:
                raise ClipError(f"{self.clip.frames}: {error}") from error
        try:
            return [FrameObject(0, read_mask(mask()).numpy() >= 0.5)]
        except ImageReadError as error:
            advice = "of several objects save one in masks of 0 and 255, or all as run-length codes of YouTube-VIS"
            raise ClipError(f"the mask {error.source}: {error.reason}; {advice}") from error


def _read(picture: Picture) -> Image.Image:
    return read_image(picture())


def open_clip(clip: AnnotatedClip, fps: float, sam: Sam | None = None) -> Footage:
    """Open a clip: find the times and annotation of its frames without reading them.

    Args:
        fps: frames per second of a folder; each file is one frame, whatever the numbers in file names. A video has its
            own times.
        sam: draws masks of the clip's boxes; None: the clip has masks.

    Raises:
        ClipError: if the annotation is missing or does not fit the frames, or a video cannot be read.
    """
    frames = _pictures(clip.frames, fps)
    count = len(frames.times)
    if sam is not None:
        return Footage(clip, frames, read_boxes(clip, count), sam=sam)
    if isinstance(clip.masks, dict) and isinstance(frames, Folder):
        return Footage(clip, frames, [clip.masks.get(stem) for stem in frames.stems])
    if not isinstance(clip.masks, Path):
        raise ClipError(f"{clip.frames}: no masks found; give --masks, or draw them of boxes: --segment")

    masks = _pictures(clip.masks, fps)
    if isinstance(frames, Folder) and isinstance(masks, Folder):
        path_of = dict(zip(masks.stems, masks.paths, strict=True))
        paths = [path_of.get(stem) for stem in frames.stems]
        if not any(paths):
            example = frames.stems[0]
            raise ClipError(f"{clip.masks}: no mask is named like a frame of {clip.frames}, such as {example!r}")
        return Footage(clip, frames, paths, Folder(paths))
    if len(masks.times) != count:
        raise ClipError(f"{clip.masks}: {len(masks.times)} masks for the {count} frames of {clip.frames}")
    return Footage(clip, frames, [True] * count, masks)


def read_boxes(clip: AnnotatedClip, count: int) -> list[Box | None]:
    """The box of each frame from `groundtruth.txt`: left, top, width, height, separated by commas, tabs or spaces.

    A box is None if it has no area, or if a file in the same folder (`absence.label` of GOT-10k; `full_occlusion.txt`
    and `out_of_view.txt` of LaSOT) marks the object as not visible.
    """
    if clip.boxes is None:
        raise ClipError(f"{clip.frames}: no boxes; they are expected in {BOXES}, in the folder or above it")
    lines = text_lines(read_text(clip.boxes))
    if len(lines) != count:
        raise ClipError(f"{clip.boxes}: {len(lines)} boxes for the {count} frames of {clip.frames}")

    is_absent = np.zeros(count, dtype=bool)
    for path in map(clip.boxes.with_name, ABSENT):
        if path.is_file():
            flags = np.array(_split(read_text(path)))
            if len(flags) != count:
                raise ClipError(f"{path}: {len(flags)} values for the {count} frames of {clip.frames}")
            is_absent |= flags != "0"

    boxes: list[Box | None] = []
    for index, line in enumerate(lines):
        try:
            left, top, width, height = map(float, _split(line))
        except ValueError as error:
            raise ClipError(f"{clip.boxes}: line {index + 1} is not left, top, width, height: {line[:80]!r}") from error
        is_box = np.isfinite([left, top, width, height]).all() and width > 0 and height > 0
        if is_absent[index] or not is_box:
            boxes.append(None)
        else:
            boxes.append((left, top, left + width, top + height))
    return boxes


def _pictures(path: Path, fps: float) -> Folder | Video:
    """A video, or the images of a folder, sorted by the numbers in their names: 10 comes after 9."""
    if not path.is_dir():
        return Video(path)
    images = [*filter(is_image, matching(path, "*"))]
    path_of: dict[str, Path] = {}
    for image in sorted(images, key=lambda image: natural(image.stem)):
        if path_of.setdefault(image.stem, image) != image:
            raise ClipError(f"{path_of[image.stem]} and {image} are both the frame {image.stem!r}: keep one of them")
    return Folder([*path_of.values()], fps)


def _split(text: str) -> list[str]:
    return re.findall(r"[^\s,;]+", text)
