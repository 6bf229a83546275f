"""Clips: folders of frames and video files, with their masks or boxes.

    clips = find_clips("DAVIS/JPEGImages/480p", masks="DAVIS/Annotations/480p")

`idmetric.data.frames.footage` opens them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from idmetric.images.paths import walk

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")  # fewer than elsewhere: a GIF is a preview
VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")
INNER = ("img", "images", "frames", "rgb")  # folders of frames that their parent names, as in LaSOT
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
        masks: a folder (the frames' own if it contains the masks), a video file, or None.
        boxes: a file of boxes, or None.
    """

    name: str
    frames: Path
    masks: Path | None = None
    boxes: Path | None = None


def find_clips(root: str | os.PathLike[str], masks: str | os.PathLike[str] | None = None) -> list[Clip]:
    """The clips of a folder at any depth, or of one video file, sorted by name.

    Each folder with images and each video file is a clip. Links to folders are followed.

    Masks of clip `a/b` are in the folder `masks`/a/b or the video `masks`/a/b.mp4. Without `masks`, masks of a folder
    are in its own `masks`, in its parent's (for folders named img, images, frames or rgb), or in images `*_mask.*` next
    to its frames. Masks of a video `b.mp4` are in the video `b_mask.*`, those of `rgb_video.*` in `mask_video.*`
    (uCO3D). Boxes are in `groundtruth.txt`, in the folder or its parent. Masks and boxes that are not found are None.

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
    """Whether a file's name is that of an image."""
    return path.suffix.lower() in IMAGES and not path.name.startswith(".")


def is_mask(path: Path) -> bool:
    """Whether a file's name is that of a mask."""
    return path.stem.endswith("_mask") or path.stem == "mask_video"


def _sources(root: Path, masks: Path | None) -> list[Path]:
    """Folders of frames and videos, without masks."""
    if root.is_file():
        return [root]
    taken = None if masks is None or masks.resolve() == root.resolve() else masks.resolve()
    below = taken is not None and taken.is_relative_to(root.resolve())
    found: dict[Path, None] = {}
    holds_masks: dict[Path, bool] = {}
    for path in walk(root):
        folder = path.parent
        if folder not in holds_masks:
            named = any(
                name == "masks" or name.endswith(("_mask", "_masks")) for name in folder.relative_to(root).parts
            )
            holds_masks[folder] = named or (below and taken is not None and folder.resolve().is_relative_to(taken))
        if is_mask(path) or holds_masks[folder] or path == masks:
            continue
        if is_image(path):
            found[folder] = None
        elif path.suffix.lower() in VIDEOS:
            found[path] = None
    return list(found)


def _clip(path: Path, root: Path, masks: Path | None) -> Clip:
    video = path.is_file()
    relative = Path(path.name) if video and path == root else path.relative_to(root)
    relative = relative.with_suffix("") if video else relative
    inner = path.stem == "rgb_video" if video else path.name in INNER
    named = relative.parent if inner and len(relative.parts) > 1 else relative
    name = named.as_posix() if named.parts else root.resolve().name
    near = [path] if not inner else [path, path.parent]
    boxes = None if video else next((f / BOXES for f in near if (f / BOXES).is_file()), None)
    if masks is not None:
        names = (relative, named, Path(root.resolve().stem if video else root.resolve().name))
        return Clip(name, path, _masks_below(masks, names[: 3 if path == root else 2], alone=path == root), boxes)
    return Clip(name, path, _masks_of_video(path) if video else _masks_of_folder(path, near), boxes)


def _masks_below(masks: Path, names: tuple[Path, ...], alone: bool) -> Path | None:
    """The masks of a clip in a tree of masks; if the clip is the only one, `masks` itself may be its masks."""
    for name in names:
        if name.parts:
            found = _first_video(masks / name.parent, name.name) or _holding(masks / name)
            if found:
                return found
    return (masks if masks.is_file() else _holding(masks)) if alone else None


def _masks_of_video(path: Path) -> Path | None:
    return _first_video(path.parent, "mask_video" if path.stem == "rgb_video" else f"{path.stem}_mask")


def _masks_of_folder(path: Path, near: list[Path]) -> Path | None:
    found = next((p for p in (_holding(folder / "masks") for folder in near) if p), None)
    return found or (path if any(is_image(p) and is_mask(p) for p in path.iterdir()) else None)


def _first_video(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / (stem + ending) for ending in VIDEOS) if p.is_file()), None)


def _holding(folder: Path) -> Path | None:
    """The folder if it contains images, else None."""
    return folder if folder.is_dir() and any(is_image(p) for p in folder.iterdir()) else None
