"""A folder per identity.

root/mug_a/1.jpg, root/mug_a/2.jpg         identity mug_a
root/dogs/rex/1.jpg                        identity dogs/rex, category dogs
root/mug_a/1_mask.png, root/mug_a/masks/1.png, root/masks/mug_a/1.png, root_masks/..., train_masks/mug_a/1.png
root/train/mug_a/1.jpg, root/test/...      identity mug_a, splits train and test, if all top folders are splits
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import Row
from idmetric.images.paths import IMAGE_ENDINGS, is_image, walk

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "dev", "test": "test"}
_SHOWN = 5


@dataclass(frozen=True)
class Picture:
    """Paths of an image and of its mask, relative to a folder."""

    path: PurePosixPath
    mask: PurePosixPath | None

    def files(self, root: Path) -> dict[str, Any]:
        """The columns path and mask of its row."""
        return {
            "path": str((root / self.path).absolute()),
            "mask": None if self.mask is None else str((root / self.mask).absolute()),
        }


def rows(job: Job) -> Iterator[Row]:
    """A row for each image; its identity is the path of its folder."""
    for source in job.sources:
        root = job.folder(source)
        found = pictures(root)
        splits = _top_are_splits(found, job.options.get("splits"))
        for picture in job.progress(found[: job.limit], len(found[: job.limit]), root.name):
            yield _row(job, root, picture, splits)


def _row(job: Job, root: Path, picture: Picture, splits: bool) -> Row:
    folders = picture.path.parts[:-1]
    split, folders = (folders[0], folders[1:]) if splits else (None, folders)
    if not folders:
        raise SourceError(
            f"{root / picture.path}: the image is not in the folder of an identity; move it to one, such as "
            f"{PurePosixPath(root.name, picture.path.parent, 'NAME', picture.path.name)}"
        )

    return Row(
        identity="/".join((job.name, *folders)),
        id=f"{job.name}/{picture.path}",
        dataset=job.name,
        split=None if split is None else SPLITS[split],
        category=folders[0] if len(folders) > 1 else None,
        **picture.files(root),
    )


def pictures_of(job: Job, root: Path, name: str | None = None) -> Iterable[Picture]:
    """The images of a folder up to the job's limit, with progress shown under the folder's name or another."""
    found = pictures(root)[: job.limit]
    return job.progress(found, len(found), name or root.name)


def pictures(root: Path) -> list[Picture]:
    """All images in a folder at any depth, sorted, with their masks; hidden files are ignored, links followed.

    Raises:
        SourceError: if there are no images, or one image has two masks.
    """
    masks: dict[PurePosixPath, PurePosixPath] = {}
    images = []
    for file in walk(root):
        if not is_image(file):
            continue
        path = PurePosixPath(file.relative_to(root).as_posix())
        masked = _masked(path)
        if masked is None:
            images.append(path)
        elif masks.setdefault(masked, path) != path:
            raise SourceError(f"{root}: two masks of one image: {masks[masked]} and {path}")

    if not images:
        raise SourceError(f"{root}: no images ({', '.join(IMAGE_ENDINGS[:4])}, ...) in the folder or below")
    stems = {path.with_suffix("") for path in images}
    lone = [path for masked, path in masks.items() if masked not in stems]

    if lone:
        shown = ", ".join(map(str, lone[:_SHOWN]))
        advice = "if they are images, rename them or their folder (..._mask, masks and ..._masks mean masks)"
        warnings.warn(f"{root}: {len(lone)} masks belong to no image: {shown}; {advice}", stacklevel=2)

    return [Picture(path, masks.get(path.with_suffix(""))) for path in images]


def _masked(path: PurePosixPath) -> PurePosixPath | None:
    """Path without extension of the image that a mask belongs to; None if the path is an image."""
    if len(path.parts) == 2 and path.parts[0].lower() == "masks":
        return None  # an identity of that name
    folders, is_mask = [], False
    for part in path.parts[:-1]:
        plain = part.lower()
        if plain == "masks":
            is_mask = True
        elif plain.endswith("_masks"):
            is_mask = True
            folders.append(part[: -len("_masks")])
        else:
            folders.append(part)

    stem = path.stem
    if stem.lower().endswith("_mask") and len(stem) > len("_mask"):
        stem, is_mask = stem[: -len("_mask")], True
    return PurePosixPath(*folders, stem) if is_mask else None


def _top_are_splits(found: Iterable[Picture], option: str | None) -> bool:
    if option not in (None, "yes", "no"):
        raise SourceError(f"option splits={option}: yes or no")
    tops = {p.path.parts[0] for p in found if len(p.path.parts) > 2}
    all_are = bool(tops) and all(t in SPLITS for t in tops) and all(len(p.path.parts) > 2 for p in found)
    if option == "yes" and not all_are:
        raise SourceError(f"option splits=yes, but not all top folders are splits: {', '.join(sorted(tops))}")
    return all_are and option != "no"
