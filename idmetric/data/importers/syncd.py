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

import numpy as np
from PIL import Image

from idmetric.data.importers.images import png
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, locate, read_json
from idmetric.data.manifest.table import Row
from idmetric.images.kinds import ImageReadError
from idmetric.images.opening import open_image

_TABLES = ("*metadata_with_scores.json", "*metadata.json", "metadata_*.json")  # the first kind that exists is read
_MASKS = (".jpg", ".png")


def rows(job: Job) -> Iterator[Row]:
    """A row for each image of each record with two images or more."""
    root = job.folder()
    tables = next((found for pattern in _TABLES if (found := sorted(root.glob(pattern)))), [])
    if not tables:
        raise SourceError(f"{root}: no metadata.json; download nupurkmr9/syncd and unpack its archives there")
    records = {f"{table}: record {n}": r for table in tables for n, r in enumerate(read_json(table, list), 1)}
    for where, record in records.items():
        if not isinstance(record, dict) or not isinstance(record.get("filenames"), list) or not record["filenames"]:
            raise SourceError(f"{where}: 'filenames' must be a list of paths")
    for key, (where, record) in job.limited(list(zip(_keys(records), records.items(), strict=True)), root.name):
        count = len(record["filenames"])
        if count < 2:
            continue
        try:
            views = [_view(job, root, where, record, f"{job.name}/{key}", index) for index in range(count)]
        except (ImageReadError, FileNotFoundError) as error:
            job.rejected.append(f"{where}: {error}")
            continue
        yield from views


def _keys(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A name of each record: its files' folder, or their common stem where one folder holds all (4_0_1.jpg -> 4_0)."""
    first = [PurePosixPath(record["filenames"][0]) for record in records.values()]
    keys = [path.parent.name for path in first]
    if len(set(keys)) < len(keys) or "" in keys:
        keys = [path.stem.rpartition("_")[0] or path.stem for path in first]
    seen: set[str] = set()
    for key, where in zip(keys, records, strict=True):
        if key in seen:
            raise SourceError(f"{where}: another record has files of the same name, {key!r}")
        seen.add(key)
    return keys


def _view(job: Job, root: Path, where: str, record: Mapping[str, Any], identity: str, index: int) -> Row:
    """The row of an image.

    Raises:
        FileNotFoundError, ImageReadError: if the image is missing, or it or its mask cannot be read.
    """
    file, prompts = record["filenames"][index], record.get("prompts")
    # the generator's own records name files with another folder
    places = [locate(name, root, where, inside=True) for name in (file, PurePosixPath(file).name)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{file!r} is missing; unpack all archives of the dataset")
    about = {"file": file, "objaverse_id": record.get("objaverse_id") or None, "x_partition": record.get("category")}
    name = f"{identity}/view{index + 1}"
    return Row(
        identity,
        id=name,
        path=str(path.absolute()),
        dataset=job.name,
        domain="objects",
        category=record.get("category_description") or None,
        background=name,
        text=prompts[index] if prompts else None,
        parameters={key: value for key, value in about.items() if value is not None},
        **job.keep(_mask(path), "mask"),
    )


def _mask(image: Path) -> bytes | None:
    """The mask as a PNG of 0 and 255 in the image's size; None if there is none.

    Raises:
        ImageReadError: if the image or the mask cannot be read, or the mask selects nothing.
    """
    path = next((p for e in _MASKS if (p := image.parent / "masks" / f"{image.stem}{e}").is_file()), None)
    if path is None:
        return None
    size = open_image(image).size
    bits = np.asarray(open_image(path).convert("L")) > 0
    if not bits.any():
        raise ImageReadError(str(path), "its mask is black everywhere")
    return png(Image.fromarray(bits.astype(np.uint8) * 255).resize(size, Image.Resampling.NEAREST))
