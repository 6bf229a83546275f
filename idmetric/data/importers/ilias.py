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
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from idmetric.data.importers.boxes import Box, cropped
from idmetric.data.importers.folders import Picture, pictures
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, read_json
from idmetric.data.manifest.table import Row
from idmetric.images.paths import is_image, walk
from idmetric.images.read import ImageReadError, read_image
from idmetric.io import json_file

OPTIONS = {"crop": ("no", "queries", "all"), "splits": ("yes", "no")}  # the first is the default
SPLITS = {"query": "query", "pos": "gallery"}
LISTS = {"query": "image_query_ids.txt", "pos": "positive_ids.txt"}
_IMAGE = re.compile(r"(?P<name>[^/]+)/(?:(?P<query>query)/Q|(?P<pos>pos)/P)\d+_\d+\.\w+")


@dataclass(frozen=True)
class _About:
    """Published facts: by folder and id, the numbers after the id; by object, its categories, coarse to fine."""

    listed: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    taxonomy: dict[str, tuple[str, str, str]] = field(default_factory=dict)


def rows(job: Job) -> Iterator[Row]:
    """A row for each query, positive and distractor."""
    for option, known in OPTIONS.items():
        if job.options.get(option, known[0]) not in known:
            raise SourceError(f"option {option}={job.options[option]}: one of {', '.join(known)}")

    for given in job.sources:
        root = job.folder(given)
        core = root / "ilias_core" if (root / "ilias_core").is_dir() else root
        about = _about(job, root)
        found = pictures(core)
        _complete(job, core, about, {str(picture.path) for picture in found})
        for picture in job.progress(found[: job.limit], len(found[: job.limit]), root.name):
            row = _row(job, core, picture, about)
            if row is not None:
                yield row

    if "distractors" in job.options:
        yield from _distractors(job, Path(job.options["distractors"]))


def _row(job: Job, core: Path, picture: Picture, about: _About) -> Row | None:
    """The row of an image, or None if it is rejected."""
    path, file = str(picture.path), core / picture.path
    match = _IMAGE.fullmatch(path)
    if match is None:
        raise SourceError(f"{file}: not the layout of ILIAS, NAME_xxx/query/Qxxx_yy.jpg and NAME_xxx/pos/Pxxx_yy.jpg")
    kind, name = ("query" if match["query"] else "pos"), match["name"]
    listed = about.listed.get(kind)
    if listed is not None and _plain(path) not in listed:
        job.rejected.append(f"{file}: not in {LISTS[kind]}")
        return None

    crop = job.options.get("crop", "no")
    try:
        boxes = boxes_of(file.with_name(f"{file.stem}_bbox.txt"), needed=crop != "no")
        cut = crop == "all" or (crop == "queries" and kind == "query")
        image = _cropped(job, file, boxes, path) if cut else {"path": str(file.absolute())}
        numbers = _numbers(listed[_plain(path)], LISTS[kind], path) if kind == "pos" and listed is not None else {}
    except (ImageReadError, ValueError) as error:
        job.rejected.append(str(error))
        return None

    coarse, middle, fine = about.taxonomy.get(name, (None, None, None))
    return Row(
        identity=f"{job.name}/{name}",
        id=f"{job.name}/{path}",
        dataset=job.name,
        split=None if job.options.get("splits") == "no" else SPLITS[kind],
        domain=coarse,
        category=middle,
        parameters={**({"boxes": boxes} if boxes else {}), **({"kind": fine} if fine else {}), **numbers} or None,
        **image,
    )


def _distractors(job: Job, folder: Path) -> Iterator[Row]:
    """Images of a folder at any depth; the id is the path in it."""
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder; the option distractors names one with images")
    files = [file for file in walk(folder) if is_image(file)][: job.limit]
    if not files:
        raise SourceError(f"{folder}: no images for the option distractors; unpack yfcc100m's archives first")
    for file in job.progress(files, len(files), folder.name):
        path = file.relative_to(folder).as_posix()
        yield Row(None, path=str(file.absolute()), id=f"{job.name}/{path}", dataset=job.name, split="gallery")


# Boxes


def boxes_of(file: Path, needed: bool = True) -> list[Box]:
    """The boxes in a file of lines "x y width height"; none if it is absent and not needed.

    Raises:
        SourceError: naming the file and line, if it is not of this form, holds no box, or is absent and needed.
    """
    if not file.is_file():
        if needed:
            raise SourceError(f"{file}: no such file; it holds the boxes to crop to")
        return []
    found: list[Box] = []
    for number, line in enumerate(_lines(file), 1):
        try:
            x, y, width, height = (int(part) for part in line.split())
        except ValueError:
            raise SourceError(
                f"{file}: line {number}: {line[:60]!r} is not a box of four whole numbers, x y width height"
            ) from None
        if width < 1 or height < 1:
            raise SourceError(f"{file}: line {number}: a box of {width}x{height} pixels")
        found.append((x, y, width, height))
    if not found:
        raise SourceError(f"{file}: no box in the file")
    return found


def _cropped(job: Job, file: Path, boxes: Sequence[Box], path: str) -> dict[str, Any]:
    """The columns of the image's part around its boxes."""
    image = read_image(file)
    part = cropped(image, boxes)
    if part is None:
        width, height = image.size
        raise SourceError(f"{file.with_name(file.stem + '_bbox.txt')}: boxes outside of the {width}x{height} pixels "
                          f"of {file.name}")  # fmt: skip
    return job.images.keep(part, f"{job.name}/{_plain(path)}", Path)


# Published lists


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
    there = [place for place in places if place.is_file()]
    if given and not there:
        raise SourceError(f"{given}: no such file; the option taxonomy names ILIAS's misc/taxonomy.json")
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


def _complete(job: Job, core: Path, about: _About, there: set[str]) -> None:
    """Reject the listed images that are not in the folder."""
    found = {_plain(path) for path in there}
    for kind, listed in about.listed.items():
        for name in listed if job.limit is None else ():
            if name not in found:
                job.rejected.append(f"{core / name}: in {LISTS[kind]}, but there is no such image")


def _numbers(values: Sequence[str], name: str, path: str) -> dict[str, float | int]:
    """The free columns scale and clutter of a positive."""
    try:
        scale, clutter = float(values[0]), int(values[1])
    except (IndexError, ValueError):
        scale = clutter = -1
    if len(values) != 2 or not (0 <= scale < float("inf") and clutter >= 0):
        raise SourceError(f"{name}: {path}: {','.join(values)!r} is not scale,clutter")
    return {"x_scale": scale, "x_clutter": clutter}


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in json_file.read_text(file, "utf-8-sig").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SourceError(f"{file}: not readable: {error}") from error


def _plain(path: str) -> str:
    """An id without its extension: with or without it, lists and folders mean the same image."""
    return str(PurePosixPath(path).with_suffix(""))
