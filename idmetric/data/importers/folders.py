"""A folder per identity, and a data set that is published so: CUTE.

root/mug_a/1.jpg, root/mug_a/2.jpg         identity mug_a
root/dogs/rex/1.jpg                        identity dogs/rex, category dogs
root/mug_a/1_mask.png, root/mug_a/masks/1.png, root/masks/mug_a/1.png, root_masks/..., train_masks/mug_a/1.png
root/Train/rex/1.jpg, root/Test/rex/2.jpg  one identity rex, splits train and test
root/rex/train/1.jpg, root/rex/test/2.jpg  the same
root/test/1.jpg, root/rex/1.jpg            an identity that is called test, next to others; a warning says so
root/fold0/rex/1.jpg, root/fold1/rex/2.jpg refused: one identity or two?

Folders are splits if the same level of every image's path has one of the words of `split_words`. A folder with such a
name that holds images alone, next to a folder with another name, is an identity. Others are refused, and so are equal
names of identities below two folders: photos of one animal in two splits would become two identities.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.source import Row
from idmetric.data.manifest import ManifestError
from idmetric.data.split import split_word
from idmetric.metric.paths import IMAGE_ENDINGS, images_below
from idmetric.tables import first_few

_MASKS = re.compile("(^|_)masks$", re.IGNORECASE)  # what names of folders of masks have in addition
_SCENE = re.compile(r"((in[ _-]?the[ _-]?)?wild|(in[ _-]?)?studio|light(ing|s)?|illumination|poses?|scenes?)[ _-]?\d*")


class FolderImage(NamedTuple):
    """An image in a folder: its path from there with forward slashes, its file, and its mask."""

    id: str
    path: Path
    mask: Path | None

    @property
    def folders(self) -> list[str]:
        """The folders on the way to it."""
        return self.id.split("/")[:-1]

    def __str__(self) -> str:
        return str(self.path)


def pictures(root: Path) -> list[FolderImage]:
    """All images in a folder at any depth, sorted, with their masks; hidden files are ignored, links followed.

    Raises:
        ManifestError: if there are no images, or one image has two masks.
    """
    images = []
    mask_of: dict[PurePosixPath, Path] = {}  # by the image's path without extension
    for file in images_below(root):
        image = _masked(PurePosixPath(file.relative_to(root).as_posix()))
        if image is None:
            images.append(file)
        elif mask_of.setdefault(image, file) != file:
            raise ManifestError(f"{root}: two masks of one image: {mask_of[image]} and {file}")

    if not images:
        raise ManifestError(f"{root}: no images ({', '.join(IMAGE_ENDINGS[:4])}, ...) in the folder or below")
    pairs = []
    for file in images:
        path = PurePosixPath(file.relative_to(root).as_posix())
        pairs.append(FolderImage(str(path), file, mask_of.pop(path.with_suffix(""), None)))
    if mask_of:
        listed = ", ".join(first_few([str(mask.relative_to(root)) for mask in mask_of.values()], 5))
        warnings.warn(
            f"{root}: {len(mask_of)} masks belong to no image (rename those of images): {listed}", stacklevel=2
        )
    return pairs


def _masked(path: PurePosixPath) -> PurePosixPath | None:
    """Path without extension of the image that a mask belongs to; None if the path is an image."""
    *folders, _ = path.parts
    image_folders = [_MASKS.sub("", folder) for folder in folders]
    stem = re.sub("(?<=.)_mask$", "", path.stem, flags=re.I)
    if stem == path.stem and image_folders == folders:
        return None
    return PurePosixPath(*image_folders, stem)


def folder(job: ImportJob) -> Iterator[Row]:
    """A row for each image; its identity is the path of its folder."""
    root = job.folder()
    images = pictures(root)
    for picture in images:
        if not picture.folders:
            raise ManifestError(
                f"{picture}: the image is not in the folder of an identity; move it to one, such as "
                f"{root.name}/NAME/{picture.path.name}"
            )
    identities, level = identities_below(root, images)

    def row(picture: FolderImage) -> list[Row]:
        folders = identities[picture]
        columns: Row = {
            "identity": "/".join(folders),
            "category": folders[0] if len(folders) > 1 else None,
            "split": None if level is None else picture.folders[level],
        }
        return [picture._asdict() | columns]

    return job.rows(images, row)


def identities_below(root: Path, images: Sequence[FolderImage]) -> tuple[dict[FolderImage, list[str]], int | None]:
    """The folders that name the identity of each image, none for one right in `root`; and the `split_level`.

    Raises:
        ManifestError: as `split_level`, and for equal names of identities below two folders.
    """
    in_folders = [picture for picture in images if picture.folders]
    level = split_level(root, in_folders)
    identities = {}
    for picture in images:
        folders = picture.folders
        if folders and level is not None:
            folders.pop(level)
        identities[picture] = folders
    _refuse_equal_names(root, map(tuple, identities.values()))
    return identities, level


def split_level(root: Path, images: Sequence[FolderImage]) -> int | None:
    """Which folder on the paths of all images, from 0, names their split; None if none does.

    Raises:
        ManifestError: naming a folder called like a split that is neither the split of its images nor an identity.
    """
    shortest = min((len(picture.folders) for picture in images), default=0)
    if shortest > 1:  # a folder for the split, and one for the identity
        for level in range(shortest):
            if all(split_word(picture.folders[level]) for picture in images):
                return level

    names_in: dict[tuple[str, ...], set[str]] = defaultdict(set)  # folder -> names of the folders in it
    for picture in images:
        for depth, name in enumerate(picture.folders):
            names_in[tuple(picture.folders[:depth])].add(name)
    identities = []
    for above, names in sorted(names_in.items()):
        for name in sorted(filter(split_word, names)):
            path = PurePosixPath(*above, name)
            if (*above, name) in names_in or all(map(split_word, names)):
                advice = "sort all images into folders of splits with a folder of each identity in them, or rename it"
                raise ManifestError(
                    f"{root / path}: this name is that of a split, but not every image lies below a split and an "
                    f"identity: {advice}"
                )
            identities.append(str(path))
    if identities:
        warnings.warn(
            f"{root}: taken as identities, because they stand next to other identities, though their names are those "
            f"of splits: {', '.join(first_few(identities, 5))}",
            stacklevel=2,
        )
    return None


def _refuse_equal_names(root: Path, identities: Iterable[tuple[str, ...]]) -> None:
    """Refuse two identities whose paths differ in one folder above: fold0/rex and fold1/rex may be one animal."""
    path_of: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}
    for path in dict.fromkeys(identities):
        for level in range(len(path) - 1):
            rest = path[:level] + path[level + 1 :]
            earlier = path_of.setdefault((level, rest), path)
            if earlier != path:
                raise ManifestError(
                    f"{root.joinpath(*earlier)} and {root.joinpath(*path)} have equal names: if they show one "
                    "identity, call the folders above train, val, test, query or gallery, or move its images into one "
                    "folder; if they show two, rename one"
                )


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
    level = split_level(root, images)

    def row(picture: FolderImage) -> list[Row]:
        folders = picture.folders
        split = None if level is None else folders.pop(level)
        scenes = [depth for depth, name in enumerate(folders) if _SCENE.fullmatch(name.lower())]
        depth = stated_depth or min(scenes, default=0)
        if not 0 < depth <= len(folders):
            raise ManifestError(
                f"{picture}: no folder after the object's names a scene (in_the_wild, studio, lighting, pose, ...); "
                f"say how many of the {len(folders)} folders name the object: --option depth=1"
            )
        category = folders[0]
        if depth == 1:
            category = re.sub(r"[ _-]*\d+$", "", category) or category
        columns = {
            "identity": "/".join(folders[:depth]),
            "background": "/".join(folders[depth:]),
            "split": split,
            "domain": "objects",
            "category": category,
        }
        return [picture._asdict() | columns]

    return job.rows(images, row)
