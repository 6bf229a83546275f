"""Clips: folders of frames and video files, with their masks or boxes.

    clips = find_clips("DAVIS/JPEGImages/480p", masks="DAVIS/Annotations/480p")

`idmetric.data.frames.footage` opens them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from idmetric.images.paths import walk
from idmetric.io import json_file

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")  # fewer than elsewhere: a GIF is a preview
VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")
INNER = ("img", "images", "frames", "rgb", "rgb_video")  # folders and videos that their parent names (LaSOT, uCO3D)
BOXES = "groundtruth.txt"  # LaSOT, GOT-10k: left, top, width, height of each frame
Box = tuple[float, float, float, float]  # left, top, width, height


class ClipError(ValueError):
    """A clip that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Clip:
    """Frames and their annotation.

    Attributes:
        name: unique name, the path relative to the searched folder.
        frames: a folder or a video file.
        masks: a folder, a video file, or None.
        boxes: a file of boxes, or None.
    """

    name: str
    frames: Path
    masks: Path | None = None
    boxes: Path | None = None


def find_clips(root: str | os.PathLike[str], masks: str | os.PathLike[str] | None = None) -> list[Clip]:
    """The clips of a folder at any depth, or of one video file, sorted by name.

    Each folder with images and each video file is a clip. Links to folders are followed.

    Masks of clip `a/b` are in the folder `masks`/a/b or the video `masks`/a/b.mp4; those of a single clip may be
    `masks` itself. Without `masks`, masks of a folder are in its own folder `masks`, or in its parent's (for folders
    named img, images, frames or rgb), those of `rgb_video.*` in `mask_video.*` (uCO3D). Boxes are in `groundtruth.txt`,
    in the folder or its parent. Masks and boxes that are not found are None.

    Raises:
        ClipError: if there is no clip, or two clips have one name.
    """
    root, mask_root = Path(root), None if masks is None else Path(masks)
    for given in (root, mask_root):
        if given is not None and not given.exists():
            raise ClipError(f"{given}: no such file or folder")
    found = sorted((_clip(path, root, mask_root) for path in _sources(root, mask_root)), key=lambda clip: clip.name)
    if not found:
        raise ClipError(f"{root}: no images ({', '.join(IMAGES)}) and no videos ({', '.join(VIDEOS)}) found")
    for a, b in pairwise(found):
        if a.name == b.name:
            raise ClipError(f"{a.frames} and {b.frames} are both the clip {a.name!r}: rename one of them")
    return found


def is_image(path: Path) -> bool:
    """Whether a file's name is that of an image, and not of the mask of another one."""
    return path.suffix.lower() in IMAGES and not path.name.startswith(".") and not path.stem.endswith("_mask")


def read_text(path: Path) -> str:
    """The text of a file that comes with a clip.

    Raises:
        ClipError: naming the file, if it is not text.
    """
    try:
        return json_file.read_text(path, "utf-8-sig")
    except ValueError as error:
        raise ClipError(f"{path}: {error}") from error


def _sources(root: Path, masks: Path | None) -> list[Path]:
    """Folders of frames and videos, without masks."""
    if root.is_file():
        return [root]
    taken = None if masks is None or masks.resolve() == root.resolve() else masks.resolve()

    @cache
    def holds_masks(folder: Path) -> bool:
        named = any(name == "masks" or name.endswith("_masks") for name in folder.relative_to(root).parts)
        return named or (taken is not None and folder.resolve().is_relative_to(taken))

    found: dict[Path, None] = {}
    for path in walk(root):
        if path == masks or path.stem == "mask_video" or holds_masks(path.parent):
            continue
        if is_image(path):
            found[path.parent] = None
        elif path.suffix.lower() in VIDEOS and not path.stem.endswith("_mask"):
            found[path] = None
    return list(found)


def _clip(path: Path, root: Path, masks: Path | None) -> Clip:
    alone, video = path == root, path.is_file()
    relative = Path(path.name) if video and alone else path.relative_to(root)
    relative = relative.with_suffix("") if video else relative
    inner = (path.stem if video else path.name) in INNER
    named = relative.parent if inner and len(relative.parts) > 1 else relative
    name = named.as_posix() if named.parts else root.resolve().name
    near = [path, path.parent] if inner else [path]
    boxes = None if video else next((f / BOXES for f in near if (f / BOXES).is_file()), None)

    if masks is None:
        places = [path.with_name("mask_video")] if video and inner else [f / "masks" for f in near]
    else:
        own = (relative, named, *([Path(root.resolve().stem if video else root.resolve().name)] if alone else ()))
        places = [masks / part for part in own if part.parts] + ([masks] if alone else [])
    found = next((found for place in places if place != path and (found := _masks_at(place))), None)
    return Clip(name, path, found, boxes)


def _masks_at(place: Path) -> Path | None:
    """A video of that name, or the folder or file itself if it holds images or is a video."""
    files = (place.with_name(place.name + ending) for ending in VIDEOS)
    if found := next((file for file in files if file.is_file()), None):
        return found
    holds = place.is_file() or (place.is_dir() and any(is_image(p) for p in place.iterdir()))
    return place if holds else None
