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

from idmetric.data.importers.folders import pictures
from idmetric.data.importers.run import Columns, ImportJob
from idmetric.data.importers.source import read_json
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row
from idmetric.metric.files import read_bytes
from idmetric.metric.paths import is_image, walk
from idmetric.tables import number_of, read_cells

SPLITS = {"query": "query", "pos": "gallery"}
LISTS = {"query": "image_query_ids.txt", "pos": "positive_ids.txt"}
_IMAGE = re.compile(r"(?P<name>[^/]+)/(?P<kind>query(?=/Q)|pos(?=/P))/[QP]\d+_\d+\.\w+")


def rows(job: ImportJob) -> Iterator[Row]:
    """A row for each query, positive and distractor."""
    splits = SPLITS if job.choice("splits", "yes", "no") == "yes" else {}
    root = job.folder()
    core = root / "ilias_core"
    if not core.is_dir():
        core = root
    listed, taxonomy = _listed(root), _taxonomy(root, job.options.get("taxonomy"))
    images = pictures(core)
    if job.limit is None:
        present = {str(picture.path.with_suffix("")) for picture in images}
        for kind, ids in listed.items():
            for name in ids:
                if name not in present:
                    job.rejected.append(f"{core / name}: in {LISTS[kind]}, but the image does not exist")

    for picture in job.limited(images, root.name):
        file, match = core / picture.path, _IMAGE.fullmatch(str(picture.path))
        if match is None:
            layout = "NAME_xxx/query/Qxxx_yy.jpg and NAME_xxx/pos/Pxxx_yy.jpg"
            raise ManifestError(f"{file}: not the layout of ILIAS, {layout}")
        kind = match["kind"]
        name = str(picture.path.with_suffix(""))
        if kind in listed and name not in listed[kind]:
            job.rejected.append(f"{file}: not in {LISTS[kind]}")
            continue
        parameters = listed.get(kind, {}).get(name, {})
        coarse, middle, fine = taxonomy.get(match["name"], (None, None, None))
        if fine:
            parameters["kind"] = fine
        yield job.row(
            match["name"],
            str(picture.path),
            file,
            split=splits.get(kind),
            domain=coarse,
            category=middle,
            parameters=parameters,
        )

    if "distractors" in job.options:
        folder = Path(job.options["distractors"])
        files = []
        if folder.is_dir():
            files = [*filter(is_image, walk(folder))]
        if not files:
            raise ManifestError(f"{folder}: no images for the option distractors; unpack yfcc100m's archives first")
        for file in job.limited(files, folder.name):
            yield job.row(None, file.relative_to(folder).as_posix(), file, split=splits.get("pos"))


def _listed(root: Path) -> dict[str, dict[str, Columns]]:
    """folder -> id without extension -> scale and clutter, by the lists in the source's folder or the one above."""
    listed: dict[str, dict[str, Columns]] = {}
    for kind, list_name in LISTS.items():
        files = [folder / "image_ids" / list_name for folder in (root.absolute().parent, root)]
        for file in filter(Path.is_file, files):
            listed[kind] = {}
            for row in read_cells(read_bytes(file)):
                name, *values = row.cells
                columns: Columns = {}
                if kind == "pos":
                    try:
                        columns = {"x_scale": number_of(values[0]), "x_clutter": int(values[1])}
                    except (ValueError, IndexError) as error:
                        raise ManifestError(
                            f"{file}: row {row.number} is not an id, scale and clutter: {error}"
                        ) from error
                listed[kind][str(PurePosixPath(name).with_suffix(""))] = columns
    return listed


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
    except (AttributeError, TypeError):
        raise ManifestError(
            f"{file}: not ILIAS's taxonomy: categories in three levels, with lists of objects"
        ) from None
    return categories
