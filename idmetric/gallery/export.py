"""Write a gallery as a Parquet file, for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.gallery.errors import GalleryError
from idmetric.io.hints import need
from idmetric.io.output import replacing

if TYPE_CHECKING:
    from idmetric.gallery.gallery import Gallery

_ROWS = 4096


def write_parquet(gallery: Gallery, path: Path) -> None:
    """See `Gallery.to_parquet`; a few thousand rows are in memory at once, and the metadata hold `about`."""
    need("gallery", "a Parquet file", pyarrow="pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, items = gallery.table(), gallery.items
    schema: pa.Schema | None = None
    with replacing(path) as temporary:
        writer: pq.ParquetWriter | None = None
        for start in range(0, len(items), _ROWS):
            part = items[start : start + _ROWS]
            vectors = table.rows_of(item.key for item in part)
            columns = {
                "image": pa.array([i.place for i in part], pa.string()),
                "name": pa.array([i.name for i in part], pa.string()),
                "identity": pa.array([i.identity for i in part], pa.string()),
                "width": pa.array([i.width for i in part], pa.int32()),
                "height": pa.array([i.height for i in part], pa.int32()),
                "key": pa.array([i.key for i in part], pa.string()),
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
            }
            batch = pa.table(columns)
            if writer is None:
                schema = batch.schema.with_metadata({"idmetric.gallery": json.dumps(gallery.about)})
                writer = pq.ParquetWriter(temporary, schema)
            writer.write_table(batch.cast(schema))
        if writer is None:
            raise GalleryError(f"the gallery {str(gallery.folder)!r} has no image that can be used")
        writer.close()
