"""ILIAS: 1,000 objects, 1,232 query images, 4,715 positives (Kordopatis-Zilos et al., CVPR 2025, arXiv 2502.11748).

ROOT/ilias_core/NAME_xxx/query/Qxxx_yy.jpg     a query, and Qxxx_yy_bbox.txt: a line "x y width height" for each box
ROOT/ilias_core/NAME_xxx/pos/Pxxx_yy.jpg       a positive, with boxes likewise
ROOT/image_ids/positive_ids.txt                lines "NAME_xxx/pos/Pxxx_yy.jpg,scale,clutter"
ROOT/image_ids/image_query_ids.txt             lines that begin with a query's id
ROOT/taxonomy.json                             misc/taxonomy.json of github ilias-vrg/ilias

The source is ROOT or ROOT/ilias_core. Lists of ids and the taxonomy may be absent, and with them the breakdowns that
need them. Where a list is there, images that it names and the folder lacks are reported, and the reverse.

A row's id is the dataset's name and ILIAS's id. Queries get the split "query", positives and distractors "gallery";
distractors have no identity. Texts (Txxx.txt) are not imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from idmetric.data.importers.folders import pictures
from idmetric.data.importers.images import Box, cropped
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, read_json
from idmetric.data.manifest.table import Row
from idmetric.images.paths import is_image, walk
from idmetric.images.read import ImageReadError, read_image
from idmetric.io import json_file

SPLITS = {"query": "query", "pos": "gallery"}
LISTS = {"query": "image_query_ids.txt", "pos": "positive_ids.txt"}
_IMAGE = re.compile(r"(?P<name>[^/]+)/(?:(?P<query>query)/Q|(?P<pos>pos)/P)\d+_\d+\.\w+")


@dataclass(frozen=True)
class _About:
    """Published facts: by folder and id, the numbers after the id; by object, its categories, coarse to fine."""

    listed: dict[str, dict[str, list[str]]]
    taxonomy: dict[str, tuple[str, str, str]]


def rows(job: Job) -> Iterator[Row]:
    """A row for each query, positive and distractor."""
    crop, splits = job.choice("crop", "no", "queries", "all"), job.choice("splits", "yes", "no") == "yes"
    root = job.folder()
    core = root / "ilias_core" if (root / "ilias_core").is_dir() else root
    about = _about(job, root)
    found = pictures(core)
    there = {_plain(str(picture.path)) for picture in found}
    for kind, listed in about.listed.items() if job.limit is None else ():
        lost = [name for name in listed if name not in there]
        job.rejected.extend(f"{core / name}: in {LISTS[kind]}, but there is no such image" for name in lost)
    for picture in job.limited(found, root.name):
        try:
            yield _row(job, core, str(picture.path), about, crop, splits)
        except _Rejected as error:
            job.rejected.append(str(error))

    if "distractors" in job.options:
        folder = Path(job.options["distractors"])
        files = [file for file in walk(folder) if is_image(file)] if folder.is_dir() else []
        if not files:
            raise SourceError(f"{folder}: no images for the option distractors; unpack yfcc100m's archives first")
        for file in job.limited(files, folder.name):
            name = f"{job.name}/{file.relative_to(folder).as_posix()}"
            yield Row(None, path=str(file.absolute()), id=name, dataset=job.name, split="gallery")


class _Rejected(Exception):
    """An image that is left out, and the reason."""


def _row(job: Job, core: Path, path: str, about: _About, crop: str, splits: bool) -> Row:
    """The row of an image."""
    file = core / path
    match = _IMAGE.fullmatch(path)
    if match is None:
        raise SourceError(f"{file}: not the layout of ILIAS, NAME_xxx/query/Qxxx_yy.jpg and NAME_xxx/pos/Pxxx_yy.jpg")
    kind, name = ("query" if match["query"] else "pos"), match["name"]
    listed = about.listed.get(kind)
    if listed is not None and _plain(path) not in listed:
        raise _Rejected(f"{file}: not in {LISTS[kind]}")

    try:
        boxes = boxes_of(file.with_name(f"{file.stem}_bbox.txt"), needed=crop != "no")
        cut = crop == "all" or (crop == "queries" and kind == "query")
        image = _cropped(job, file, boxes, path) if cut else {"path": str(file.absolute())}
        numbers = {}
        if kind == "pos" and listed is not None:
            scale, clutter = listed[_plain(path)]
            numbers = {"x_scale": float(scale), "x_clutter": int(clutter)}
    except (ImageReadError, ValueError) as error:
        raise _Rejected(f"{file}: {error}") from error

    coarse, middle, fine = about.taxonomy.get(name, (None, None, None))
    return Row(
        identity=f"{job.name}/{name}",
        id=f"{job.name}/{path}",
        dataset=job.name,
        split=SPLITS[kind] if splits else None,
        domain=coarse,
        category=middle,
        parameters={**({"boxes": boxes} if boxes else {}), **({"kind": fine} if fine else {}), **numbers} or None,
        **image,
    )


def boxes_of(file: Path, needed: bool = True) -> list[Box]:
    """The boxes in a file of lines "x y width height"; none if it is absent and not needed.

    Raises:
        SourceError: naming the file, if it is not of this form, or is absent and needed.
    """
    if not file.is_file():
        if needed:
            raise SourceError(f"{file}: no such file; it holds the boxes to crop to")
        return []
    found: list[Box] = []
    for line in _lines(file):
        try:
            x, y, width, height = (int(part) for part in line.split())
        except ValueError:
            raise SourceError(f"{file}: {line[:60]!r} is not a box of four whole numbers, x y width height") from None
        found.append((x, y, width, height))
    return found


def _cropped(job: Job, file: Path, boxes: Sequence[Box], path: str) -> dict[str, Any]:
    """The columns of the image's part around its boxes."""
    image = read_image(file)
    part = cropped(image, boxes) if boxes else None
    if part is None:
        raise SourceError(f"{file.stem}_bbox.txt: no box within the {image.width}x{image.height} pixels")
    return job.images.keep(part, f"{job.name}/{_plain(path)}", Path)


def _about(job: Job, root: Path) -> _About:
    """What lies in the source's folder, or in the one above it, or is named by an option."""
    listed: dict[str, dict[str, list[str]]] = {}
    for kind, name in LISTS.items():
        files = [folder / "image_ids" / name for folder in (root, root.absolute().parent)]
        for file in [file for file in files if file.is_file()][:1]:
            lines = [line.split(",") for line in _lines(file)]
            listed[kind] = {_plain(first.strip()): rest for first, *rest in lines}

    given = job.options.get("taxonomy")
    places = [Path(given)] if given else [root / "taxonomy.json", root / "misc" / "taxonomy.json"]
    there = [place for place in places if given or place.is_file()]
    return _About(listed, _taxonomy(there[0]) if there else {})


def _taxonomy(file: Path) -> dict[str, tuple[str, str, str]]:
    """Object -> its coarse, middle and fine category."""
    found: dict[str, tuple[str, str, str]] = {}
    try:
        for coarse, below in read_json(file).items():
            for middle, finer in below.items():
                for fine, names in finer.items():
                    found |= {str(name): (coarse, middle, fine) for name in names}
    except (AttributeError, TypeError):
        raise SourceError(f"{file}: not ILIAS's taxonomy: categories in three levels, with lists of objects") from None
    return found


def _lines(file: Path) -> list[str]:
    return [line for line in json_file.read_text(file, "utf-8-sig").splitlines() if line.strip()]


def _plain(path: str) -> str:
    """An id without its extension: with or without it, lists and folders mean the same image."""
    return str(PurePosixPath(path).with_suffix(""))
