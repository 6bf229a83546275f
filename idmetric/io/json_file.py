"""JSON from files that anybody may have written, and of results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from idmetric.io import text_file


def read(path: str | os.PathLike[str], encoding: str = "utf-8", most: int = text_file.MOST) -> Any:
    """The value in a JSON file of at most `most` bytes.

    Raises:
        OSError: if the file cannot be read.
        ValueError: as `text_file.read`, or as `parse`.
    """
    return parse(text_file.read(path, encoding, most))


def lines(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines; blank lines are skipped.

    Raises:
        OSError: if the file cannot be read.
        ValueError: naming the line, if it is not a JSON object.
    """
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = parse(line)
            except ValueError as error:  # also raised for numbers with thousands of digits
                raise ValueError(f"line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not an object of columns")
            yield row


def text(value: Any, **options: Any) -> str:
    """JSON of results; NaN and infinity, which JSON cannot hold, become null.

    Args:
        options: of `json.dumps`.
    """
    return json.dumps(_plain(value), allow_nan=False, **options)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def parse(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is not JSON, or too deeply nested for Python (`json` raises RecursionError there).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
