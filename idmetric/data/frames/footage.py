"""Opened clips: the times of frames, their annotation and their objects.

    footage = open_clip(clip, fps=24)
    for frame in footage.read([0, 5, 10]):
        frame.image(), frame.objects()

Masks may be a folder of images named like the frames, with gaps, or a video of the same length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.clips import BOXES, Box, Clip, ClipError, is_image, read_text
from idmetric.data.frames.video import Video
from idmetric.images.masks import SeveralLabelsError, read_indices, read_mask
from idmetric.images.opening import open_file, open_image
from idmetric.images.paths import natural
from idmetric.images.read import ImageLike, read_image

if TYPE_CHECKING:
    from idmetric.data.frames.segment import Segmenter

Annotation = Literal["masks", "boxes", "none"]
Objects = Literal["auto", "one", "indexed"]

ABSENT = ("absence.label", "full_occlusion.txt", "out_of_view.txt")  # next to boxes; 1 = the object is not visible
VOID = 255  # value of indexed masks for neither object nor background


@dataclass(frozen=True)
class FrameObject:
    """An object in a frame: its number (0: the only one), the share of the frame that it covers, and its mask (H, W).

    Boxes have no mask; without annotation, the coverage is None too.
    """

    number: int
    coverage: float | None = None
    mask: NDArray[np.bool_] | None = None


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
        indexed: whether masks hold numbers of several objects.
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

    def read(self, wanted: Sequence[int]) -> Iterator[Callable[[], ImageLike]]:
        """For each of these images, a function that returns its path."""
        for index in wanted:
            path = self.paths[index]
            assert path is not None  # only annotated frames are wanted
            yield lambda path=path: path  # type: ignore[misc]


def open_clip(
    clip: Clip, fps: float, annotation: Annotation = "masks", objects: Objects = "auto",
    segmenter: Segmenter | None = None,
) -> Footage:  # fmt: skip
    """Open a clip: find the times and annotation of its frames without reading them.

    Args:
        fps: frames per second of a folder; each file is one frame, whatever the numbers in file names. A video has its
            own times.
        annotation: "masks", "boxes" (coverage is that of the box within the frame, without masks) or "none".
        objects: "one": a mask shows one object. "indexed": its values are object numbers, and 255 marks none.
            "auto": indexed if the clip's first mask is a palette image (DAVIS, YouTube-VOS).
        segmenter: draws masks of boxes, which then give the coverage.

    Raises:
        ClipError: if the annotation is missing or does not fit the frames, or a video cannot be read.
    """
    source: Folder | Video = Video(clip.frames) if clip.frames.is_file() else Folder(_frames_in(clip.frames), fps)
    count = len(source.times)
    annotated, indexed = np.ones(count, dtype=bool), False
    masks: Folder | Video | None = None
    boxes: list[Box | None] = [None] * count

    if annotation == "masks":
        masks = _masks(clip, source)
        if isinstance(masks, Folder):
            annotated = np.array([path is not None for path in masks.paths])
        indexed = objects == "indexed" or (objects == "auto" and _is_palette(masks))
    elif annotation == "boxes":
        boxes = read_boxes(clip, count)
        annotated = np.array([box is not None for box in boxes])

    def read(wanted: Sequence[int]) -> Iterator[Frame]:
        cover = [None] * len(wanted) if masks is None else masks.read(wanted)
        for index, source_of, mask in zip(wanted, source.read(wanted), cover, strict=True):
            image = cache(lambda source_of=source_of: read_image(source_of()))

            def shown(image: Any = image, mask: Any = mask, box: Box | None = boxes[index]) -> list[FrameObject]:
                if mask is not None:
                    return _objects(mask(), indexed, objects == "one")
                if box is not None and segmenter is not None:
                    bits = segmenter.mask(image(), box)
                    return [FrameObject(0, float(bits.mean()), bits)]
                return [FrameObject(0, None if box is None else _box_coverage(box, image().size))]

            yield Frame(index, f"{clip.frames}, frame {index}", image, shown)

    return Footage(clip, source.times, annotated, indexed, read)


def read_boxes(clip: Clip, count: int) -> list[Box | None]:
    """The box of each frame from `groundtruth.txt`: left, top, width, height, separated by commas, tabs or spaces.

    A box is None if it has no area, or if a file in the same folder (`absence.label` of GOT-10k; `full_occlusion.txt`
    and `out_of_view.txt` of LaSOT) marks the object as not visible.

    Raises:
        ClipError: naming file and line, if it cannot be read or does not have one box per frame.
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
        boxes.append((left, top, width, height) if seen and not absent[number - 1] else None)

    return boxes


def _objects(mask: ImageLike, indexed: bool, merged: bool) -> list[FrameObject]:
    if not indexed:
        bits = _bits(mask, merged)
        return [FrameObject(0, float(bits.mean()), bits)]
    numbers = read_indices(mask)
    sizes = np.bincount(numbers.ravel(), minlength=VOID + 1)
    sizes[[0, VOID]] = 0
    return [FrameObject(int(n), float(sizes[n] / numbers.size), numbers == n) for n in np.flatnonzero(sizes)]


def _bits(mask: ImageLike, merged: bool) -> NDArray[np.bool_]:
    """The only object of a mask; with `merged`, all objects of a palette image together."""
    if merged and open_image(mask).mode == "P":
        numbers = read_indices(mask)
        known: NDArray[np.bool_] = (numbers != 0) & (numbers != VOID)
        return known if known.any() else numbers != 0
    try:
        return read_mask(mask).numpy() >= 0.5
    except SeveralLabelsError as error:
        advice = "--objects indexed makes each a separate object"
        raise SeveralLabelsError(error.source, f"{error.reason} For clips, {advice}.") from error


def _box_coverage(box: Box, size: tuple[int, int]) -> float:
    left, top, width, height = box
    across = max(0.0, min(left + width, size[0]) - max(left, 0.0))
    down = max(0.0, min(top + height, size[1]) - max(top, 0.0))
    return across * down / (size[0] * size[1])


def _frames_in(folder: Path) -> list[Path]:
    """Frames sorted by the numbers in their names: 10 comes after 9."""
    names: dict[str, Path] = {}
    for path in sorted((p for p in folder.iterdir() if is_image(p)), key=lambda p: (natural(p.stem), p.name)):
        if names.setdefault(path.stem, path) != path:
            raise ClipError(f"{names[path.stem]} and {path} are both the frame {path.stem!r}: keep one of them")
    return list(names.values())


def _masks(clip: Clip, frames: Folder | Video) -> Folder | Video:
    if clip.masks is None:
        advice = "say where they are, or choose the boxes" if clip.boxes else "say where they are"
        raise ClipError(f"{clip.frames}: no masks found; {advice}, or sample without annotation")
    masks: Folder | Video = Video(clip.masks) if clip.masks.is_file() else Folder(_frames_in(clip.masks))
    if isinstance(frames, Folder) and isinstance(masks, Folder):
        stems = {p.stem: p for p in masks.paths if p is not None}
        names = [p.stem for p in frames.paths if p is not None]
        if not stems.keys() & set(names):
            shown = f"masks such as {min(stems)!r}, frames such as {names[0]!r}"
            raise ClipError(f"{clip.masks}: no mask is named like a frame of {clip.frames} ({shown}): rename them")
        return Folder([stems.get(name) for name in names])
    if len(masks.times) != len(frames.times):
        raise ClipError(f"{clip.masks}: {len(masks.times)} masks for the {len(frames.times)} frames of {clip.frames}")
    return masks


def _is_palette(masks: Folder | Video) -> bool:
    first = next((p for p in masks.paths if p is not None), None) if isinstance(masks, Folder) else None
    if first is None:
        return False
    try:
        with open_file(first) as image:
            return bool(image.mode == "P")
    except Exception:  # reading its pixels will report the error
        return False


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,;]+", text) if part]
