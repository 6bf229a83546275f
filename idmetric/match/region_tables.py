"""Tables of regions: CSV files and DataFrames, a row for each region.

Columns are `path`, the sides of a box and optionally `label` and `score`; other usual names of columns are read, too. A
row without sides lists an image that has no regions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from idmetric.match.annotations import Annotation, Annotations, box_by_corners, box_by_size, checked_region
from idmetric.match.regions import Region
from idmetric.metric.errors import RequestError
from idmetric.metric.files import json_file

_PATHS = ("path", "image", "file_name", "filename")
_LABELS = ("label", "class", "category")
_SIZES = (("x", "y", "w", "h"), ("x", "y", "width", "height"))
_CORNERS = (("left", "top", "right", "bottom"), ("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"))
_NEEDED = "path,x,y,w,h[,label,score] or path,left,top,right,bottom[,label,score] are needed"


def read_region_table(path: str) -> Annotations:
    """The regions in a CSV file; RequestError for missing columns, and rows without a path."""
    text = json_file.read_text(path, encoding="utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = reader.fieldnames or []
    rows = ((f"{path}, line {reader.line_num}", row) for row in reader)
    return _of_rows(path, columns, rows)


def is_frame(regions: Any) -> bool:
    """Whether this is a DataFrame, which pandas need not be installed for."""
    return hasattr(regions, "columns") and hasattr(regions, "to_dict")


def read_frame(frame: Any) -> Annotations:
    """The regions in a DataFrame; errors as `read_region_table`."""
    rows = ((f"the table of regions, row {number}", row) for number, row in enumerate(frame.to_dict("records")))
    return _of_rows("the table of regions", [str(column) for column in frame.columns], rows)


def _of_rows(source: str, columns: Sequence[str], rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Annotations:
    path_column = next((column for column in _PATHS if column in columns), None)
    sides = next((names for names in (*_SIZES, *_CORNERS) if set(names) <= set(columns)), None)
    if path_column is None or sides is None:
        missing = [] if path_column is not None else ["path"]
        if sides is None:
            missing += [side for side in "xywh" if side not in columns]
        raise RequestError(f"{source} has no column {', '.join(missing)}: {_NEEDED}")
    label_column = next((column for column in _LABELS if column in columns), "")

    annotations: dict[str, list[Annotation]] = {}
    for where, row in rows:
        path = row[path_column]
        if _is_empty(path):
            raise RequestError(f"{where}: it names no image")
        of_image = annotations.setdefault(str(path), [])
        values = [row[side] for side in sides]
        if not all(map(_is_empty, values)) or not _is_empty(row.get(label_column)):
            read = partial(_region, values, sides in _CORNERS, row.get(label_column), row.get("score"))
            of_image.append(Annotation(where, read))
    return annotations


def _region(sides: Sequence[Any], are_corners: bool, label: Any, score: Any) -> Region:
    box = box_by_corners(sides) if are_corners else box_by_size(sides)
    return checked_region(box, None, label, score)


def _is_empty(cell: Any) -> bool:
    """Whether a cell is empty; NaN marks it in a DataFrame."""
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
