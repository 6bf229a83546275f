"""pyarrow's modules, or one line that names the extra that brings them."""

from __future__ import annotations

from idmetric.metric.files import MissingExtraError, install

try:
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet
except ImportError as error:
    raise MissingExtraError(f"manifests need pyarrow: {install('eval')}") from error

__all__ = ["compute", "csv", "pa", "parquet"]
