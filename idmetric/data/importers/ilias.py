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

from idmetric.data.importers.folders import FolderImage, pictures
from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.source import Row, read_json
from idmetric.data.manifest import ManifestError
from idmetric.metric.files import read_text
from idmetric.tables import text_lines

SPLITS = {"query": "query", "pos": "gallery"}
LISTS = {"query": "image_query_ids.txt", "pos": "positive_ids.txt"}
_IMAGE = re.compile(r"(?P<name>[^/]+)/(?P<kind>query(?=/Q)|pos(?=/P))/[QP]\d+_\d+\.\w+")


def ilias(job: ImportJob) -> Iterator[Row]:
    """A row for each query, positive and distractor."""
    splits = SPLITS if job.choice("splits", "yes", "no") == "yes" else {}
    root = job.folder()
    core = root / "ilias_core" if (root / "ilias_core").is_dir() else root
    listed, taxonomy = _listed(root), _taxonomy(root, job.options.get("taxonomy"))

    def row(picture: FolderImage) -> list[Row]:
        match = _IMAGE.fullmatch(picture.id)
        if match is None:
            layout = "NAME_xxx/query/Qxxx_yy.jpg and NAME_xxx/pos/Pxxx_yy.jpg"
            raise ManifestError(f"{picture}: not the layout of ILIAS, {layout}")
        kind = match["kind"]
        if kind in listed and _stem(picture.id) not in listed[kind]:
            raise ValueError(f"not in {LISTS[kind]}")
        scale_and_clutter = listed.get(kind, {}).get(_stem(picture.id), {})
        coarse, middle, fine = taxonomy.get(match["name"], (None, None, None))
        columns: Row = {
            "identity": match["name"],
            "split": splits.get(kind),
            "domain": coarse,
            "category": middle,
            "parameters": {"kind": fine} if fine else None,
        }
        return [picture._asdict() | columns | scale_and_clutter]

    images = pictures(core)
    if job.limit is None:
        present = {_stem(picture.id) for picture in images}
        for kind, ids in listed.items():
            absent = [core / name for name in ids if name not in present]
            job.rejected += [f"{file}: in {LISTS[kind]}, but the image does not exist" for file in absent]
    yield from job.rows(images, row)
    if "distractors" in job.options:
        images = pictures(job.folder(job.options["distractors"]))
        yield from job.rows(images, lambda image: [image._asdict() | {"split": splits.get("pos")}])


def _listed(root: Path) -> dict[str, dict[str, Row]]:
    """folder -> id without extension -> scale and clutter, by the lists in the source's folder or the one above."""
    listed: dict[str, dict[str, Row]] = {}
    for kind, list_name in LISTS.items():
        files = [folder / "image_ids" / list_name for folder in (root.absolute().parent, root)]
        for file in filter(Path.is_file, files):
            listed[kind] = {}
            for line in text_lines(read_text(file)):
                name, *values = line.split(",")
                columns: Row = {}
                if kind == "pos":
                    try:
                        columns = {"x_scale": float(values[0]), "x_clutter": int(values[1])}
                    except (ValueError, IndexError) as error:
                        raise ManifestError(f"{file}: {line[:80]!r} is not an id, scale and clutter") from error
                listed[kind][_stem(name)] = columns
    return listed


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _taxonomy(root: Path, path: str | None) -> dict[str, tuple[str, str, str]]:
    """object -> its coarse, middle and fine category."""
    usual = [root / "taxonomy.json", root / "misc/taxonomy.json"]
    file = Path(path) if path else next(filter(Path.is_file, usual), None)
    if file is None:
        return {}
    categories: dict[str, tuple[str, str, str]] = {}
    try:
        for coarse, below in read_json(file).items():
            for middle, finest in below.items():
                for fine, names in finest.items():
                    categories |= dict.fromkeys(map(str, names), (coarse, middle, fine))
    except (AttributeError, TypeError) as error:
        advice = "categories in three levels, with lists of objects"
        raise ManifestError(f"{file}: not ILIAS's taxonomy: {advice}") from error
    return categories
