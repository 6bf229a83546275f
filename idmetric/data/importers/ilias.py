"""ILIAS: 1,000 objects, 1,232 query images, 4,715 positives (Kordopatis-Zilos et al., CVPR 2025, arXiv 2502.11748).

ROOT/ilias_core/NAME_xxx/query/Qxxx_yy.jpg     a query
ROOT/ilias_core/NAME_xxx/pos/Pxxx_yy.jpg       a positive
ROOT/image_ids/positive_ids.txt                lines "NAME_xxx/pos/Pxxx_yy.jpg,scale,clutter"
ROOT/image_ids/image_query_ids.txt             lines that begin with a query's id
ROOT/taxonomy.json                             misc/taxonomy.json of github ilias-vrg/ilias

The source is ROOT or ROOT/ilias_core. Lists of ids and the taxonomy may be absent, and with them the breakdowns that
need them. Where a list is there, images that it names and the folder lacks are reported, and the reverse.

A row's id is the dataset's name and ILIAS's id. Queries get the split "query", positives and distractors "gallery";
distractors have no identity. Texts (Txxx.txt) and boxes (..._bbox.txt) are not imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from idmetric.data.importers.folders import pictures
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, read_json
from idmetric.data.manifest.table import Row
from idmetric.metric.files import json_file
from idmetric.metric.images.paths import is_image, walk

SPLITS = {"query": "query", "pos": "gallery"}
LISTS = {"query": "image_query_ids.txt", "pos": "positive_ids.txt"}
_IMAGE = re.compile(r"(?P<name>[^/]+)/(?P<kind>query(?=/Q)|pos(?=/P))/[QP]\d+_\d+\.\w+")


def rows(job: Job) -> Iterator[Row]:
    """A row for each query, positive and distractor."""
    splits = job.choice("splits", "yes", "no") == "yes"
    root = job.folder()
    core = root / "ilias_core" if (root / "ilias_core").is_dir() else root
    listed, taxonomy = _listed(root), _taxonomy(root, job.options.get("taxonomy"))
    found = pictures(core)
    there = {_plain(str(picture.path)) for picture in found}
    for kind, names in listed.items() if job.limit is None else ():
        lost = [name for name in names if name not in there]
        job.rejected.extend(f"{core / name}: in {LISTS[kind]}, but there is no such image" for name in lost)
    for picture in job.limited(found, root.name):
        file, match = core / picture.path, _IMAGE.fullmatch(str(picture.path))
        if match is None:
            layout = "NAME_xxx/query/Qxxx_yy.jpg and NAME_xxx/pos/Pxxx_yy.jpg"
            raise SourceError(f"{file}: not the layout of ILIAS, {layout}")
        kind = match["kind"]
        known = listed.get(kind, {}).get(_plain(str(picture.path)))
        if known is None and kind in listed:
            job.rejected.append(f"{file}: not in {LISTS[kind]}")
            continue
        coarse, middle, fine = taxonomy.get(match["name"], (None, None, None))
        about = {"kind": fine, **(known or {})}
        yield job.row(
            match["name"],
            str(picture.path),
            file,
            split=SPLITS[kind] if splits else None,
            domain=coarse,
            category=middle,
            parameters={key: value for key, value in about.items() if value is not None} or None,
        )

    if "distractors" in job.options:
        folder = Path(job.options["distractors"])
        files = [file for file in walk(folder) if is_image(file)] if folder.is_dir() else []
        if not files:
            raise SourceError(f"{folder}: no images for the option distractors; unpack yfcc100m's archives first")
        for file in job.limited(files, folder.name):
            yield job.row(None, file.relative_to(folder).as_posix(), file, split="gallery" if splits else None)


def _listed(root: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """folder -> id -> scale and clutter, by the lists in the source's folder, or in the one above it."""
    listed: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, name in LISTS.items():
        files = (folder / "image_ids" / name for folder in (root, root.absolute().parent))
        if file := next(filter(Path.is_file, files), None):
            lines = [line.strip().split(",") for line in json_file.read_text(file, "utf-8-sig").splitlines()]
            try:
                listed[kind] = {
                    _plain(first): {"x_scale": float(rest[0]), "x_clutter": int(rest[1])} if kind == "pos" else {}
                    for first, *rest in lines if first
                }  # fmt: skip
            except (ValueError, IndexError) as error:
                raise SourceError(f"{file}: a line is not an id, scale and clutter: {error}") from error
    return listed


def _taxonomy(root: Path, given: str | None) -> dict[str, tuple[str, str, str]]:
    """object -> its coarse, middle and fine category."""
    usual = filter(Path.is_file, (root / "taxonomy.json", root / "misc/taxonomy.json"))
    file = Path(given) if given else next(usual, None)
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


def _plain(path: str) -> str:
    """An id without its extension: with or without it, lists and folders mean the same image."""
    return str(PurePosixPath(path).with_suffix(""))
