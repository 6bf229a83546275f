"""Categories that video datasets publish with their clips; context prompts depend on them (ID-Sim, A.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from idmetric.data.frames.clips import Clip, ClipError
from idmetric.io import json_file

META = "meta_info.ini"  # GOT-10k, in the folder of each clip
_KEY = "object_class"

Categories = dict[tuple[str, int], str]  # (clip, object) -> category


def of_clips(clips: Sequence[Clip]) -> Categories:
    """The category of each clip with a line `object_class: bird` in its `meta_info.ini` (GOT-10k)."""
    found: Categories = {}
    for clip in clips:
        path = clip.frames / META
        if not path.is_file():
            continue
        try:
            lines = json_file.read_text(path, "utf-8-sig").splitlines()
        except ValueError as error:
            raise ClipError(f"{path}: {error}") from error
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == _KEY and value.strip():
                found[clip.name, 0] = value.strip()
    return found


def of_youtubevis(path: Path) -> Categories:
    """The category of each object in an annotation file of YouTube-VIS, numbered as `youtubevis.write_masks` does.

    Raises:
        ClipError: naming the file, if it has no categories for its annotations.
    """
    try:
        data = json_file.read(path)
        names = {category["id"]: category["name"] for category in data["categories"]}
        clips = {video["id"]: Path(video["file_names"][0]).parent.as_posix() for video in data["videos"]}
        found: Categories = {}
        counts = dict.fromkeys(clips, 0)
        for annotation in sorted(data["annotations"], key=lambda one: one["id"]):
            video = annotation["video_id"]
            counts[video] += 1
            found[clips[video], counts[video]] = names[annotation["category_id"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ClipError(f"{path}: not an annotation of YouTube-VIS with categories ({error})") from error
    return found
