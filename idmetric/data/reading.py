"""The data that a path names: a manifest, a folder, or a pattern of both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.metric.errors import RequestError
from idmetric.metric.paths import matches

if TYPE_CHECKING:
    from pandas import DataFrame


def read_data(path: Path) -> DataFrame:
    """Read a manifest, or make one of a folder with one folder per identity, or join those of a pattern."""
    from idmetric.data.importers.run import import_dataset
    from idmetric.data.manifest import FORMATS, merge, read
    from idmetric.data.old_manifest.bridge import to_frame

    if not path.exists():
        sources = matches(os.fspath(path))
        if not sources:
            raise RequestError(f"{path}: no such file or folder")
        parts = [read_data(Path(source)) for source in sources]
        return parts[0] if len(parts) == 1 else merge(parts)
    for file in [path, *(path / f"manifest{ending}" for ending in FORMATS)]:
        if file.is_file():
            return read(file)
    return to_frame(import_dataset("folder", path, name=path.resolve().name))
