"""Files of published datasets in small, and imports of them, for the tests of the importers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import ManifestError
from idmetric.metric.images import read_image


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def png(value: int, size: tuple[int, int] = (6, 4), kind: str = "PNG") -> bytes:
    """An image of one color, which encodes its number."""
    return encoded(Image.new("RGB", size, (value % 256, value // 256, 7)), kind)


def value_of(path: str) -> int:
    """The number of an image of one color."""
    red, green, _ = read_image(path).getpixel((0, 0))  # type: ignore[misc]
    return int(red + 256 * green)


def box(share: float, side: int = 10) -> bytes:
    """A mask whose first rows are white."""
    pixels = np.zeros((side, side), np.uint8)
    pixels[: round(share * side)] = 255
    return encoded(Image.fromarray(pixels))


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_json(path: Path, value: Any) -> Path:
    return put(path, json.dumps(value).encode())


def put_all(root: Path, *names: str, data: bytes = png(1)) -> None:
    """Files of the same content."""
    for name in names:
        put(root / name, data)


def hub_table(columns: dict[str, list[Any]], images: tuple[str, ...] = ()) -> datasets.Dataset:
    """A dataset as the Hub's are written; cells of image columns are bytes."""
    cells = dict(columns)
    for name in images:
        cells[name] = [None if value is None else {"bytes": value, "path": None} for value in columns[name]]
    made = datasets.Dataset.from_dict(cells)
    for name in images:
        made = made.cast_column(name, datasets.Image())
    return made


def column(table: pd.DataFrame, name: str) -> list[Any]:
    """The values of a column, with None for missing numbers."""
    return [None if value != value else value for value in table[name].tolist()]


def by_id(table: pd.DataFrame) -> dict[str, Any]:
    """id -> row, with its columns as attributes and its parameters as a dict."""
    parameters = [text and json.loads(text) for text in table["parameters"]]
    rows = table.assign(parameters=parameters).itertuples(index=False)
    return {str(row.id): row for row in rows}


def refuses(message: str, kind: str, source: Any, **given: Any) -> None:
    """An import stops with this message, a regular expression."""
    with pytest.raises(ManifestError, match=message):
        import_dataset(kind, source, **given)
