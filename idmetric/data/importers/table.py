"""Any table with a column of images, a column of identities, and optionally other columns of a manifest.

Columns with the name of a manifest column are used directly, and `image` is used as `path`. `--map` names others, as in
`--map identity=label --map path=photo`, or `--map x_shop=seller` for a free column. Other columns of short texts and
numbers go to the parameters.

If the user names the dataset (`--name`), all rows get this name, and the table's column `dataset` goes to the free
column `x_subset`; tables that join several sets (WildlifeReID-10k) name the sets there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import PATHS, Row

_TEXT = ("domain", "category", "role", "background", "engine", "text", "slot")
_NUMBERS = ("oracle", "label", "seed")
_NAMED = ("id", "group", "parent")  # values get the dataset's name as prefix, like identities
TARGETS = ("identity", "dataset", "split", *PATHS, *_TEXT, *_NUMBERS, *_NAMED)


def rows(job: Job) -> Iterator[Row]:
    """One manifest row for each row of the table."""
    wrong = [c for c in job.columns if c not in TARGETS and not c.startswith("x_")]
    if wrong:
        raise SourceError(
            f"--map {wrong[0]}=...: no column of a manifest that can be mapped ({', '.join(TARGETS)}, x_...)"
        )

    source = job.open()
    image = "path" if "path" in source.columns or "image" not in source.columns else "image"
    job.need(source, *job.columns, image, "identity")

    for record in job.rows(source):
        values, part = record.values, record.shard.split
        values["path"] = values.pop(image, None)
        if job.named and "dataset" not in job.columns and values.get("dataset") is not None:
            values.setdefault("x_subset", str(values["dataset"]))
            values["dataset"] = None
        files: dict[str, Any] = {}
        for column in PATHS:
            files |= record.keep(values.get(column), column)
        if not files.keys() & {"path", "image_bytes"}:
            record.reject("no image")
            continue

        known: dict[str, Any] = {c: str(values[c]) for c in _TEXT if values.get(c) is not None}
        known |= {c: f"{job.name}/{values[c]}" for c in _NAMED if values.get(c) is not None}
        for column in _NUMBERS:
            try:
                known[column] = (int if column == "seed" else float)(values.get(column))  # type: ignore[arg-type]
            except (TypeError, ValueError):  # a column `label` may hold names
                if column in job.columns and values[column] is not None:
                    raise SourceError(
                        f"{record.where}, column {column!r}: {values[column]!r} is not a number"
                    ) from None
        free = {c: values[c] for c in job.columns if c.startswith("x_")}
        identity, split, dataset = values.get("identity"), values.get("split"), values.get("dataset")
        yield Row(
            None if identity is None else f"{job.name}/{identity}",
            dataset=job.name if dataset is None else str(dataset),
            split=part if split is None else str(split),
            parameters={**record.about("identity", "dataset", "split", *PATHS, *known), **free},
            **{"id": f"{job.name}/{part or 'all'}/{record.number:06d}", **known},
            **files,
        )
