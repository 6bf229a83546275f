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

from idmetric.data.importers.run import Job, scalars, where
from idmetric.data.importers.source import Shard, Source, SourceError
from idmetric.data.manifest.table import Row

_TEXT = ("domain", "category", "role", "background", "engine", "text", "slot")
_NUMBERS = ("oracle", "label", "seed")
_FILES = ("path", "mask", "part_mask")
_NAMED = ("id", "group", "parent")  # values get the dataset's name as prefix, like identities
TARGETS = ("identity", "dataset", "split", *_FILES, *_TEXT, *_NUMBERS, *_NAMED)


def rows(job: Job) -> Iterator[Row]:
    """One manifest row for each row of the table."""
    wrong = [c for c in job.columns if c not in TARGETS and not c.startswith("x_")]
    if wrong:
        raise SourceError(
            f"--map {wrong[0]}=...: no column of a manifest that can be mapped ({', '.join(TARGETS)}, x_...)"
        )

    for given in job.sources:
        source = job.open(given)
        job.need(source, *job.columns)
        mapped = "path" in job.columns
        image = "path" if mapped or "path" in source.columns else "image"

        if not (mapped or image in source.columns):
            raise SourceError(
                f"{source.name}: no column 'path' or 'image'; name one of {', '.join(source.columns)}: --map path=NAME"
            )

        if not job.has(source, "identity"):
            raise SourceError(
                f"{source.name}: no column 'identity'; name one of {', '.join(source.columns)}: --map identity=NAME"
            )

        for number, shard, values in job.rows(source):
            values["path"] = values.pop(image, None)
            if job.named and "dataset" not in job.columns and values.get("dataset") is not None:
                values.setdefault("x_subset", str(values["dataset"]))
                values["dataset"] = None
            yield from _row(job, source, shard, number, values)


def _row(job: Job, source: Source, shard: Shard, number: int, values: dict[str, Any]) -> Iterator[Row]:
    name = f"{job.name}/{shard.split or 'all'}/{number:06d}"
    files: dict[str, Any] = {}
    for column in _FILES:
        kept = job.keep(source, values.get(column), name if column == "path" else f"{name}_{column}", column)
        files |= kept
    if not any(key in files for key in ("path", "image_bytes")):
        job.reject(source, shard, number, "no image")
        return

    known: dict[str, Any] = {c: str(values[c]) for c in _TEXT if values.get(c) is not None}
    known |= {c: f"{job.name}/{values[c]}" for c in _NAMED if values.get(c) is not None}
    for column in _NUMBERS:
        number_there = _number(values.get(column), column)
        if number_there is not None:
            known[column] = number_there
        elif column in job.columns and values[column] is not None:
            raise SourceError(f"{where(source, shard, number)}, column {column!r}: {values[column]!r} is not a number")

    used = {"identity", "dataset", "split", *_FILES, *known}
    free = {c: _free(values[c], c, where(source, shard, number)) for c in job.columns if c.startswith("x_")}
    identity = values.get("identity")
    split, dataset = values.get("split"), values.get("dataset")
    yield Row(
        identity=None if identity is None else f"{job.name}/{identity}",
        dataset=job.name if dataset is None else str(dataset),
        split=shard.split if split is None else str(split),
        parameters={"source": source.label, "row": number, **scalars(values, *used), **free},
        **{"id": name, **known},
        **files,
    )


def _free(value: Any, column: str, place: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    raise SourceError(f"{place}, column {column!r}: a {type(value).__name__}; a free column holds texts and numbers")


def _number(value: Any, column: str) -> float | int | None:
    """The value as a number, or None, because a column `label` may hold names."""
    try:
        return int(value) if column == "seed" else float(value)
    except (TypeError, ValueError):
        return None
