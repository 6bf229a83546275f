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
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.images.opening import open_image

_TABLE = "metadata.json"


def rows(job: Job) -> Iterator[Row]:
    """A row for each image of each record with two images or more."""
    root = job.folder()
    if not (root / _TABLE).is_file():
        raise SourceError(f"{root}: no {_TABLE}; download nupurkmr9/syncd and unpack its archives there")
    for number, record in enumerate(job.limited(read_json(root / _TABLE, list), root.name), 1):
        where = f"{root / _TABLE}: record {number}"
        files = record.get("filenames") if isinstance(record, dict) else None
        if not isinstance(files, list) or not files:
            raise SourceError(f"{where}: 'filenames' must be a list of paths")
        if len(files) < 2:
            continue
        try:
            views = [_view(job, root, where, record, index) for index in range(len(files))]
        except (ImageReadError, FileNotFoundError) as error:
            job.rejected.append(f"{where}: {error}")
            continue
        yield from views


def _view(job: Job, root: Path, where: str, record: Mapping[str, Any], index: int) -> Row:
    """The row of an image; its identity is the folder of the record's files."""
    file, prompts = record["filenames"][index], record.get("prompts")
    path = locate(file, root, where, inside=True)
    if not path.is_file():
        raise FileNotFoundError(f"{file!r} is missing; unpack all archives of the dataset")
    about = {"file": file, "objaverse_id": record.get("objaverse_id") or None, "x_partition": record.get("category")}
    key = PurePosixPath(record["filenames"][0]).parent.name
    name = f"{key}/view{index + 1}"
    return job.row(
        key,
        name,
        path,
        domain="objects",
        category=record.get("category_description") or None,
        background=f"{job.name}/{name}",
        text=prompts[index] if prompts else None,
        parameters={key: value for key, value in about.items() if value is not None},
        **job.keep(_mask(path), "mask"),
    )


def _mask(image: Path) -> bytes | None:
    """The mask as a PNG of 0 and 255 in the image's size; None if there is none."""
    path = image.parent / "masks" / f"{image.stem}.jpg"
    if not path.is_file():
        return None
    size = open_image(image).size
    bits = np.asarray(open_image(path).convert("L")) > 0
    if not bits.any():
        raise ImageReadError(str(path), "its mask is black everywhere")
    return png(Image.fromarray(bits.astype(np.uint8) * 255).resize(size, Image.Resampling.NEAREST))
