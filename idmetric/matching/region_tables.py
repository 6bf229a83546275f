"""Tables of regions: CSV files and DataFrames, a row for each region.

Columns are `path`, the sides of a box and optionally `label` and `score`. A row without sides lists an image that has
no regions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from idmetric import tables
from idmetric.matching.annotations import Annotation, Annotations, box_by_corners, box_by_size, checked_region
from idmetric.matching.regions import Region
from idmetric.metric.errors import RequestError

_SIZE = ("x", "y", "w", "h")
_CORNERS = ("left", "top", "right", "bottom")
_KNOWN = {"path", "label", "score", *_SIZE, *_CORNERS}
_NEEDED = "path,x,y,w,h[,label,score] or path,left,top,right,bottom[,label,score] are needed"


def read_region_table(path: str) -> Annotations:
    """The regions in a table, see `idmetric.tables`; RequestError for missing columns, and rows without a path."""
    table = tables.read_table(path, known=_KNOWN)
    rows = ((f"{path}, row {number}", row) for number, row in table.records())
    return _of_rows(path, table.columns, rows)


def is_frame(regions: Any) -> bool:
    """Whether this is a DataFrame, which pandas need not be installed for."""
    return hasattr(regions, "columns") and hasattr(regions, "to_dict")


def read_frame(frame: Any) -> Annotations:
    """The regions in a DataFrame; errors as `read_region_table`."""
    rows = ((f"the table of regions, row {number}", row) for number, row in enumerate(frame.to_dict("records")))
    return _of_rows("the table of regions", [str(column) for column in frame.columns], rows)


def _of_rows(source: str, columns: Sequence[str], rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Annotations:
    sides = _CORNERS if set(_CORNERS) <= set(columns) else _SIZE
    missing = [column for column in ("path", *sides) if column not in columns]
    if missing:
        raise RequestError(f"{source} has no column {', '.join(missing)}: {_NEEDED}")

    annotations: dict[str, list[Annotation]] = {}
    for where, row in rows:
        path = row["path"]
        if _is_empty(path):
            raise RequestError(f"{where}: it names no image")
        of_image = annotations.setdefault(str(path), [])
        values = {side: row[side] for side in sides}
        if not all(map(_is_empty, values.values())) or not _is_empty(row.get("label")):
            read = partial(_region, values, sides == _CORNERS, row.get("label"), row.get("score"))
            of_image.append(Annotation(where, read))
    return annotations


def _region(cells: Mapping[str, Any], are_corners: bool, label: Any, score: Any) -> Region:
    sides = [_number(column, cell) for column, cell in cells.items()]
    box = box_by_corners(sides) if are_corners else box_by_size(sides)
    with suppress(RequestError):  # the check of scores has its own message
        score = _number("score", score)
    return checked_region(box, None, label, score)


def _number(column: str, cell: Any) -> Any:
    """The number in a cell of text; other values as they are."""
    if not isinstance(cell, str) or not cell:
        return cell
    try:
        return tables.number_of(cell)
    except ValueError as error:
        raise RequestError(f"column {column!r}: {error}") from error


def _is_empty(cell: Any) -> bool:
    """Whether a cell is empty; NaN marks it in a DataFrame."""
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
