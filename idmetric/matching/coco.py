"""COCO's JSON: images, categories and annotations that refer to each other by ids.

Ids may be text in one place and numbers in another. Crowds are regions like others, as CVAT calls every mask one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from idmetric.matching.coco_masks import CocoMask
from idmetric.matching.regions import Box, Region
from idmetric.metric.errors import RequestError
from idmetric.metric.files import read_json_file

Entry = Mapping[str, Any]
_XYWH = (None, 1, "XYWH_ABS", "BoxMode.XYWH_ABS")  # as detectron2 calls COCO's own boxes


def read_coco(path: str) -> dict[str, list[Region]]:
    """The regions of each image.

    Raises:
        RequestError: if the file is not COCO's, its ids are not clear, or an annotation cannot be used.
    """
    content = read_json_file(path)
    try:
        images = _by_id(content["images"], "file_name")
        categories = _by_id(content.get("categories") or [], "name")
        annotations = list(content["annotations"])
        file_names = [str(image["file_name"]) for image in images.values()]
        if len(set(file_names)) < len(file_names):
            raise ValueError("two images have one file_name: give each its own")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path} is not a COCO file of images and annotations: {error}") from error

    regions: dict[str, list[Region]] = {name: [] for name in file_names}
    for number, entry in enumerate(annotations):
        try:
            image = images[_id(entry["image_id"])]
            label = ""
            if categories and entry.get("category_id") is not None:
                category = categories[_id(entry["category_id"])]
                label = str(category["name"]).strip()
            of_image = regions[image["file_name"]]
            of_image.append(_region(entry, image, label))
        except KeyError as error:
            raise RequestError(f"{path}, annotation {entry.get('id', number)}: there is no {error}") from error
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise RequestError(f"{path}, annotation {entry.get('id', number)}: {error}") from error
    return regions


def _by_id(entries: Sequence[Entry], name: str) -> dict[str, Entry]:
    """Entries by their ids; ValueError for two of one id, KeyError for one without id or name."""
    by_id: dict[str, Entry] = {}
    for entry in entries:
        entry_id = _id(entry["id"])
        if entry_id in by_id:
            raise ValueError(f"{by_id[entry_id][name]} and {entry[name]} have one id: give each its own")
        by_id[entry_id] = entry
    return by_id


def _id(value: Any) -> str:
    """An id as text: 7, 7.0 and "7" are one id."""
    return str(value).strip().removesuffix(".0")


def _region(entry: Entry, image: Entry, label: str) -> Region:
    image_size = None
    if image.get("width") or image.get("height"):
        image_size = (int(image["width"]), int(image["height"]))
    segmentation = entry.get("segmentation")
    if isinstance(segmentation, Mapping):
        height, width = segmentation["size"]
        if image_size not in (None, (width, height)):
            raise ValueError(f"its run-length code is of {width} x {height} pixels, its image has {image_size}")
        image_size = (int(width), int(height))
    elif segmentation and not isinstance(segmentation[0], list):
        segmentation = [segmentation]  # the numbers of one polygon

    box = _box(entry)
    if not segmentation:
        if box is None:
            raise ValueError("it has neither a box nor a mask")
        return Region(box, label=label, image_size=image_size)
    return Region(box, CocoMask(segmentation), label, image_size)


def _box(entry: Entry) -> Box | None:
    """The box of an annotation; ValueError for one that is turned, or written in another way than COCO's."""
    if not entry.get("bbox"):
        return None
    attributes = entry.get("attributes") or {}
    turn = attributes.get("rotation") or entry.get("rotation")
    if turn and not entry.get("segmentation"):
        raise ValueError("its box is turned: export it as a polygon")
    if entry.get("bbox_mode") not in _XYWH:
        raise ValueError(f"its bbox_mode is {entry['bbox_mode']!r}: convert the boxes to x, y, width, height")
    left, top, width, height = map(float, entry["bbox"])
    right = left + width
    bottom = top + height
    return left, top, right, bottom
