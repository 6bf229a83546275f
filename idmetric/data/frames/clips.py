"""Clips: folders of frames and video files, with their masks or boxes.

    clips = find_clips("DAVIS/JPEGImages/480p", masks="DAVIS/Annotations/480p")

`idmetric.data.frames.footage` opens them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from idmetric.metric.files import json_file
from idmetric.metric.images.paths import walk

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")  # fewer than elsewhere: a GIF is a preview
VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")
INNER = ("img", "rgb_video")  # the folder and the video that their parent names, in LaSOT and uCO3D
BOXES = "groundtruth.txt"  # LaSOT, GOT-10k: left, top, width, height of each frame
Box = tuple[float, float, float, float]  # left, top, right, bottom
Codes = dict[str, dict[int, Any]]  # name of a frame -> object -> run-length code of its mask


class ClipError(ValueError):
    """A clip that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Clip:
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


def find_clips(root: str | os.PathLike[str], masks: str | os.PathLike[str] | None = None) -> list[Clip]:
    """The clips of a folder at any depth, or of one video file, sorted by name.

    Each folder with images and each video file is a clip. Links to folders are followed.

    Masks of clip `a/b` are in the folder `masks`/a/b or the video `masks`/a/b.mp4; those of a single clip may be
    `masks` itself. Without `masks`, those of `rgb_video.*` are in `mask_video.*` (uCO3D). Boxes are in
    `groundtruth.txt`, in the folder of frames or, if that is named img (LaSOT), above it.
    """
    root, mask_root = Path(root), None if masks is None else Path(masks)
    for given in (root, mask_root):
        if given is not None and not given.exists():
            raise ClipError(f"{given}: no such file or folder")
    own = None if mask_root is None else mask_root.resolve()
    sources: dict[Path, None] = {}
    for path in [root] if root.is_file() else walk(root):
        if path.stem == "mask_video" or (own is not None and path.resolve().is_relative_to(own)):
            continue
        if root.is_file() or path.suffix.lower() in VIDEOS:
            sources[path] = None
        elif is_image(path):
            sources[path.parent] = None
    found = sorted((_clip(path, root, mask_root) for path in sources), key=lambda clip: clip.name)
    if not found:
        raise ClipError(f"{root}: no images ({', '.join(IMAGES)}) and no videos ({', '.join(VIDEOS)}) found")
    for a, b in pairwise(found):
        if a.name == b.name:
            raise ClipError(f"{a.frames} and {b.frames} are both the clip {a.name!r}: rename one of them")
    return found


def is_image(path: Path) -> bool:
    """Whether a file's name is that of an image."""
    return path.suffix.lower() in IMAGES and not path.name.startswith(".")


def read_text(path: Path) -> str:
    """The text of a file that comes with a clip."""
    try:
        return json_file.read_text(path, "utf-8-sig")
    except ValueError as error:
        raise ClipError(f"{path}: {error}") from error


def _clip(path: Path, root: Path, masks: Path | None) -> Clip:
    alone, stem = path == root, path.stem if path.is_file() else path.resolve().name
    named = Path(stem) if alone else path.relative_to(root).with_name(stem)
    inner = stem in INNER and len(named.parts) > 1
    named = named.parent if inner else named
    near = [path, path.parent] if inner else [path]
    boxes = next((f / BOXES for f in near if (f / BOXES).is_file()), None)
    places = [path.with_name("mask_video")] if masks is None else [masks / named, *([masks] if alone else [])]
    return Clip(named.as_posix(), path, next((file for place in places if (file := _masks_at(place))), None), boxes)


def _masks_at(place: Path) -> Path | None:
    """A video of that name, or the folder or video itself."""
    files = (place.with_name(place.name + ending) for ending in VIDEOS)
    return next((file for file in (*files, place) if file.exists()), None)
