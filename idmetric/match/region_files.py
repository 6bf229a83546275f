"""Regions of images, as users give them: lists for each image, COCO files, tables, folders of masks, detectors.

regions=[(40, 60, 220, 300), (0.5, 0.1, 0.9, 0.8)]  # of one image; of several, a list of such lists
regions={"street/01.jpg": [(40, 60, 220, 300)]}     # the end of an image's path -> its regions; also "clip.mp4 @ 12"
regions="boxes.json"                                # COCO: boxes, and polygons or run-length codes as masks
regions="boxes.csv"                                 # columns path,x,y,w,h[,label,score]
regions="masks/"                                    # masks/IMAGE/LABEL.png, or masks/IMAGE.png
"""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from idmetric.match.codes import RunLengths
from idmetric.match.detected import DetectedRegions
from idmetric.match.regions import Detector, Picture, Polygons, Region, Regions, as_region, is_box
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, json_file
from idmetric.metric.files.tables import first_few
from idmetric.metric.images import paths
from idmetric.metric.images.kinds import ImageReadError, is_array, is_image_like
from idmetric.metric.images.masks import Labeled

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")
RegionsOf = Callable[[int, Picture], Sequence[Region]]  # an image's number and its pixels -> its regions


def regions_for(
    regions: Regions, images: Sequence[str], kind: Literal["image", "clip", "list"], labels: Collection[str]
) -> RegionsOf:
    """A function from an image's number and its pixels to its regions.

    Args:
        regions: see this module; None stands for whole images.
        images: names of the images of the request, and of the frames of its clips.
        kind: of the request. One list of regions is enough for one image, or for all frames of one clip.
        labels: names and class words of the subjects.

    Raises:
        RequestError: for regions that do not fit the images, and for files that cannot be read.
    """
    if regions is None:
        return lambda number, picture: [Region()]
    if isinstance(regions, DetectedRegions):
        return partial(_detected, regions, labels)
    if callable(regions):
        return partial(_by_function, regions, images)
    if isinstance(regions, str | os.PathLike) and not paths.is_image(regions):
        regions = read_regions(regions, images)
    if isinstance(regions, Mapping):
        lists = _by_path(regions, images)
    elif _is_one_region(regions):
        lists = [[regions]]
    elif kind != "list" and not _is_list_of_lists(regions):
        lists = [list(regions)]
    else:
        lists = []
        for image_regions in regions:
            if _is_one_region(image_regions):
                raise RequestError("regions of several images are a list for each image, also where it has one region")
            lists.append(list(image_regions))
    if kind == "clip" and len(lists) == 1:
        lists = lists * len(images)
    if len(lists) != len(images):
        raise RequestError(f"regions of {len(lists)} images were given for {len(images)}: give a list for each image")

    parsed = [[as_region(region) for region in image_regions] for image_regions in lists]
    _check_labels(parsed, labels)
    return lambda number, picture: parsed[number]


def regions_between(
    regions: Regions, images: Sequence[str], kind: Literal["image", "clip", "list"], labels: Collection[str]
) -> RegionsOf | None:
    """The same for further frames of the clips; None if regions are listed by image, in a file or otherwise.

    Args:
        images: names of the further frames.
    """
    if regions is None or callable(regions):
        return regions_for(regions, images, kind, labels)
    if isinstance(regions, Mapping):
        return None
    if isinstance(regions, str | os.PathLike) and not paths.is_image(regions):
        return None
    is_one_list = _is_one_region(regions) or not _is_list_of_lists(regions) or len(regions) == 1
    if kind == "clip" and is_one_list:
        return regions_for(regions, images, kind, labels=())
    return None


def _detected(regions: DetectedRegions, labels: Collection[str], number: int, picture: Picture) -> list[Region]:
    """What a detector finds; a word that no subject has as its name or class word leaves its regions open to all."""
    return [region if region.label in labels else replace(region, label="") for region in regions(picture)]


def _by_function(detector: Detector, images: Sequence[str], number: int, picture: Picture) -> list[Region]:
    regions = detector(picture)
    if regions is None:
        raise RequestError(
            f"the function that finds regions returned None for {images[number]}: let it return a list, which is empty "
            "where it finds nothing"
        )
    try:
        return [as_region(region) for region in regions]
    except RequestError as error:  # of this image alone, such as an empty box
        raise ImageReadError(images[number], str(error)) from error


def _check_labels(parsed: Sequence[Sequence[Region]], labels: Collection[str]) -> None:
    """Warn of regions that are compared with no subject because of their labels; RequestError if that is all."""
    if not labels:  # images are compared with each other
        return
    region_labels: set[str] = set()
    for image_regions in parsed:
        region_labels.update(region.label for region in image_regions)
    unknown = sorted(region_labels - {"", *labels})
    if unknown and len(unknown) == len(region_labels):
        raise RequestError(
            f"no region's label ({', '.join(unknown)}) is a subject's name or class word "
            f"({', '.join(sorted(labels))}): rename them, or leave the labels out"
        )
    if unknown:
        warnings.warn(
            f"regions labeled {', '.join(first_few(unknown, 3))} are compared with no subject: "
            "none has this name or class word",
            stacklevel=4,
        )


def _is_one_region(regions: Any) -> TypeIs[Region | str | os.PathLike[str]]:
    """Whether this is one box or mask; an array (N, 4) holds boxes."""
    if is_box(regions) or isinstance(regions, Region | Labeled):
        return True
    if is_array(regions):
        return regions.ndim == 2 and regions.shape[1] != 4
    return is_image_like(regions)


def _is_list_of_lists(regions: Any) -> bool:
    """Whether these are the regions of each image in a list."""
    return isinstance(regions, Sequence) and any(isinstance(part, list) and not is_box(part) for part in regions)


def by_path(listed: Mapping[str, T], images: Sequence[str], what: str) -> list[T | None]:
    """The listed value of each image, found by the end of its path; None for an image that is not listed.

    Args:
        what: the listed things, for messages.

    Raises:
        RequestError: if two images would share theirs.
    """
    by_parts = {PurePath(path).parts: value for path, value in listed.items()}
    values: list[T | None] = []
    owners: dict[tuple[str, ...], str] = {}
    for image in images:
        path = os.path.abspath(image)
        parts = Path(path).parts
        ends = [PurePath(image).parts, *(parts[start:] for start in range(len(parts)))]
        end = next((end for end in ends if end in by_parts), None)
        if end is None:
            values.append(None)
            continue
        owner = owners.setdefault(end, path)
        if owner != path:
            raise RequestError(
                f"the {what} of {PurePath(*end)} would be those of both {owner} and {path}: "
                "give their paths with more folders"
            )
        values.append(by_parts[end])
    return values


def _by_path(regions: Mapping[str, Sequence[Any]], images: Sequence[str]) -> list[Sequence[Any]]:
    """The regions of each image, found by the end of its path; an image without any has none, with a warning.

    Raises:
        RequestError: if no image has regions, or if two would share theirs.
    """
    joined: dict[str, list[Any]] = {}
    for path, path_regions in regions.items():
        joined.setdefault(str(PurePath(path)), []).extend(path_regions)
    lists = by_path(joined, images, "regions")
    without = [image for image, image_regions in zip(images, lists, strict=True) if image_regions is None]

    if len(without) == len(images):
        if not regions:
            raise RequestError("no image has regions: a folder of masks has IMAGE/LABEL.png or IMAGE.png")
        if not any(os.path.exists(image) for image in without):
            raise RequestError(f"{without[0]} does not exist: check the path and the working directory")
        names = ", ".join(first_few(without, 3))
        listed = ", ".join(first_few(list(regions), 3))
        raise RequestError(
            f"none of the images ({names}) is among the ones with regions ({listed}): compare their paths"
        )
    if without:
        warnings.warn(
            f"{len(without)} of {len(images)} images are not listed with regions, and count as images without any: "
            f"{', '.join(first_few(without, 3))}",
            stacklevel=4,
        )
    return [[] if image_regions is None else image_regions for image_regions in lists]


# Files


def read_regions(path: StrPath, images: Sequence[str]) -> dict[str, list[Region]]:
    """The regions in a file or folder: the path of each image -> its regions.

    Raises:
        RequestError: naming the file, and its line or annotation that cannot be used.
    """
    name = os.fspath(path)
    try:
        if os.path.isdir(name):
            return _of_masks(name, images)
        if name.lower().endswith(".json"):
            return _of_coco(name)
        if name.lower().endswith(".csv"):
            return _of_table(name)
    except RequestError:
        raise
    except OSError as error:
        raise RequestError(f"cannot read regions {name}: {error.strerror or error}") from error
    except (ValueError, csv.Error) as error:
        raise RequestError(f"cannot read regions {name}: {error}") from error
    raise RequestError(f"cannot read regions {name}: give a COCO .json, a .csv with path,x,y,w,h, or a folder of masks")


def _of_masks(folder: str, images: Sequence[str]) -> dict[str, list[Region]]:
    """One region for each mask: masks/IMAGE/LABEL.png, or masks/IMAGE.png without a label; IMAGE may be "a.mp4 @ 12".

    IMAGE is the end of the image's path, with as many of its folders as there are below masks/.
    """
    regions: dict[str, list[Region]] = {}
    taken: dict[str, str] = {}
    for path in images:
        labeled_folder = _labeled_folder(folder, path)
        if labeled_folder is not None:
            paths.claim(taken, path, labeled_folder, folder)
            masks = paths.listed(labeled_folder)
            regions[path] = [Region(mask=mask, label=Path(mask).stem) for mask in masks]
            continue
        mask = paths.mask_of(folder, path)
        if mask is not None:
            paths.claim(taken, path, mask, folder)
            regions[path] = [Region(mask=mask)]
    return regions


def _labeled_folder(folder: str, image: str) -> str | None:
    """The folder with an image's masks by label: the longest end of the image's path, without its ending."""
    path = os.path.abspath(image)
    stem, ending = os.path.splitext(path)
    if " @ " in ending:
        stem = path
    parts = Path(stem).parts[1:]
    for start in range(len(parts)):
        labeled_folder = os.path.join(folder, *parts[start:])
        if os.path.isdir(labeled_folder):
            return labeled_folder
    return None


def _of_table(path: str) -> dict[str, list[Region]]:
    regions: dict[str, list[Region]] = {}
    reader = csv.DictReader(io.StringIO(json_file.read_text(path, encoding="utf-8-sig"), newline=""))
    missing = [column for column in ("path", "x", "y", "w", "h") if column not in (reader.fieldnames or ())]
    if missing:
        raise RequestError(f"{path} has no column {', '.join(missing)}: path,x,y,w,h[,label,score] are needed")
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        sides = [row[side] for side in "xywh"]
        label = row.get("label") or ""
        region = _region(sides, label, where, score=row.get("score"))
        regions.setdefault(row["path"], []).append(region)
    return regions


def _of_coco(path: str) -> dict[str, list[Region]]:
    """The annotations of a COCO file, with their masks; crowds, which show several objects, are left out."""
    content = json_file.read(path)
    if isinstance(content, list):
        raise RequestError(
            f"{path} is a list of COCO results, which names no files: give them with the images' section"
        )
    try:
        images = {image["id"]: image for image in content["images"]}
        categories = {category["id"]: str(category["name"]) for category in content.get("categories", [])}
        regions: dict[str, list[Region]] = {str(image["file_name"]): [] for image in images.values()}
        for annotation in content["annotations"]:
            if annotation.get("iscrowd"):
                continue
            image = images[annotation["image_id"]]
            region = _region(
                annotation["bbox"],
                label=categories.get(annotation.get("category_id"), ""),
                where=f"{path}, annotation {annotation.get('id', '?')}",
                segmentation=annotation.get("segmentation"),
                image_size=_size_of(image),
                score=annotation.get("score"),
            )
            regions[str(image["file_name"])].append(region)
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{path} is not a COCO file of boxes: {type(error).__name__} {error}") from error
    return regions


def _size_of(image: Mapping[str, Any]) -> tuple[int, int] | None:
    """Width and height of an image of a COCO file, None where it does not have them."""
    width, height = image.get("width"), image.get("height")
    if not width or not height:
        return None
    return int(width), int(height)


def _region(
    sides: Sequence[Any],
    label: str,
    where: str,
    segmentation: Any = None,
    image_size: tuple[int, int] | None = None,
    score: Any = None,
) -> Region:
    """A region by left, top, width and height, and by a COCO segmentation: polygons, or a run-length code."""
    mask: Polygons | RunLengths | None = None
    try:
        left, top, width, height = (float(side) for side in sides)
        if segmentation and isinstance(segmentation, list):
            mask = Polygons([_outline(polygon) for polygon in segmentation])
        elif segmentation:
            mask = RunLengths(segmentation)
            image_size = image_size or mask.image_size
            if mask.image_size != image_size:
                raise RequestError(
                    f"its run-length code is of {mask.image_size[0]} x {mask.image_size[1]} pixels, its image has "
                    f"{image_size[0]} x {image_size[1]}"
                )
        box = (left, top, left + width, top + height)
        return Region(box, mask, label, score=_score(score), image_size=image_size)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise RequestError(
            f"{where}: {list(sides)} is not a box x,y,w,h, or its mask cannot be used: {error}"
        ) from error


def _score(score: Any) -> float:
    """A detector's confidence, 1 where a file has none."""
    if score in (None, ""):
        return 1.0
    try:
        confidence = float(score)
    except (TypeError, ValueError):
        confidence = math.nan
    if not 0 <= confidence <= 1:
        raise RequestError(f"its score is {score!r}: a detector's confidence is in 0..1")
    return confidence


def _outline(polygon: Sequence[Any]) -> list[float]:
    outline = [float(side) for side in polygon]
    are_finite = [math.isfinite(side) for side in outline]
    if len(outline) < 6 or len(outline) % 2 or not all(are_finite):
        raise RequestError(f"a polygon has x and y of three corners or more, not {outline[:8]}")
    return outline
