"""Folders of masks: IMAGE/LABEL.png, or IMAGE.png without a label.

IMAGE is the end of the image's path, with as many of its folders as there are below the folder of masks, and may be
"a.mp4 @ 12".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from idmetric.matching.annotations import Annotation, Annotations
from idmetric.matching.regions import Region
from idmetric.metric import paths
from idmetric.metric.errors import RequestError


def read_masks(folder: str, images: Sequence[str]) -> Annotations:
    """One region for each mask of an image; RequestError for a folder without any, and for masks of two images."""
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
    if not annotations:
        raise RequestError(f"no image has a mask in {folder}: it holds IMAGE/LABEL.png or IMAGE.png")
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
