"""CUTE: 180 objects under different lighting, poses and in the wild (Kotar et al., NeurIPS 2023; purl gj714cj0414).

The published archive is a tree of folders without an index. This importer assumes that the path of an image names first
the object (one or more folders, perhaps below a category) and then the scene (in the wild, studio, lighting, pose,
...). The folders above the first folder that names a scene name the object; option `depth` sets their number where
names differ. The scene goes to the column `background`, which the easy and hard modes of the triplets need (ID-Sim,
appendix D.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from idmetric.data.importers.folders import Picture, pictures_of
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import Row

_SCENE = re.compile(r"((in[ _-]?the[ _-]?)?wild|(in[ _-]?)?studio|light(ing|s)?|illumination|poses?|scenes?)[ _-]?\d*")


def rows(job: Job) -> Iterator[Row]:
    """A row for each photo."""
    for source in job.sources:
        root = job.folder(source)
        depth = int(job.number("depth", 0))
        for picture in pictures_of(job, root):
            yield _row(job, root, picture, depth or _depth(root, picture))


def _row(job: Job, root: Path, picture: Picture, depth: int) -> Row:
    folders = picture.path.parts[:-1]
    if len(folders) < depth:
        raise SourceError(f"{root / picture.path}: the path has {len(folders)} folders, fewer than depth={depth}")
    subject, scene = folders[:depth], folders[depth:]
    return Row(
        identity="/".join((job.name, *subject)),
        id=f"{job.name}/{picture.path}",
        dataset=job.name,
        domain="objects",
        category=subject[0] if depth > 1 else re.sub(r"[ _-]*\d+$", "", subject[0]) or subject[0],
        background="/".join(scene) or None,
        **picture.files(root),
    )


def _depth(root: Path, picture: Picture) -> int:
    folders = picture.path.parts[:-1]
    at = [i for i, name in enumerate(folders) if _SCENE.fullmatch(name.lower())]
    if at and at[0] > 0:
        return at[0]
    raise SourceError(
        f"{root / picture.path}: no folder after the object's names a scene (in_the_wild, studio, lighting, pose, "
        "...); say how many folders name the object: --option depth=1"
    )
