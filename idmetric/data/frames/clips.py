"""Clips: folders of frames and video files, with their masks or boxes, and categories, which context prompts need.

    clips = find_clips("DAVIS/JPEGImages/480p", masks="DAVIS/Annotations/480p")
    clips, categories = with_codes(find_clips("train/JPEGImages"), "train/instances.json")

`idmetric.data.frames.footage` opens them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from idmetric.matching.frames import ClipError
from idmetric.metric.files import StrPath, read_json_file, read_text
from idmetric.metric.paths import VIDEO_ENDINGS, walk

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")  # fewer than elsewhere: a GIF is a preview
INNER = ("img", "rgb_video")  # the folder and the video that their parent names, in LaSOT and uCO3D
BOXES = "groundtruth.txt"  # LaSOT, GOT-10k: left, top, width, height of each frame
Box = tuple[float, float, float, float]  # left, top, right, bottom
Codes = dict[str, dict[int, Any]]  # name of a frame -> object -> run-length code of its mask
Categories = dict[tuple[str, int], str]  # (clip, object) -> category


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


def with_codes(clips: Sequence[AnnotatedClip], path: Path) -> tuple[list[AnnotatedClip], Categories]:
    """The clips with the masks of an annotation file of YouTube-VIS, and the category of each object.

    The file (instances.json, or train.json in earlier releases) holds videos with file_names such as VIDEO/00000.jpg,
    and annotations with video_id and segmentations, a run-length code or null for each file. Objects get the numbers
    1, 2, ... within their video, in the order of their ids.
    """
    codes: dict[str, Codes] = {}
    categories: Categories = {}
    try:
        content = read_json_file(path)
        names = {category["id"]: category["name"] for category in content["categories"]}
        frames_of = {}
        for video in content["videos"]:
            frames = [Path(name) for name in video["file_names"]]
            frames_of[video["id"]] = frames
            codes[_folder(frames)] = {frame.stem: {} for frame in frames}

        counts: Counter[Any] = Counter()  # of the objects of each video
        for annotation in sorted(content["annotations"], key=itemgetter("id")):
            frames = frames_of[annotation["video_id"]]
            clip = _folder(frames)
            counts[clip] += 1
            categories[clip, counts[clip]] = names[annotation["category_id"]]
            for frame, code in zip(frames, annotation["segmentations"], strict=True):
                if code is not None:
                    codes[clip][frame.stem][counts[clip]] = code
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ClipError(f"{path}: not an annotation of YouTube-VIS with categories ({error!r})") from error
    return [replace(clip, masks=codes.get(clip.name)) for clip in clips], categories


def _folder(frames: Sequence[Path]) -> str:
    """The clip that frames of YouTube-VIS belong to."""
    return frames[0].parent.as_posix()


def categories_of(clips: Sequence[AnnotatedClip]) -> Categories:
    """The category of each clip with a line `object_class: bird` in its `meta_info.ini` (GOT-10k)."""
    categories: Categories = {}
    for clip in clips:
        path = clip.frames / "meta_info.ini"
        text = read_text(path) if path.is_file() else ""
        match = re.search(r"^\s*object_class\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
        if match:
            categories[clip.name, 0] = match[1]
    return categories


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
    videos = [path.with_name(path.name + ending) for ending in VIDEO_ENDINGS]
    return next(filter(Path.exists, [*videos, path]), None)
