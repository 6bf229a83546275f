"""Clips: folders of frames and video files, with their masks or boxes.

    clips = find_clips("DAVIS/JPEGImages/480p", masks="DAVIS/Annotations/480p")

`idmetric.data.frames.footage` opens them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from idmetric.matching.frames import ClipError
from idmetric.metric import files
from idmetric.metric.files import StrPath
from idmetric.metric.paths import VIDEO_ENDINGS, walk

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")  # fewer than elsewhere: a GIF is a preview
INNER = ("img", "rgb_video")  # the folder and the video that their parent names, in LaSOT and uCO3D
BOXES = "groundtruth.txt"  # LaSOT, GOT-10k: left, top, width, height of each frame
Box = tuple[float, float, float, float]  # left, top, right, bottom
Codes = dict[str, dict[int, Any]]  # name of a frame -> object -> run-length code of its mask


@dataclass(frozen=True)
class AnnotatedClip:
    """Frames and their annotation.

    Attributes:
        name: unique name, the path relative to the searched folder.
        frames: a folder or a video file.
        masks: a folder, a video file, run-length codes, or None.
        boxes: a file of boxes, or None.
    """

    name: str
    frames: Path
    masks: Path | Codes | None = None
    boxes: Path | None = None


def find_clips(root: StrPath, masks: StrPath | None = None) -> list[AnnotatedClip]:
    """The clips of a folder at any depth, or of one video file, sorted by name.

    Each folder with images and each video file is a clip. Links to folders are followed.

    Masks of clip `a/b` are in the folder `masks`/a/b or the video `masks`/a/b.mp4; those of a single clip may be
    `masks` itself. Without `masks`, those of `rgb_video.*` are in `mask_video.*` (uCO3D). Boxes are in
    `groundtruth.txt`, in the folder of frames or, if that is named img (LaSOT), above it.
    """
    root = Path(root)
    mask_root = Path(masks) if masks else None
    for path in (root, mask_root):
        if path is not None and not path.exists():
            raise ClipError(f"{path}: no such file or folder")

    sources = set()
    for path in walk(root) if root.is_dir() else [root]:
        is_mask = mask_root is not None and path.resolve().is_relative_to(mask_root.resolve())
        if is_mask or path.stem == "mask_video":
            continue
        if path == root or path.suffix.lower() in VIDEO_ENDINGS:
            sources.add(path)
        elif is_image(path):
            sources.add(path.parent)

    clips = [_clip(path, root, mask_root) for path in sources]
    clips.sort(key=attrgetter("name", "frames"))
    if not clips:
        raise ClipError(f"{root}: no images ({', '.join(IMAGES)}) and no videos ({', '.join(VIDEO_ENDINGS)}) found")
    for clip, following in pairwise(clips):
        if clip.name == following.name:
            raise ClipError(f"{clip.frames} and {following.frames} are both the clip {clip.name!r}: rename one of them")
    return clips


def is_image(path: Path) -> bool:
    """Whether a file's name is that of an image."""
    return path.suffix.lower() in IMAGES


def read_text(path: Path) -> str:
    """The text of a file that comes with a clip."""
    try:
        return files.read_text(path)
    except ValueError as error:
        raise ClipError(f"{path}: {error}") from error


def _clip(path: Path, root: Path, mask_root: Path | None) -> AnnotatedClip:
    """The clip of a folder of frames or a video, with its masks and boxes."""
    stem = path.resolve().name if path.is_dir() else path.stem
    name = Path(stem) if path == root else path.relative_to(root).with_name(stem)
    box_files = [path / BOXES]
    if stem in INNER and name.parent.name:
        name = name.parent
        box_files.append(path.parent / BOXES)

    if mask_root is None:
        masks = _masks_at(path.with_name("mask_video"))
    else:
        masks = _masks_at(mask_root / name)
        if masks is None and path == root:
            masks = _masks_at(mask_root)
    boxes = next(filter(Path.is_file, box_files), None)
    return AnnotatedClip(name.as_posix(), path, masks, boxes)


def _masks_at(path: Path) -> Path | None:
    """A video of that name, or the folder or video itself."""
    files = [path.with_name(path.name + ending) for ending in VIDEO_ENDINGS]
    return next(filter(Path.exists, [*files, path]), None)
