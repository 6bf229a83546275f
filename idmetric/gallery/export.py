"""Write a gallery as a Parquet file, for other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from idmetric.embed.nearest import Single
from idmetric.gallery.index import Item
from idmetric.io.hints import need
from idmetric.io.output import replacing


def write_parquet(items: Sequence[Item], vectors: Single, about: Mapping[str, str], path: Path) -> None:
    """Write images and their unit vectors (N, D); the metadata hold `about`."""
    need("gallery", "a Parquet file", pyarrow="pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({
        "image": pa.array([i.place for i in items], pa.string()),
        "name": pa.array([i.name for i in items], pa.string()),
        "identity": pa.array([i.identity for i in items], pa.string()),
        "width": pa.array([i.width for i in items], pa.int32()),
        "height": pa.array([i.height for i in items], pa.int32()),
        "key": pa.array([i.key for i in items], pa.string()),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
    })  # fmt: skip
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata({"idmetric.gallery": json.dumps(about)}), temporary)
