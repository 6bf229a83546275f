"""Between the manifest of Arrow tables and the one of DataFrames, for as long as both exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.data.manifest import ManifestError, checked
from idmetric.data.old_manifest.arrow import pa
from idmetric.data.old_manifest.schema import PATHS as BYTES
from idmetric.data.old_manifest.schema import array_of
from idmetric.data.old_manifest.table import Manifest
from idmetric.metric.files import need

if TYPE_CHECKING:
    import pandas as pd


def to_frame(manifest: Manifest | pd.DataFrame) -> pd.DataFrame:
    """The same rows as a DataFrame (one stays as it is); ManifestError for images or masks that are bytes."""
    if not isinstance(manifest, Manifest):
        return manifest
    need("eval", "a manifest", pandas="pandas")
    import pandas as pd

    columns = {}
    for name in manifest.table.column_names:
        if name not in BYTES.values():
            columns[name] = pd.Series(manifest.column(name), dtype=object)
        elif manifest.table[name].null_count < len(manifest):
            raise ManifestError(f"column {name!r}: images and masks are files")
    return checked(pd.DataFrame(columns), manifest.root)


def to_manifest(table: pd.DataFrame) -> Manifest:
    """The same rows as an Arrow table, with absolute paths."""
    arrays = {}
    for name in table.columns:
        column = table[name].astype(object)
        values = column.where(column.notna(), None).tolist()
        arrays[name] = array_of(values, name, "manifest")
    return Manifest(pa.table(arrays), "/")
