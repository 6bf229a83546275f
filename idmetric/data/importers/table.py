"""Any table with a column of images, a column of identities, and optionally other columns of a manifest.

Columns with the name of a manifest column are used directly, and `image` is used as `path`. `--map` names others, as in
`--map identity=label --map path=photo`, or `--map x_shop=seller` for a free column. Other columns of short texts and
numbers go to the parameters.

If the user names the dataset (`--name`), all rows get this name, and the table's column `dataset` goes to the free
column `x_subset`; tables that join several sets (WildlifeReID-10k) name the sets there.
"""

from __future__ import annotations

from collections.abc import Iterator

from idmetric.data.importers.run import Columns, ImportJob, scalars
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import PATHS, Row

_TEXT = ("dataset", "split", "domain", "category", "role", "background", "engine", "text", "group", "slot", "parent")
_NUMBERS = ("oracle", "label", "seed")
TARGETS = ("id", "identity", *PATHS, *_TEXT, *_NUMBERS)


def rows(job: ImportJob) -> Iterator[Row]:
    """One manifest row for each row of the table."""
    for column in job.columns:
        if column not in TARGETS and not column.startswith("x_"):
            raise ManifestError(
                f"--map {column}=...: no column of a manifest that can be mapped ({', '.join(TARGETS)}, x_...)"
            )
    source = job.open(known=("image",))
    image = "image" if "image" in source.columns and "path" not in source.columns else "path"
    source.need(*job.columns, image, "identity")

    for record in job.records(source):
        values = {name: value for name, value in record.values.items() if value is not None}
        values["path"] = values.pop(image, None)
        if job.named and "dataset" not in job.columns and "dataset" in values:
            values.setdefault("x_subset", record.text("dataset"))
            del values["dataset"]
        columns: Columns = {}
        for column in PATHS:
            columns |= record.keep(values.get(column), column)
        if not {"path", "image_bytes"} & columns.keys():
            record.reject("no image")
            continue

        columns |= {column: record.text(column) for column in _TEXT if column in values}
        for column in {*_NUMBERS} & values.keys():
            try:
                columns[column] = int(values[column]) if column == "seed" else record.number_in(column)
            except (TypeError, ValueError) as error:
                if column in job.columns:  # a column `label` that nobody mapped may hold names
                    message = f"{record.where}, column {column!r}: {values[column]!r} is not a number"
                    raise ManifestError(message) from error
        free = {column: values.get(column) for column in job.columns if column.startswith("x_")}
        columns["parameters"] = {**record.origin, **scalars(values, "id", "identity", *PATHS, *columns), **free}
        columns.setdefault("split", record.shard.split)
        name = f"{record.shard.split or 'all'}/{record.number:06d}"
        yield job.row(record.text("identity"), record.text("id") or name, **columns)
