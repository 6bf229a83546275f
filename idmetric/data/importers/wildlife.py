"""WildlifeReID-10k, and other tables of the wildlife-datasets toolkit such as AnimalCLEF's (Adam et al., CVPRW 2025).

metadata.csv has the columns identity and path (relative to its folder), and optionally dataset, species, split (train
and test; database and query in AnimalCLEF 2025), date, orientation, image_id and bbox. A row without an identity, such
as a query of the challenge, and the toolkit's "unknown" are of unknown identity.

A box [x, y, width, height] in pixels of the upright photo is cut out, because a photo may show several animals; the
cut is kept as PNG. Columns of other boxes are refused. Date and orientation go to the columns x_date and x_orientation:
photos of one day are easy matches, and the published splits keep them apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from idmetric.data.importers.run import ImportJob, png
from idmetric.data.importers.source import Record, Row
from idmetric.data.manifest import refuse_boxes
from idmetric.metric.images import read_image

_USED = ("identity", "path", "dataset", "species", "split", "bbox", "date", "orientation")


def wildlife(job: ImportJob) -> Iterator[Row]:
    """A row for each photo, or box in a photo."""
    source = job.open("identity", "path", source=job.folder().absolute() / "metadata.csv")
    refuse_boxes([column for column in source.columns if column != "bbox"], source.name)

    def row(record: Record) -> list[Row]:
        if record["path"] is None:
            raise ValueError("no path")
        photo = source.locate(record["path"])
        identity, dataset = record["identity"], record["dataset"]
        if identity == "unknown":
            identity = None
        if identity and dataset and not identity.startswith(f"{dataset}_"):
            identity = f"{dataset}_{identity}"  # as published identities begin: equal numbers are other animals
        columns = {
            "id": record["image_id"] or f"{record.number:06d}",
            "identity": identity,
            "path": _cut(photo, record["bbox"]) if record["bbox"] else photo,
            "dataset": dataset or job.dataset,
            "split": record["split"],
            "domain": "animals",
            "category": record["species"],
            "parameters": record.about(*_USED),
        }
        return [{**columns, "x_date": record["date"], "x_orientation": record["orientation"]}]

    return job.rows(source, row)


def _cut(photo: Path, box: str) -> bytes:
    """The part of a photo within a box, as PNG; ValueError if it is damaged, or the box is none or outside."""
    image = read_image(photo)
    try:
        left, top, width, height = map(float, json.loads(box))
        left, top, right, bottom = map(round, (left, top, left + width, top + height))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"bbox {box[:60]} is not [x, y, width, height]") from error

    left, top = max(0, left), max(0, top)
    right, bottom = min(image.width, right), min(image.height, bottom)
    if left >= right or top >= bottom:
        raise ValueError(f"bbox {box[:60]} covers none of the {image.width}x{image.height} pixels of {photo}")
    return png(image.crop((left, top, right, bottom)))
