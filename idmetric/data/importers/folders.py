"""A folder per identity, and a data set that is published so: CUTE.

root/mug_a/1.jpg, root/mug_a/2.jpg         identity mug_a
root/dogs/rex/1.jpg                        identity dogs/rex, category dogs
root/mug_a/1_mask.png, root/mug_a/masks/1.png, root/masks/mug_a/1.png, root_masks/..., train_masks/mug_a/1.png
root/Train/mug_a/1.jpg, root/Test/...      identity mug_a, splits train and test, see `split_folders`
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.split_folders import split_level
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row
from idmetric.metric.paths import IMAGE_ENDINGS, images_below
from idmetric.tables import first_few

_MASKS = re.compile("(^|_)masks$", re.IGNORECASE)  # what names of folders of masks have in addition
_SCENE = re.compile(r"((in[ _-]?the[ _-]?)?wild|(in[ _-]?)?studio|light(ing|s)?|illumination|poses?|scenes?)[ _-]?\d*")


@dataclass(frozen=True)
class PicturePaths:
    """Paths of an image and of its mask, relative to a folder."""

    path: PurePosixPath
    mask: PurePosixPath | None

    def row(self, job: ImportJob, root: Path, subject: str, **columns: Any) -> Row:
        """Its row, with an identity of this name."""
        if self.mask:
            columns["mask"] = str((root / self.mask).absolute())
        return job.row(subject, str(self.path), root / self.path, **columns)


def folder(job: ImportJob) -> Iterator[Row]:
    """A row for each image; its identity is the path of its folder."""
    root = job.folder()
    images = pictures(root)
    level = split_level(root, [picture.path for picture in images])
    for picture in job.limited(images, root.name):
        *folders, name = picture.path.parts
        columns = {}
        if level is not None:
            columns["split"] = folders.pop(level)
        if not folders:
            raise ManifestError(
                f"{root / picture.path}: the image is not in the folder of an identity; move it to one, such as "
                f"{root.name}/NAME/{name}"
            )
        if len(folders) > 1:
            columns["category"] = folders[0]
        yield picture.row(job, root, "/".join(folders), **columns)


def pictures(root: Path) -> list[PicturePaths]:
    """All images in a folder at any depth, sorted, with their masks; hidden files are ignored, links followed.

    Raises:
        ManifestError: if there are no images, or one image has two masks.
    """
    images = []
    mask_of: dict[PurePosixPath, PurePosixPath] = {}  # by the image's path without extension
    for file in images_below(root):
        path = PurePosixPath(file.relative_to(root).as_posix())
        image = _masked(path)
        if image is None:
            images.append(path)
        elif mask_of.setdefault(image, path) != path:
            raise ManifestError(f"{root}: two masks of one image: {mask_of[image]} and {path}")

    if not images:
        raise ManifestError(f"{root}: no images ({', '.join(IMAGE_ENDINGS[:4])}, ...) in the folder or below")
    stems = {path.with_suffix("") for path in images}
    lone = [str(mask) for image, mask in mask_of.items() if image not in stems]
    if lone:
        listed = ", ".join(first_few(lone, 5))
        warnings.warn(f"{root}: {len(lone)} masks belong to no image (rename those of images): {listed}", stacklevel=2)
    return [PicturePaths(path, mask_of.get(path.with_suffix(""))) for path in images]


def _masked(path: PurePosixPath) -> PurePosixPath | None:
    """Path without extension of the image that a mask belongs to; None if the path is an image."""
    folders = path.parts[:-1]
    image_folders = [_MASKS.sub("", folder) for folder in folders]
    stem = re.sub("(?<=.)_mask$", "", path.stem, flags=re.I)
    if stem == path.stem and image_folders == [*folders]:
        return None
    return PurePosixPath(*image_folders, stem)


def cute(job: ImportJob) -> Iterator[Row]:
    """CUTE: 180 objects under different lighting, poses and in the wild (Kotar et al., NeurIPS 2023; purl gj714cj0414).

    The published archive is a tree of folders without an index. The path of an image is taken to name first the object
    (one or more folders, perhaps below a category) and then the scene (in the wild, studio, lighting, pose, ...). The
    folders above the first folder that names a scene name the object; option `depth` sets their number where names
    differ. The scene goes to the column `background`, which the easy and hard modes of the triplets need (ID-Sim,
    appendix D.1).
    """
    root, stated_depth = job.folder(), int(job.options.get("depth", 0))
    images = pictures(root)
    level = split_level(root, [picture.path for picture in images])
    for picture in job.limited(images, root.name):
        folders = [*picture.path.parts[:-1]]
        split = None
        if level is not None:
            split = folders.pop(level)
        scenes = [depth for depth, name in enumerate(folders) if _SCENE.fullmatch(name.lower())]
        depth = stated_depth or min(scenes, default=0)
        if not 0 < depth <= len(folders):
            raise ManifestError(
                f"{root / picture.path}: no folder after the object's names a scene (in_the_wild, studio, lighting, "
                f"pose, ...); say how many of the {len(folders)} folders name the object: --option depth=1"
            )
        category = folders[0]
        if depth == 1:
            category = re.sub(r"[ _-]*\d+$", "", category) or category
        subject, scene = "/".join(folders[:depth]), "/".join(folders[depth:])
        yield picture.row(job, root, subject, split=split, domain="objects", category=category, background=scene)
