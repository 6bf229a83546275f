"""What video datasets publish with their clips: masks of YouTube-VIS, and categories, which context prompts need.

YouTube-VIS's file (instances.json, or train.json in earlier releases) holds videos with file_names such as
VIDEO/00000.jpg, and annotations with video_id and segmentations, a run-length code or null for each file. Objects get
the numbers 1, 2, ... within their video, in the order of their ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.clips import Clip, ClipError, read_text
from idmetric.io import json_file
from idmetric.io.hints import need
from idmetric.io.output import replacing

Categories = dict[tuple[str, int], str]  # (clip, object) -> category
_MOST = 254  # objects of a video; 255 marks no object
_PALETTE = [shade for n in range(256) for shade in (n * 67 % 256, n * 131 % 256, n * 29 % 256)]


def write_masks(
    path: Path, folder: Path, progress: Callable[[Iterable[Any], int, str], Iterable[Any]] = lambda x, n, what: x
) -> None:
    """Write folder/VIDEO/00000.png for all frames of an annotation file; masks that exist are kept.

    Where objects overlap, the smaller one is on top, because one file cannot hold both. A frame that shows none of the
    objects gets an empty mask, of the video's height and width if no code of the video gives a size.

    Raises:
        ClipError: naming the file and the video, if the annotation is damaged.
    """
    videos, annotations = _read(path)
    for video in progress(videos, len(videos), "masks"):
        names, codes = video["file_names"], [own for own, _ in annotations[video["id"]]]
        if len(codes) > _MOST or any(len(own) != len(names) for own in codes):
            says = f"not one code for each of its {len(names)} files, or over {_MOST}"
            raise ClipError(f"{path}: video {video['id']}: {says}")
        sizes = [code["size"] for own in codes for code in own if code is not None]
        size = sizes[0] if sizes else (video.get("height"), video.get("width"))
        for frame, name in enumerate(names):
            target = (folder / name).with_suffix(".png")
            if not target.resolve().is_relative_to(folder.resolve()):
                raise ClipError(f"{path}: {name!r} is outside the folder of frames")
            if target.is_file():
                continue
            try:
                mask = _mask([own[frame] for own in codes], size)
            except (ValueError, LookupError, TypeError) as error:
                raise ClipError(f"{path}: video {video['id']}, {name}: {error}") from error
            with replacing(target, parents=True) as temporary:
                mask.save(temporary, format="PNG")


def _read(path: Path) -> tuple[list[Any], dict[Any, list[tuple[list[Any], str]]]]:
    """The videos of an annotation file, and the codes and the category of each object, in the order of their ids.

    Raises:
        ClipError: naming the file, if it has other contents.
    """
    try:
        data = json_file.read(path)
        names = {category["id"]: category["name"] for category in data["categories"]}
        found = defaultdict(list)
        for one in sorted(data["annotations"], key=lambda one: one["id"]):
            found[one["video_id"]].append((list(one["segmentations"]), names[one["category_id"]]))
        return [video for video in data["videos"] if video["file_names"]], found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClipError(f"{path}: not an annotation of YouTube-VIS with categories ({error})") from error


def _mask(codes: list[Any], size: tuple[Any, Any]) -> Image.Image:
    """The indexed mask (height, width) of a frame."""
    if None in size:
        raise ValueError("its video has neither a mask nor a height and width")
    numbers = np.zeros(size, dtype=np.uint8)
    shown = {number: decode(code) for number, code in enumerate(codes, 1) if code is not None}
    for number in sorted(shown, key=lambda n: (-int(shown[n].sum()), n)):
        numbers[shown[number]] = number
    image = Image.fromarray(numbers, "P")
    image.putpalette(_PALETTE)
    return image


def decode(code: Mapping[str, Any]) -> NDArray[np.bool_]:
    """The mask (H, W) of COCO's run-length code {"size": [H, W], "counts": ...}, as text or a list of numbers.

    Raises:
        ValueError: if it is not such a code.
    """
    need("data", "reading run-length codes", pycocotools="pycocotools")
    from pycocotools import mask

    try:
        height, width = code["size"]
        if isinstance(code["counts"], list):
            if sum(code["counts"]) != height * width:  # pycocotools would leave pixels as they are in memory
                raise ValueError
            code = mask.frPyObjects(code, height, width)
        found: NDArray[np.bool_] = mask.decode(code).astype(bool)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a run-length code with size and counts: {str(code)[:60]}") from error
    return found


def of_clips(clips: Sequence[Clip]) -> Categories:
    """The category of each clip with a line `object_class: bird` in its `meta_info.ini` (GOT-10k)."""
    found: Categories = {}
    for clip in clips:
        path = clip.frames / "meta_info.ini"
        if not path.is_file():
            continue
        for line in read_text(path).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "object_class" and value.strip():
                found[clip.name, 0] = value.strip()
    return found


def of_youtubevis(path: Path) -> Categories:
    """The category of each object in an annotation file of YouTube-VIS, numbered as `write_masks` does.

    Raises:
        ClipError: naming the file, if it has no categories.
    """
    videos, annotations = _read(path)
    return {
        (Path(video["file_names"][0]).parent.as_posix(), number): category
        for video in videos
        for number, (_, category) in enumerate(annotations[video["id"]], 1)
    }
