"""Folders with a file of annotations, or masks, for each image.

- YOLO's labels: `CLASS x y width height` (and a confidence), or `CLASS x y x y ...` for a polygon, in fractions of the
  image; names of classes in data.yaml, classes.txt or obj.names.
- Pascal VOC's XML: corners as they are written, in pixels.
- LabelMe's JSON: rectangles, polygons, circles and masks.
- Masks: IMAGE/LABEL.png, or IMAGE.png without a label.

A file of annotations is named like its image and lies next to it, in the folder itself, or in the place that `images`
has in the image's path: `train/labels/a.txt` is of `train/images/a.jpg`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from idmetric.matching.annotations import Annotation, Annotations
from idmetric.matching.listed_paths import Parts, path_parts
from idmetric.matching.region_labelme import read_labelme
from idmetric.matching.region_voc import read_voc
from idmetric.matching.region_yolo import YoloClasses
from idmetric.matching.regions import Region
from idmetric.metric.errors import RequestError
from idmetric.metric.files.folders import walk
from idmetric.metric.files.output import is_same_file
from idmetric.metric.images import paths

_FOLDERS = {"images", "jpegimages", "labels", "annotations", "obj_train_data"}  # that keep images and labels apart

Read = Callable[[str], list[Annotation]]  # the path of an image's file -> its annotations


def read_folder(folder: str, images: Sequence[str], classes: YoloClasses | None = None) -> Annotations:
    """The annotations of each of these images that has a file, or masks, in a folder.

    Args:
        classes: the names of YOLO's classes; default: those of the folder.

    Raises:
        RequestError: for a folder of two kinds of annotations of these images, or of none.
    """
    of_kinds: dict[str, Annotations] = {}
    masks = _of_masks(folder, images)
    if masks:
        of_kinds["masks"] = masks
    files = [str(file) for file in walk(Path(folder))]
    for ending, read in _kinds(classes or YoloClasses(folder)).items():
        files_of_kind = [file for file in files if file.lower().endswith(ending)]
        annotations = _of_files(files_of_kind, folder, images, read)
        if annotations:
            of_kinds[ending] = annotations
    if len(of_kinds) > 1:
        names = " and ".join(of_kinds)
        raise RequestError(f"{folder} has {names} of these images: give a folder with one kind of annotations")
    if of_kinds:
        return next(iter(of_kinds.values()))

    tables = [file for file in files if file.lower().endswith((".json", ".csv"))]
    if len(tables) == 1:
        raise RequestError(f"no image has a file of regions in {folder}: give {tables[0]} if it lists them")
    raise RequestError(
        f"no image has regions in {folder}: a folder holds masks (IMAGE/LABEL.png or IMAGE.png), or for each image a "
        "YOLO .txt, a Pascal VOC .xml or a LabelMe .json with its name"
    )


def read_file_of_one(path: str, images: Sequence[str]) -> Annotations:
    """The annotations in a file of one image, a YOLO .txt, a Pascal VOC .xml or a LabelMe .json with its name."""
    folder = os.path.dirname(path) or "."
    for ending, read in _kinds(YoloClasses(folder)).items():
        if path.lower().endswith(ending):
            annotations = _of_files([path], folder, images, read)
            if annotations:
                return annotations
            for annotation in _read(read, path):
                annotation.region()  # it may be of another kind than it seems
            raise RequestError(f"{path} has the annotations of one image, and no image has its name: give their folder")
    raise AssertionError(path)


def _kinds(classes: YoloClasses) -> dict[str, Read]:
    """How files are read, by their endings."""
    return {".txt": classes.read_labels, ".xml": read_voc, ".json": read_labelme}


def _of_files(files: Sequence[str], folder: str, images: Sequence[str], read: Read) -> Annotations:
    """The annotations in the files that are named like images; of several, the one that shares most folders."""
    files_of: dict[Parts, list[str]] = {}
    for file in files:
        files_of.setdefault(_key(os.path.relpath(file, folder)), []).append(file)
    annotations: dict[str, list[Annotation]] = {}
    owners: dict[str, str] = {}
    for image in images:
        parts = _key(os.path.abspath(image))
        ends = [parts[start:] for start in range(len(parts)) if parts[start:] in files_of]
        if not ends:
            continue
        file, *more = files_of[ends[0]]
        if more:
            raise RequestError(f"both {file} and {more[0]} may be the annotations of {image}: keep one of them")
        owner = owners.setdefault(file, image)
        if owner != image and not is_same_file(owner, image):
            raise RequestError(f"{file} would be the annotations of both {owner} and {image}: rename one of the images")
        annotations[image] = _read(read, file)
    return annotations


def _read(read: Read, file: str) -> list[Annotation]:
    """The annotations in a file; of one that cannot be read, a single one that says so."""
    try:
        return read(file)
    except OSError as error:
        return [Annotation.unusable(file, f"cannot be read: {error.strerror or error}")]
    except ValueError as error:
        return [Annotation.unusable(file, str(error))]


def _key(path: str) -> Parts:
    """The names on a path without those of folders that keep images and labels apart, and without endings."""
    parts = [part for part in path_parts(path) if part != "/" and part not in _FOLDERS]
    if not parts:
        return ()
    name = parts[-1]
    stem, ending = os.path.splitext(name)
    if " @ " in ending:  # a frame of a clip
        stem = name
    if paths.is_image(stem):  # a.jpg.json
        stem, _ = os.path.splitext(stem)
    return (*parts[:-1], stem)


# Masks


def _of_masks(folder: str, images: Sequence[str]) -> Annotations:
    """One region for each mask of an image; IMAGE may be "a.mp4 @ 12".

    IMAGE is the end of the image's path, with as many of its folders as there are below the folder of masks.
    """
    annotations: dict[str, list[Annotation]] = {}
    taken: dict[str, str] = {}
    for image in images:
        labeled_folder = _labeled_folder(folder, image)
        if labeled_folder is not None:
            paths.claim(taken, image, labeled_folder, folder)
            masks = paths.listed(labeled_folder)
            annotations[image] = [_of_mask(mask, Path(mask).stem) for mask in masks]
            continue
        mask = paths.mask_of(folder, image)
        if mask is not None:
            paths.claim(taken, image, mask, folder)
            annotations[image] = [_of_mask(mask, "")]
    return annotations


def _of_mask(mask: str, label: str) -> Annotation:
    return Annotation(mask, partial(Region, mask=mask, label=label))


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
