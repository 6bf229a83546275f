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
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from idmetric.data.importers.folders import pictures
from idmetric.data.importers.images import Box, cropped
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, read_json
from idmetric.data.manifest.table import Row
from idmetric.images.paths import is_image, walk
from idmetric.images.read import read_image
from idmetric.io import json_file

SPLITS = {"query": "query", "pos": "gallery"}
LISTS = {"query": "image_query_ids.txt", "pos": "positive_ids.txt"}
_IMAGE = re.compile(r"(?P<name>[^/]+)/(?:(?P<query>query)/Q|(?P<pos>pos)/P)\d+_\d+\.\w+")

Listed = dict[str, dict[str, list[str]]]  # folder -> id -> the numbers after it
Taxonomy = dict[str, tuple[str, str, str]]  # object -> its coarse, middle and fine category


def rows(job: Job) -> Iterator[Row]:
    """A row for each query, positive and distractor."""
    crop, splits = job.choice("crop", "no", "queries", "all"), job.choice("splits", "yes", "no") == "yes"
    root = job.folder()
    core = root / "ilias_core" if (root / "ilias_core").is_dir() else root
    listed, taxonomy = _listed(root), _taxonomy(root, job.options.get("taxonomy"))
    found = pictures(core)
    there = {_plain(str(picture.path)) for picture in found}
    for kind, names in listed.items() if job.limit is None else ():
        lost = [name for name in names if name not in there]
        job.rejected.extend(f"{core / name}: in {LISTS[kind]}, but there is no such image" for name in lost)
    for picture in job.limited(found, root.name):
        path = str(picture.path)
        match = _IMAGE.fullmatch(path)
        if match is None:
            layout = "NAME_xxx/query/Qxxx_yy.jpg and NAME_xxx/pos/Pxxx_yy.jpg"
            raise SourceError(f"{core / path}: not the layout of ILIAS, {layout}")
        kind = "query" if match["query"] else "pos"
        known = listed.get(kind, {}).get(_plain(path))
        if known is None and kind in listed:
            job.rejected.append(f"{core / path}: not in {LISTS[kind]}")
            continue
        try:
            boxes = boxes_of((core / path).with_name(f"{picture.path.stem}_bbox.txt"), needed=crop != "no")
            image = {"path": str((core / path).absolute())}
            if crop == "all" or (crop == "queries" and kind == "query"):
                image = job.keep(_cut(core / path, boxes))
            about: dict[str, Any] = {"boxes": boxes} if boxes else {}
            if kind == "pos" and known is not None:
                about |= {"x_scale": float(known[0]), "x_clutter": int(known[1])}
        except (ValueError, IndexError) as error:
            job.rejected.append(f"{core / path}: {error}")
            continue

        coarse, middle, fine = taxonomy.get(match["name"], (None, None, None))
        if fine:
            about["kind"] = fine
        yield Row(
            identity=f"{job.name}/{match['name']}",
            id=f"{job.name}/{path}",
            dataset=job.name,
            split=SPLITS[kind] if splits else None,
            domain=coarse,
            category=middle,
            parameters=about or None,
            **image,
        )

    if "distractors" in job.options:
        folder = Path(job.options["distractors"])
        files = [file for file in walk(folder) if is_image(file)] if folder.is_dir() else []
        if not files:
            raise SourceError(f"{folder}: no images for the option distractors; unpack yfcc100m's archives first")
        for file in job.limited(files, folder.name):
            name = f"{job.name}/{file.relative_to(folder).as_posix()}"
            split = "gallery" if splits else None
            yield Row(None, path=str(file.absolute()), id=name, dataset=job.name, split=split)


def _cut(file: Path, boxes: list[Box]) -> bytes:
    whole = read_image(file)
    part = cropped(whole, boxes) if boxes else None
    if part is None:
        raise SourceError(f"{file.stem}_bbox.txt: no box within the {whole.width}x{whole.height} pixels")
    return part


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


def _listed(root: Path) -> Listed:
    """The lists of ids in the source's folder, or in the one above it."""
    listed: Listed = {}
    for kind, name in LISTS.items():
        files = (folder / "image_ids" / name for folder in (root, root.absolute().parent))
        if file := next(filter(Path.is_file, files), None):
            lines = [line.split(",") for line in _lines(file)]
            listed[kind] = {_plain(first.strip()): rest for first, *rest in lines}
    return listed


def _taxonomy(root: Path, given: str | None) -> Taxonomy:
    file = (
        Path(given)
        if given
        else next(filter(Path.is_file, (root / "taxonomy.json", root / "misc/taxonomy.json")), None)
    )
    try:
        return {
            str(name): (coarse, middle, fine)
            for coarse, below in (read_json(file) if file else {}).items()
            for middle, finer in below.items()
            for fine, names in finer.items()
            for name in names
        }
    except (AttributeError, TypeError):
        raise SourceError(f"{file}: not ILIAS's taxonomy: categories in three levels, with lists of objects") from None


def _lines(file: Path) -> list[str]:
    return [line for line in json_file.read_text(file, "utf-8-sig").splitlines() if line.strip()]


def _plain(path: str) -> str:
    """An id without its extension: with or without it, lists and folders mean the same image."""
    return str(PurePosixPath(path).with_suffix(""))
