"""WildlifeReID-10k, and other tables of the wildlife-datasets toolkit such as AnimalCLEF's (Adam et al., CVPRW 2025).

metadata.csv has the columns identity and path (relative to its folder), and optionally dataset, species, split (train
and test; database and query in AnimalCLEF 2025), date, orientation, image_id and bbox. A row without an identity, such
as a query of the challenge, and the toolkit's "unknown" are of unknown identity.

A box [x, y, width, height] in pixels of the upright photo is cut out, because a photo may show several animals; the
cut is kept as PNG. Date and orientation go to the free columns x_date and x_orientation: photos of one day are easy
matches, and the published splits keep them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from idmetric.data.importers.images import png
from idmetric.data.importers.run import ImportJob
from idmetric.data.old_manifest.table import Row
from idmetric.metric.files import parse_json
from idmetric.metric.images import read_image

_USED = ("identity", "path", "dataset", "species", "split", "bbox")
_FREE = ("date", "orientation")  # for columns of their own
_KNOWN = (*_USED, *_FREE, "image_id")


def rows(job: ImportJob) -> Iterator[Row]:
    """A row for each photo, or box in a photo."""
    source = job.open("identity", "path", source=job.folder().absolute() / "metadata.csv", known=_KNOWN)
    for record in job.records(source):
        cells = {column: value.strip() or None for column, value in record.values.items() if value is not None}
        path, identity, dataset = (cells.get(column) for column in ("path", "identity", "dataset"))
        try:
            if path is None:
                raise ValueError("no path")
            image = record.keep(_cut(source.locate(path), cells.get("bbox")))
        except ValueError as error:
            record.reject(error)
            continue

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
            **image,
        )


def _cut(photo: Path, box: str | None) -> bytes | str:
    """The part of a photo within a box, as PNG; its path without a box, ValueError if the box is outside of it."""
    if box is None:
        return str(photo.absolute())
    try:
        x, y, width, height = map(float, parse_json(box))
        left, top, right, bottom = round(x), round(y), round(x + width), round(y + height)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"bbox {box[:60]} is not [x, y, width, height]") from error

    image = read_image(photo)
    left, top = max(0, left), max(0, top)
    right, bottom = min(image.width, right), min(image.height, bottom)
    if left >= right or top >= bottom:
        raise ValueError(f"bbox {box[:60]} covers none of the {image.width}x{image.height} pixels of {photo}")
    return png(image.crop((left, top, right, bottom)))
