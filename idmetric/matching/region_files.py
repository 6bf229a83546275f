"""Regions of images, as users give them: lists for each image, COCO files, tables, masks, detectors.

regions=[(40, 60, 220, 300), (0.5, 0.1, 0.9, 0.8)]  # of one image; of several, a list of such lists
regions={"street/01.jpg": [(40, 60, 220, 300)]}     # the end of an image's path -> its regions; also "clip.mp4 @ 12"
regions=frame                                       # a DataFrame with the columns of a .csv
regions="boxes.csv"                                 # columns path,x,y,w,h[,label,score]
regions="boxes.json"                                # COCO: boxes, and polygons or run-length codes as masks
regions="masks/"                                    # masks/IMAGE/LABEL.png, or masks/IMAGE.png

The one way in for all of them: each format is read to annotations by image (`idmetric.matching.annotations`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from idmetric.matching.annotations import Annotation, Annotations
from idmetric.matching.detected import DetectedRegions
from idmetric.matching.listed_paths import by_path
from idmetric.matching.region_coco import read_coco
from idmetric.matching.region_folders import read_masks
from idmetric.matching.region_tables import is_frame, read_frame, read_region_table
from idmetric.matching.regions import Detector, Region, Regions, as_region, is_box
from idmetric.metric import paths
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, read_json_file
from idmetric.metric.images import ImageReadError, Picture, is_array, is_image_like
from idmetric.metric.masks import Labeled
from idmetric.tables import first_few

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Kind = Literal["image", "clip", "list"]
_FORMATS = "give a COCO .json, a .csv with path,x,y,w,h, or a folder of masks"


@dataclass(frozen=True)
class RegionSource:
    """Where the regions of a request's images come from.

    Attributes:
        find: an image's number and its pixels -> its regions. ImageReadError for regions that cannot be used.
        problems: number of an image -> why its regions cannot be used, as far as this is known without its pixels.
        unlisted: the images that a file or a dict of regions does not list; they count as images without regions.
    """

    find: Callable[[int, Picture], Sequence[Region]]
    problems: Mapping[int, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()


def regions_for(regions: Regions, images: Sequence[str], kind: Kind, labels: Collection[str]) -> RegionSource:
    """The source of each image's regions.

    Args:
        regions: see this module; None stands for whole images.
        images: names of the images of the request, and of the frames of its clips.
        kind: of the request. One list of regions is enough for one image, or for all frames of one clip.
        labels: names and class words of the subjects.

    Raises:
        RequestError: for regions that do not fit the images, and for files that cannot be read.
    """
    if regions is None:
        return RegionSource(lambda number, picture: [Region()])
    if isinstance(regions, DetectedRegions):
        return RegionSource(partial(_detected, regions, labels))
    if callable(regions):
        return RegionSource(partial(_by_function, regions, images))
    return _listed(regions, images, kind, labels)


def _listed(regions: Any, images: Sequence[str], kind: Kind, labels: Collection[str]) -> RegionSource:
    """The regions of each image that are given, or in a file; arguments and errors as `regions_for`."""
    annotations: Annotations | None = None
    if isinstance(regions, str | os.PathLike) and not paths.is_image(regions):
        annotations = read_regions(regions, images)
    elif is_frame(regions):
        annotations = read_frame(regions)
    elif isinstance(regions, Mapping):
        annotations = _of_mapping(regions)
    problems: dict[int, str] = {}
    unlisted: tuple[str, ...] = ()
    if annotations is not None:
        of_images = by_path(annotations, images, "regions")
        unlisted = _unlisted(of_images, annotations, images)
        lists, problems = _checked(of_images)
    else:
        lists = _given_lists(regions, kind)
    if kind == "clip" and len(lists) == 1:
        lists = lists * len(images)
    if len(lists) != len(images):
        raise RequestError(f"regions of {len(lists)} images were given for {len(images)}: give a list for each image")

    lists = _with_labels(lists, labels)

    def find(number: int, picture: Picture) -> Sequence[Region]:
        if number in problems:
            raise ImageReadError(images[number], problems[number])
        return lists[number]

    return RegionSource(find, problems, unlisted)


def _detected(regions: DetectedRegions, labels: Collection[str], number: int, picture: Picture) -> list[Region]:
    """What a detector finds; a word that no subject has as its name or class word leaves its regions open to all."""
    return [region if region.label in labels else replace(region, label="") for region in regions(picture)]


def _by_function(detector: Detector, images: Sequence[str], number: int, picture: Picture) -> list[Region]:
    try:
        regions = detector(picture)
        if regions is not None:
            return [as_region(region) for region in regions]
    except RequestError as error:  # of this image alone, such as an empty box
        raise ImageReadError(images[number], str(error)) from error
    raise RequestError(
        f"the function that finds regions returned None for {images[number]}: let it return a list, which is empty "
        "where it finds nothing"
    )


# Lists


def _given_lists(regions: Any, kind: Kind) -> list[list[Region]]:
    """One list of regions, or one for each image."""
    if _is_one_region(regions):
        return [[as_region(regions)]]
    if kind != "list" and not _is_list_of_lists(regions):
        return [[as_region(region) for region in regions]]
    lists = []
    for image_regions in regions:
        if _is_one_region(image_regions):
            raise RequestError("regions of several images are a list for each image, also where it has one region")
        lists.append([as_region(region) for region in image_regions])
    return lists


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


# Regions by image


def _of_mapping(regions: Mapping[str, Sequence[Any]]) -> Annotations:
    annotations = {}
    for path, path_regions in regions.items():
        named = enumerate(path_regions)
        annotations[str(path)] = [
            Annotation(f"region {number} of {path}", partial(as_region, region)) for number, region in named
        ]
    return annotations


def _checked(of_images: Sequence[Sequence[Annotation] | None]) -> tuple[list[list[Region]], dict[int, str]]:
    """The regions of each image, and by the image's number why they cannot be used."""
    lists: list[list[Region]] = []
    problems: dict[int, str] = {}
    for number, of_image in enumerate(of_images):
        regions = []
        try:
            for annotation in of_image or ():
                regions.append(annotation.region())
        except RequestError as error:
            problems[number] = str(error)
            regions = []
        lists.append(regions)
    return lists, problems


def _unlisted(
    of_images: Sequence[Sequence[Annotation] | None], annotations: Annotations, images: Sequence[str]
) -> tuple[str, ...]:
    """The images that are not listed, with a warning; RequestError if none is."""
    unlisted = [image for image, listed in zip(images, of_images, strict=True) if listed is None]
    if len(unlisted) == len(images):
        files = [image for image in images if not _is_frame_of_clip(image) and not image.startswith("<")]
        if files and not any(os.path.exists(file) for file in files):
            raise RequestError(f"{files[0]} does not exist: check the path and the working directory")
        names = ", ".join(first_few(unlisted, 3))
        listed_paths = ", ".join(first_few(list(annotations), 3)) or "none"
        raise RequestError(
            f"none of the images ({names}) is among the ones with regions ({listed_paths}): compare their paths"
        )
    if unlisted:
        warnings.warn(
            f"{len(unlisted)} of {len(images)} images are not listed with regions, and count as images without any: "
            f"{', '.join(first_few(unlisted, 3))}",
            stacklevel=5,
        )
    return tuple(unlisted)


def _is_frame_of_clip(name: str) -> bool:
    """Whether this is the name of a frame of an opened clip, "clip.mp4 @ 12"."""
    _, _, frame = name.rpartition(" @ ")
    return " @ " in name and frame.isdecimal()


def _with_labels(lists: Sequence[Sequence[Region]], labels: Collection[str]) -> list[list[Region]]:
    """Regions with the labels that say which subject they may show.

    One label that all regions have, such as "object", and no subject, says nothing: it is left out, with a warning.
    Other labels that no subject has keep their regions from being compared; RequestError if that would be all of them.
    """
    unchanged = [list(image_regions) for image_regions in lists]
    if not labels:  # images are compared with each other
        return unchanged
    region_labels: set[str] = set()
    for image_regions in lists:
        region_labels.update(region.label for region in image_regions)
    unknown = sorted(region_labels - {"", *labels})
    if not unknown:
        return unchanged
    if len(region_labels) == 1:
        warnings.warn(
            f"all regions are labeled {unknown[0]}, which is no subject's name or class word: they are compared as "
            "regions without labels",
            stacklevel=5,
        )
        return [[replace(region, label="") for region in image_regions] for image_regions in lists]
    names = ", ".join(first_few(unknown, 3))
    if len(unknown) == len(region_labels):
        raise RequestError(
            f"no region's label ({names}) is a subject's name or class word ({', '.join(sorted(labels))}): name the "
            f"word of each subject by --subject NAME:WORD=PATH, such as {sorted(labels)[0]}:{unknown[0]}=PATH (in "
            f"Python words={{{sorted(labels)[0]!r}: {unknown[0]!r}}}), rename the labels, or leave them out"
        )
    warnings.warn(
        f"regions labeled {names} are compared with no subject: none has this name or class word "
        "(--subject NAME:WORD=PATH gives one)",
        stacklevel=5,
    )
    return unchanged


# Files


def read_regions(path: StrPath, images: Sequence[str]) -> Annotations:
    """The annotations in a file or folder, of these images or of more.

    Raises:
        RequestError: naming the file, and what in it cannot be used.
    """
    name = os.fspath(path)
    try:
        return _read(name, images)
    except RequestError:
        raise
    except OSError as error:
        raise RequestError(f"cannot read regions {name}: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"cannot read regions {name}: {error}") from error


def _read(path: str, images: Sequence[str]) -> Annotations:
    """By the ending of the file's name."""
    _, ending = os.path.splitext(path.lower())
    if os.path.isdir(path):
        return read_masks(path, images)
    if ending == ".json":
        return read_coco(path, read_json_file(path))
    if ending in (".csv", ".tsv", ".jsonl"):
        return read_region_table(path)
    raise RequestError(f"cannot read regions {path}: {_FORMATS}")
