"""COCO's JSON with its relatives: images, categories and annotations that refer to each other by ids.

Ids may be text in one place and numbers in another. Crowds are regions like others, as CVAT calls every mask one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from idmetric.matching.annotations import (
    Annotation,
    Annotations,
    box_by_size,
    checked_region,
    outline_of,
    size_of_image,
)
from idmetric.matching.codes import Polygons, RunLengths
from idmetric.matching.listed_paths import Parts, path_parts
from idmetric.matching.regions import Region
from idmetric.metric.errors import RequestError

Entry = Mapping[str, Any]


def read_coco(path: str, content: Any) -> Annotations:
    """The annotations of each image.

    Raises:
        RequestError: if the file is not COCO's, or its ids are not clear.
    """
    if not isinstance(content, Mapping):
        raise RequestError(f"{path} is not a COCO file of boxes, with the lists `images` and `annotations`")
    images = entries_by_id(content, "images", "file_name", path)
    _check_files(images, path)
    categories: dict[str, Entry] | None = None
    if content.get("categories"):
        categories = entries_by_id(content, "categories", "name", path)
    annotations: dict[str, list[Annotation]] = {str(image["file_name"]): [] for image in images.values()}
    for number, entry in enumerate(section(content, "annotations", path)):
        where = name_of_annotation(entry, number, path)
        image = entry_referred_to(entry, "image_id", images, "images", where)
        label = ""
        if categories is not None and entry.get("category_id") is not None:
            label = str(entry_referred_to(entry, "category_id", categories, "categories", where)["name"])
        annotations[str(image["file_name"])].append(Annotation(where, partial(_region, entry, image, label)))
    return annotations


def _region(entry: Entry, image: Entry, label: str) -> Region:
    image_size = size_of_image(image.get("width"), image.get("height"))
    box = None
    if entry.get("bbox"):
        box = box_by_size(entry["bbox"])
    mask = _mask(entry.get("segmentation"))
    attributes = entry.get("attributes")
    is_turned = isinstance(attributes, Mapping) and attributes.get("rotation") not in (None, "", 0)
    if is_turned and mask is None:
        raise RequestError("its box is rotated: export it as a polygon")
    return checked_region(box, mask, label, entry.get("score"), image_size)


def _mask(segmentation: Any) -> Polygons | RunLengths | None:
    """The mask of polygons, of one polygon's numbers, or of a run-length code; None without any."""
    if not segmentation:
        return None
    if isinstance(segmentation, Mapping):
        return RunLengths(segmentation)
    if not isinstance(segmentation, list):
        raise RequestError(f"its mask cannot be used: {segmentation!r:.40} is neither polygons nor a run-length code")
    if isinstance(segmentation[0], Real):
        return Polygons([outline_of(segmentation)])
    return Polygons([outline_of(polygon) for polygon in segmentation])


# YouTube-VIS


class VideoObject(NamedTuple):
    """An object of a video: its category, and its run-length code in each frame, None where it is not visible."""

    category: str
    codes: Sequence[Any]


class AnnotatedVideo(NamedTuple):
    """The files of a video's frames, and its objects in the order of their ids."""

    files: Sequence[str]
    objects: Sequence[VideoObject]


def read_videos(path: str, content: Any) -> list[AnnotatedVideo]:
    """The videos of a file of YouTube-VIS; RequestError for one that is damaged, or has unclear ids."""
    if not isinstance(content, Mapping):
        raise RequestError(f"{path} has no list `videos`")
    categories = entries_by_id(content, "categories", "name", path)
    videos = entries_by_id(content, "videos", "file_names", path)
    entries = entries_by_id(content, "annotations", "segmentations", path)
    in_order = sorted(entries.items(), key=lambda item: (len(item[0]), item[0]))
    objects: dict[str, list[VideoObject]] = {video_id: [] for video_id in videos}
    for annotation_id, entry in in_order:
        where = f"{path}, annotation {annotation_id}"
        video = entry_referred_to(entry, "video_id", videos, "videos", where)
        category = entry_referred_to(entry, "category_id", categories, "categories", where)
        codes = entry["segmentations"]
        files = video["file_names"]
        if not isinstance(files, list) or not isinstance(codes, list) or len(codes) != len(files):
            raise RequestError(
                f"{where}: `segmentations` has not one code, or null, for each of the video's file_names"
            )
        video_id = id_text(video["id"]) or ""
        objects[video_id].append(VideoObject(str(category["name"]), codes))
    annotated = []
    for video_id, video in videos.items():
        files = [str(name) for name in video["file_names"]]
        annotated.append(AnnotatedVideo(files, objects[video_id]))
    return annotated


# Sections and ids


def section(content: Entry, name: str, path: str) -> Sequence[Entry]:
    """The objects in a list of the file; RequestError if there is no such list."""
    entries = content.get(name)
    if not isinstance(entries, list):
        raise RequestError(f"{path} is not a COCO file of boxes: it has no list `{name}`")
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise RequestError(f"{path}: {name}[{number}] is {entry!r:.40}, not an object")
    return entries


def entries_by_id(content: Entry, name: str, name_key: str, path: str) -> dict[str, Entry]:
    """The objects of a list by their ids.

    Args:
        name: of the list. name_key: what each of them is called by.

    Raises:
        RequestError: for an object without id or name, and for two of one id.
    """
    entries: dict[str, Entry] = {}
    for number, entry in enumerate(section(content, name, path)):
        entry_id = id_text(entry.get("id"))
        if entry_id is None or entry.get(name_key) in (None, ""):
            raise RequestError(f"{path}: {name}[{number}] has no `id` or no `{name_key}`")
        if entry_id in entries:
            names = f"{entries[entry_id][name_key]!r:.200} and {entry[name_key]!r:.200}"
            raise RequestError(f"{path}: `{name}` has two entries of the id {entry_id}, {names}: give each its own")
        entries[entry_id] = entry
    return entries


def entry_referred_to(entry: Entry, key: str, entries: Mapping[str, Entry], name: str, where: str) -> Entry:
    """The object that another one refers to by its id; RequestError if the list lacks it."""
    entry_id = id_text(entry.get(key))
    if entry_id is None:
        raise RequestError(f"{where} has no `{key}`")
    if entry_id not in entries:
        raise RequestError(
            f"{where} has the {key} {entry_id:.40}, which `{name}` lacks: add it, or remove the annotation"
        )
    return entries[entry_id]


def id_text(value: Any) -> str | None:
    """An id as text: 7, 7.0 and "7" are one id; None for other values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    return None


def name_of_annotation(entry: Entry, number: int, path: str) -> str:
    """An annotation in messages: by its id, or by its number in the list."""
    entry_id = id_text(entry.get("id"))
    return f"{path}, annotations[{number}]" if entry_id is None else f"{path}, annotation {entry_id:.40}"


def _check_files(images: Mapping[str, Entry], path: str) -> None:
    ids: dict[Parts, str] = {}
    for image_id, image in images.items():
        file_name = str(image["file_name"])
        other_id = ids.setdefault(path_parts(file_name), image_id)
        if other_id != image_id:
            other_name = images[other_id]["file_name"]
            raise RequestError(
                f"{path}: `images` has one file under two ids, {other_id} ({other_name!r:.200}) and {image_id} "
                f"({file_name!r:.200}): leave one of them out"
            )
