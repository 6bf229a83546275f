"""Opened clips: the times of frames, their annotation and their objects.

    footage = open_clip(clip, fps=24)
    for frame in footage.read([0, 5, 10]):
        frame.image, frame.objects()

Masks may be a folder of images named like the frames, with gaps, or a video of the same length, which show one object,
or run-length codes of several objects (YouTube-VIS).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.clips import BOXES, AnnotatedClip, Box, is_image
from idmetric.data.frames.sam import Sam
from idmetric.data.sharpness import blur_score
from idmetric.matching.coco_masks import decode
from idmetric.matching.frames import ClipError, frames, times
from idmetric.metric.files import read_text
from idmetric.metric.images import read_image
from idmetric.metric.masks import read_mask
from idmetric.metric.paths import matching, natural

Picture = Callable[[], Any]  # -> a path, or an image of a video
Source = Path | list[Path | None]  # a video, or the images of a folder, some of which may be missing
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


@dataclass(frozen=True, eq=False)
class AnnotatedFrame:
    """A frame, read on demand; ImageReadError if its file or that of its mask cannot be read.

    Attributes:
        name: for messages.
        annotation: its box if there is `sam`, which draws the mask of it; else its codes if there is no `mask`.
    """

    index: int
    name: str
    picture: Picture
    annotation: Any
    mask: Picture | None
    sam: Sam | None

    @cached_property
    def image(self) -> Image.Image:
        """The frame, RGB."""
        return read_image(self.picture())

    @cached_property
    def blur(self) -> float:
        """Its sharpness; low if blurred."""
        return blur_score(self.image)

    def objects(self) -> list[FrameObject]:
        """Its annotated objects."""
        if self.sam is not None:
            return [FrameObject(0, self.sam.mask(self.image, self.annotation))]
        if self.mask is not None:
            return [FrameObject(0, read_mask(self.mask()).numpy() >= 0.5)]
        try:
            return [FrameObject(number, decode(code)) for number, code in self.annotation.items()]
        except ValueError as error:
            raise ClipError(f"{self.name}: {error}") from error


@dataclass(frozen=True)
class Footage:
    """An opened clip.

    Attributes:
        times: (frames,) seconds since the first frame, ascending.
        frames: its pictures.
        annotations: (frames,) the box, the codes or the mask of each frame, None without any.
        masks: the pictures of masks; None if `annotations` are boxes or run-length codes.
        sam: draws masks of boxes.
    """

    clip: AnnotatedClip
    times: NDArray[np.float64]
    frames: Source
    annotations: Sequence[Any]
    masks: Source | None = None
    sam: Sam | None = None

    @property
    def indexed(self) -> bool:
        """Whether the annotation numbers several objects."""
        return isinstance(self.clip.masks, dict)

    def read(self, indices: Sequence[int]) -> Iterator[AnnotatedFrame]:
        """The frames of ascending indices."""
        pictures = _pictures(self.frames, indices)
        masks: Iterator[Picture | None] = repeat(None)
        if self.masks is not None:
            masks = _pictures(self.masks, indices)
        for index, picture, mask in zip(indices, pictures, masks, strict=False):
            name = f"{self.clip.frames}, frame {index}"
            annotation = self.annotations[index]
            yield AnnotatedFrame(index, name, picture, annotation, mask, self.sam)


def open_clip(clip: AnnotatedClip, fps: float, sam: Sam | None = None) -> Footage:
    """Open a clip: find the times and annotation of its frames without reading them.

    Args:
        fps: frames per second of a folder; each file is one frame, whatever the numbers in file names. A video has its
            own times.
        sam: draws masks of the clip's boxes; None: the clip has masks.

    Raises:
        ClipError: if the annotation is missing or does not fit the frames, or a video cannot be read.
    """
    images, seconds = _opened(clip.frames, fps)
    count = len(seconds)
    if sam is not None:
        boxes = read_boxes(clip, count)
        return Footage(clip, seconds, images, boxes, sam=sam)
    if isinstance(clip.masks, dict) and isinstance(images, list):
        codes = [clip.masks.get(image.stem) for image in images if image]
        return Footage(clip, seconds, images, codes)
    if not isinstance(clip.masks, Path):
        raise ClipError(f"{clip.frames}: no masks found; give --masks, or draw them of boxes: --segment")

    masks, mask_seconds = _opened(clip.masks, fps)
    if isinstance(images, list) and isinstance(masks, list):
        mask_of = {mask.stem: mask for mask in masks if mask}
        masks = [mask_of.get(image.stem) for image in images if image]
        if not any(masks):
            raise ClipError(f"{clip.masks}: no mask is named like a frame of {clip.frames}, such as {images[0]}")
        return Footage(clip, seconds, images, masks, masks)
    if len(mask_seconds) != count:
        raise ClipError(f"{clip.masks}: {len(mask_seconds)} masks for the {count} frames of {clip.frames}")
    return Footage(clip, seconds, images, [True] * count, masks)


def read_boxes(clip: AnnotatedClip, count: int) -> list[Box | None]:
    """The box of each frame from `groundtruth.txt`: left, top, width, height, separated by commas, tabs or spaces.

    A box is None if it has no area, or if a file in the same folder (`absence.label` of GOT-10k; `full_occlusion.txt`
    and `out_of_view.txt` of LaSOT) marks the object as not visible.
    """
    if clip.boxes is None:
        raise ClipError(f"{clip.frames}: no boxes; they are expected in {BOXES}, in the folder or above it")
    lines = read_text(clip.boxes).splitlines()
    _check_count(clip, clip.boxes, lines, count)
    is_absent = np.zeros(count, dtype=bool)
    for path in map(clip.boxes.with_name, ABSENT):
        if path.is_file():
            flags = _split(read_text(path))
            _check_count(clip, path, flags, count)
            is_absent |= np.array(flags) != "0"

    boxes: list[Box | None] = []
    for index, line in enumerate(lines):
        try:
            left, top, width, height = map(float, _split(line))
        except ValueError as error:
            raise ClipError(f"{clip.boxes}: line {index + 1} is not left, top, width, height: {line[:80]!r}") from error
        box = None
        is_finite = np.isfinite([left, top, width, height]).all()
        if is_finite and min(width, height) > 0 and not is_absent[index]:
            box = (left, top, left + width, top + height)
        boxes.append(box)
    return boxes


def _check_count(clip: AnnotatedClip, file: Path, values: Sequence[str], count: int) -> None:
    if len(values) != count:
        raise ClipError(f"{file}: {len(values)} values for the {count} frames of {clip.frames}")


def _opened(path: Path, fps: float) -> tuple[Source, NDArray[np.float64]]:
    """A video, or the images of a folder, sorted by the numbers in their names (10 comes after 9), and its times."""
    if not path.is_dir():
        return path, times(path)
    path_of: dict[str, Path] = {}
    images = [image for image in matching(path, "*") if is_image(image)]
    for image in sorted(images, key=lambda image: natural(image.stem)):
        if image.stem in path_of:
            raise ClipError(f"{path_of[image.stem]} and {image} are both the frame {image.stem!r}: keep one of them")
        path_of[image.stem] = image
    seconds = np.arange(len(path_of)) / fps
    return list(path_of.values()), seconds


def _pictures(source: Source, indices: Sequence[int]) -> Iterator[Picture]:
    """For each of these ascending indices, a function that returns its picture."""
    if isinstance(source, list):
        for index in indices:
            yield partial(str, source[index])
        return
    wanted = set(indices)
    for frame in frames(source):
        if frame.number in wanted:
            yield partial(getattr, frame, "image")


def _split(text: str) -> list[str]:
    return re.findall(r"[^\s,;]+", text)
