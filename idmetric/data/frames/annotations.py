"""What video datasets publish with their clips: masks of YouTube-VIS, and categories, which context prompts need.

YouTube-VIS's file (instances.json, or train.json in earlier releases) holds videos with file_names such as
VIDEO/00000.jpg, and annotations with video_id and segmentations, a run-length code or null for each file. Objects get
the numbers 1, 2, ... within their video, in the order of their ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from idmetric.data.frames.clips import AnnotatedClip, Codes, read_text
from idmetric.matching.frames import ClipError
from idmetric.matching.region_coco import read_videos
from idmetric.metric.files import read_json_file

Categories = dict[tuple[str, int], str]  # (clip, object) -> category


def with_codes(clips: Sequence[AnnotatedClip], path: Path) -> tuple[list[AnnotatedClip], Categories]:
    """The clips with the masks of an annotation file of YouTube-VIS, and the category of each object."""
    masks: dict[str, Codes] = {}
    categories: Categories = {}
    try:
        for video in read_videos(str(path), read_json_file(path)):
            files = [Path(name) for name in video.files]
            clip = files[0].parent.as_posix()
            masks[clip] = {file.stem: {} for file in files}
            for number, video_object in enumerate(video.objects, 1):
                categories[clip, number] = video_object.category
                for file, code in zip(files, video_object.codes, strict=True):
                    if code is not None:
                        masks[clip][file.stem][number] = code
    except (OSError, ValueError) as error:
        raise ClipError(f"{path}: not an annotation of YouTube-VIS with categories ({error})") from error

    masked = [replace(clip, masks=masks.get(clip.name)) for clip in clips]
    return masked, categories


def of_clips(clips: Sequence[AnnotatedClip]) -> Categories:
    """The category of each clip with a line `object_class: bird` in its `meta_info.ini` (GOT-10k)."""
    categories: Categories = {}
    for clip in clips:
        path = clip.frames / "meta_info.ini"
        text = read_text(path) if path.is_file() else ""
        match = re.search(r"^\s*object_class\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
        if match:
            categories[clip.name, 0] = match[1]
    return categories
