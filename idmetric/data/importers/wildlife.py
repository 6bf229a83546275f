"""WildlifeReID-10k, and other tables of the wildlife-datasets toolkit such as AnimalCLEF's (Adam et al., CVPRW 2025).

metadata.csv has the columns identity and path (relative to its folder), and optionally dataset, species, split (train
and test; database and query in AnimalCLEF 2025), date, orientation, image_id and bbox. A row without an identity, such
as a query of the challenge, and the toolkit's "unknown" are of unknown identity.

A box [x, y, width, height] in pixels of the upright photo is cut out, because a photo may show several animals; the
cut is kept as PNG. Date and orientation go to the free columns x_date and x_orientation: photos of one day are easy
matches, and the published splits keep them apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idmetric.data.importers.images import png
from idmetric.data.importers.run import Job
from idmetric.data.manifest.table import Row
from idmetric.metric.images.read import read_image

_USED = ("identity", "path", "dataset", "species", "split", "bbox")
_FREE = ("date", "orientation")  # for columns of their own


def rows(job: Job) -> Iterator[Row]:
    """A row for each photo, or box in a photo."""
    source = job.open("identity", "path", source=str(job.folder().absolute() / "metadata.csv"))
    for record in job.rows(source):
        cells = {column: _text(value) for column, value in record.values.items()}
        try:
            if not cells["path"]:
                raise ValueError("no path")
            files = record.keep(_cut(source.locate(cells["path"]), record.values.get("bbox")))
        except ValueError as error:
            record.reject(str(error))
            continue
        identity, dataset = cells["identity"], cells.get("dataset")
        if identity == "unknown":
            identity = None
        if identity and dataset and not identity.startswith(f"{dataset}_"):
            identity = f"{dataset}_{identity}"  # as published identities begin: equal numbers are other animals
        free = {f"x_{column}": cells[column] for column in _FREE if column in cells}
        yield job.row(
            identity,
            cells.get("image_id") or f"{record.number:06d}",
            dataset=dataset or job.name,
            split=cells.get("split"),
            domain="animals",
            category=cells.get("species"),
            parameters={**record.about(*_USED, *_FREE), **free},
            **files,
        )


def _text(value: Any) -> str | None:
    """A cell as text, None if it is empty."""
    return None if value is None or value != value or not str(value).strip() else str(value).strip()


def _cut(photo: Path, value: Any) -> bytes | str:
    """The part of a photo within the box of a cell, as PNG; its path for an empty cell, ValueError without a part."""
    text = _text(value) if isinstance(value, str | float | None) else json.dumps(value)
    if text is None:
        return str(photo.absolute())
    try:
        x, y, width, height = (float(number) for number in json.loads(text))
        left, top, right, bottom = round(x), round(y), round(x + width), round(y + height)
    except (TypeError, ValueError, OverflowError) as error:  # infinity cannot be rounded
        raise ValueError(f"bbox {text[:60]} is not [x, y, width, height]") from error
    image = read_image(photo)
    left, top, right, bottom = max(0, left), max(0, top), min(image.width, right), min(image.height, bottom)
    if not (left < right and top < bottom):
        raise ValueError(f"bbox {text[:60]} covers none of the {image.width}x{image.height} pixels of {photo}")
    return png(image.crop((left, top, right, bottom)))
