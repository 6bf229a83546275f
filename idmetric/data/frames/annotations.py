"""What video datasets publish with their clips: masks of YouTube-VIS, and categories, which context prompts need.

YouTube-VIS's file (instances.json, or train.json in earlier releases) holds videos with file_names such as
VIDEO/00000.jpg, and annotations with video_id and segmentations, a run-length code or null for each file. Objects get
the numbers 1, 2, ... within their video, in the order of their ids.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from idmetric.data.frames.clips import Clip, Codes, read_text
from idmetric.match.video import ClipError
from idmetric.metric.files import json_file

Categories = dict[tuple[str, int], str]  # (clip, object) -> category


def with_codes(clips: Sequence[Clip], path: Path) -> tuple[list[Clip], Categories]:
    """The clips with the masks of an annotation file of YouTube-VIS, and the category of each object."""
    masks: dict[str, Codes] = {}
    categories: Categories = {}
    try:
        content = json_file.read(path)
        category_names = {category["id"]: category["name"] for category in content["categories"]}
        annotations = defaultdict(list)
        in_order = sorted(content["annotations"], key=itemgetter("id"))
        for annotation in in_order:
            annotations[annotation["video_id"]].append(annotation)

        for video in content["videos"]:
            files = [Path(name) for name in video["file_names"]]
            clip = files[0].parent.as_posix()
            masks[clip] = {file.stem: {} for file in files}
            for number, annotation in enumerate(annotations[video["id"]], 1):
                categories[clip, number] = category_names[annotation["category_id"]]
                for file, code in zip(files, annotation["segmentations"], strict=True):
                    if code is not None:
                        masks[clip][file.stem][number] = code
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ClipError(f"{path}: not an annotation of YouTube-VIS with categories ({error})") from error

    masked = [replace(clip, masks=masks.get(clip.name)) for clip in clips]
    return masked, categories


def of_clips(clips: Sequence[Clip]) -> Categories:
    """The category of each clip with a line `object_class: bird` in its `meta_info.ini` (GOT-10k)."""
    categories: Categories = {}
    for clip in clips:
        path = clip.frames / "meta_info.ini"
        text = read_text(path) if path.is_file() else ""
        match = re.search(r"^\s*object_class\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
        if match:
            categories[clip.name, 0] = match[1]
    return categories
