"""SynCD: two or three generated images of an object in different contexts (Kumari et al., ICCV 2025).

NearID takes its identities from the "rigid" partition (section 3.3), as `curate --recipe nearid` does. The published
folder (`nupurkmr9/syncd` on the Hub, its archives unpacked):

    metadata.json                [{"filenames": ["12/0.png", ...], "prompts": [...], "category": "rigid",
                                   "category_description": ..., "objaverse_id": ...}, ...]
    12/0.png   12/masks/0.jpg    an image and its mask: the object is what is not black

A record is an identity. Its partition goes to the column x_partition, the object's description to `category`. Masks are
written again as 0 and 255 in the size of their image, because the published ones are gray JPEGs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image

from idmetric.data.importers.images import png
from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.source import locate, read_json
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row
from idmetric.metric.images import ImageReadError, open_image

_TABLE = "metadata.json"


def rows(job: ImportJob) -> Iterator[Row]:
    """A row for each image of each record with two images or more."""
    root = job.folder()
    table = root / _TABLE
    if not table.is_file():
        raise ManifestError(f"{root}: no {_TABLE}; download nupurkmr9/syncd and unpack its archives there")
    for number, record in enumerate(job.limited(read_json(table, list), root.name), 1):
        where = f"{table}: record {number}"
        files = record.get("filenames") if isinstance(record, dict) else None
        if not isinstance(files, list) or not files or not all(isinstance(file, str) for file in files):
            raise ManifestError(f"{where}: 'filenames' must be a list of paths")
        prompts = record.get("prompts") or []
        if not isinstance(prompts, list) or 0 < len(prompts) < len(files):
            raise ManifestError(f"{where}: 'prompts' must be a list of texts, one for each file")
        if len(files) < 2:
            continue
        try:
            paths = [locate(file, root, where, inside=True) for file in files]
            views = [_view(job, path, record, index) for index, path in enumerate(paths)]
        except (ImageReadError, FileNotFoundError) as error:
            job.rejected.append(f"{where}: {error}")
            continue
        yield from views


def _view(job: ImportJob, path: Path, record: Mapping[str, Any], index: int) -> Row:
    """The row of an image; its identity is the folder of the record's files."""
    files = record["filenames"]
    if not path.is_file():
        raise FileNotFoundError(f"{files[index]!r} is missing; unpack all archives of the dataset")
    parameters = {"file": files[index]}
    if record.get("objaverse_id"):
        parameters["objaverse_id"] = record["objaverse_id"]
    identity = PurePosixPath(files[0]).parent.name
    name = f"{identity}/view{index + 1}"
    return job.row(
        identity,
        name,
        path,
        domain="objects",
        category=record.get("category_description") or None,
        background=f"{job.name}/{name}",
        text=record["prompts"][index] if record.get("prompts") else None,
        parameters={**parameters, "x_partition": record.get("category")},
        **job.keep(_mask(path), "mask"),
    )


def _mask(image: Path) -> bytes | None:
    """The mask as a PNG of 0 and 255 in the image's size; None if there is none."""
    path = image.parent / "masks" / f"{image.stem}.jpg"
    if not path.is_file():
        return None
    mask = open_image(path).convert("L").point(lambda value: 255 * (value > 0))
    return png(mask.resize(open_image(image).size, Image.Resampling.NEAREST))
