"""Regions of images, as users give them: lists for each image, COCO files, tables, folders of masks, detectors.

regions=[(40, 60, 220, 300), (0.5, 0.1, 0.9, 0.8)]  # of one image; of several, a list of such lists
regions={"street/01.jpg": [(40, 60, 220, 300)]}     # the end of an image's path -> its regions
regions="boxes.json"                                # COCO: boxes, and polygons as masks
regions="boxes.csv"                                 # columns path,x,y,w,h[,label]
regions="masks/"                                    # masks/IMAGE/LABEL.png, or masks/IMAGE.png
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from idmetric.match.regions import Picture, Region, Regions, as_region, is_box
from idmetric.metric.files import StrPath, json_file
from idmetric.metric.images import paths
from idmetric.metric.scoring.scores import RequestError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

RegionsOf = Callable[[int, Picture], Sequence[Region]]  # an image's number and its pixels -> its regions


def regions_for(regions: Regions, images: Sequence[Any], is_single: bool, labels: Collection[str]) -> RegionsOf:
    """A function from an image's number and its pixels to its regions.

    Args:
        regions: see this module; None stands for whole images.
        images: the images of the request. is_single: whether it is a request for one image, not for a list.
        labels: names and class words of the subjects.

    Raises:
        RequestError: for regions that do not fit the images, and for files that cannot be read.
    """
    if regions is None:
        return lambda number, picture: [Region()]
    if callable(regions):
        detector = regions
        return lambda number, picture: detector(picture)
    if isinstance(regions, str | os.PathLike) and not paths.is_image(regions):
        regions = read_regions(regions, images)
    if isinstance(regions, Mapping):
        lists = _by_path(regions, images)
    elif _is_one_region(regions):
        lists = [[regions]]
    elif is_single and not _is_list_of_lists(regions):
        lists = [list(regions)]
    else:
        lists = [list(image_regions) for image_regions in regions]
    if len(lists) != len(images):
        raise RequestError(f"regions of {len(lists)} images were given for {len(images)}: give a list for each image")

    parsed = [[as_region(region) for region in image_regions] for image_regions in lists]
    found_labels = {region.label for image_regions in parsed for region in image_regions}
    if found_labels and found_labels.isdisjoint({"", *labels}):
        raise RequestError(
            f"no region's label ({', '.join(sorted(found_labels))}) is a subject's name or class word "
            f"({', '.join(sorted(labels))}): rename them, or leave the labels out"
        )
    return lambda number, picture: parsed[number]


def _is_one_region(regions: Any) -> TypeIs[Region | str | os.PathLike[str] | Image.Image]:
    return isinstance(regions, Region | str | os.PathLike | Image.Image) or is_box(regions)


def _is_list_of_lists(regions: Any) -> bool:
    """Whether these are the regions of each image in a list."""
    return isinstance(regions, Sequence) and len(regions) == 1 and isinstance(regions[0], list)


def _by_path(regions: Mapping[str, Sequence[Any]], images: Sequence[Any]) -> list[Sequence[Any]]:
    """The regions of each image, found by the end of its path; an image without any has none.

    Raises:
        RequestError: if no image has regions, or if images are not files.
    """
    by_parts = {PurePath(path).parts: image_regions for path, image_regions in regions.items()}
    lists: list[Sequence[Any]] = []
    has_regions = False
    for image in images:
        if not isinstance(image, str | os.PathLike):
            raise RequestError("regions by path need images that are files: give a list of regions for each image")
        parts = Path(os.path.abspath(image)).parts
        ends = [parts[start:] for start in range(len(parts))]
        match = next((end for end in ends if end in by_parts), None)
        if PurePath(os.fspath(image)).parts in by_parts:
            match = PurePath(os.fspath(image)).parts
        lists.append([] if match is None else by_parts[match])
        has_regions = has_regions or match is not None
    if not has_regions:
        listed = ", ".join(list(regions)[:3])
        raise RequestError(f"none of the images is among those with regions ({listed}, ...): compare their paths")
    return lists


# Files


def read_regions(path: StrPath, images: Sequence[Any]) -> dict[str, list[Region]]:
    """The regions in a file or folder: the path of each image -> its regions.

    Raises:
        RequestError: naming the file, and its line or annotation that cannot be used.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        return _of_masks(name, images)
    try:
        if name.lower().endswith(".json"):
            return _of_coco(name)
        if name.lower().endswith(".csv"):
            return _of_table(name)
    except OSError as error:
        raise RequestError(f"cannot read regions {name}: {error.strerror or error}") from error
    raise RequestError(f"cannot read regions {name}: give a COCO .json, a .csv with path,x,y,w,h, or a folder of masks")


def _of_masks(folder: str, images: Sequence[Any]) -> dict[str, list[Region]]:
    """One region for each mask: masks/IMAGE/LABEL.png, or masks/IMAGE.png without a label."""
    regions: dict[str, list[Region]] = {}
    for image in images:
        if not isinstance(image, str | os.PathLike):
            continue
        labeled_folder = Path(folder, Path(image).stem)
        if labeled_folder.is_dir():
            masks = paths.listed(labeled_folder)
            regions[os.fspath(image)] = [Region(mask=mask, label=Path(mask).stem) for mask in masks]
            continue
        mask = paths.mask_of(folder, image)
        if mask is not None:
            regions[os.fspath(image)] = [Region(mask=mask)]
    return regions


def _of_table(path: str) -> dict[str, list[Region]]:
    regions: dict[str, list[Region]] = {}
    reader = csv.DictReader(io.StringIO(json_file.read_text(path, encoding="utf-8-sig"), newline=""))
    missing = [column for column in ("path", "x", "y", "w", "h") if column not in (reader.fieldnames or ())]
    if missing:
        raise RequestError(f"{path} has no column {', '.join(missing)}: path,x,y,w,h[,label] are needed")
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        image_regions = regions.setdefault(row["path"], [])
        image_regions.append(_region([row[side] for side in "xywh"], row.get("label") or "", where))
    return regions


def _of_coco(path: str) -> dict[str, list[Region]]:
    """The annotations of a COCO file. Polygons become masks; crowds, which show several objects, are left out."""
    content = json_file.read(path)
    try:
        images = {image["id"]: image for image in content["images"]}
        categories = {category["id"]: str(category["name"]) for category in content.get("categories", [])}
        regions: dict[str, list[Region]] = {str(image["file_name"]): [] for image in images.values()}
        for annotation in content["annotations"]:
            if annotation.get("iscrowd"):
                continue
            image = images[annotation["image_id"]]
            where = f"{path}, annotation {annotation.get('id', '?')}"
            label = categories.get(annotation.get("category_id"), "")
            region = _region(annotation["bbox"], label, where, _drawn(annotation, image))
            regions[str(image["file_name"])].append(region)
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{path} is not a COCO file of boxes: {type(error).__name__} {error}") from error
    return regions


def _drawn(annotation: Mapping[str, Any], image: Mapping[str, Any]) -> Image.Image | None:
    """The polygons of an annotation as a mask; None for other segmentations, of which the box is used."""
    polygons = annotation.get("segmentation")
    if not polygons or not isinstance(polygons, list):
        return None
    mask = Image.new("L", (int(image["width"]), int(image["height"])))
    for polygon in polygons:
        ImageDraw.Draw(mask).polygon([float(side) for side in polygon], fill=255)
    return mask


def _region(sides: Sequence[Any], label: str, where: str, mask: Image.Image | None = None) -> Region:
    """A region by left, top, width and height."""
    try:
        left, top, width, height = (float(side) for side in sides)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{where}: {list(sides)} is not a box x,y,w,h") from error
    if not (width > 0 and height > 0):
        raise RequestError(f"{where}: a box of {width:g} x {height:g} is empty")
    return Region((left, top, left + width, top + height), mask, label)
