"""JSON, TOML and text from files that anybody may have written, and JSON of results."""

from __future__ import annotations

import json
import math
import os
import stat
import tomllib
from collections.abc import Mapping
from typing import Any

from idmetric.metric.files import StrPath

MOST = 2**30  # bytes


def read_text(path: StrPath, encoding: str = "utf-8", most: int = MOST) -> str:
    """The whole text of a file.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it has more bytes, is not text, or is a pipe or device, which might never end.
    """
    if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):  # open reports folders
        raise ValueError("it is a pipe or a device: give a file")
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    return data.decode(encoding)


def read(path: StrPath, encoding: str = "utf-8", most: int = MOST) -> Any:
    """The value in a JSON file, or in one of TOML, if its name ends in .toml; errors as `read_text` and `parse`."""
    content = read_text(path, encoding, most)
    if os.fspath(path).endswith(".toml"):
        return tomllib.loads(content)
    return parse(content)


def text(value: Any, **options: Any) -> str:
    """JSON of results; NaN and infinity, which JSON cannot hold, become null.

    Args:
        options: of `json.dumps`.
    """
    return json.dumps(_plain(value), allow_nan=False, **options)


def _plain(value: Any) -> Any:
    """A value with None for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def parse(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is not JSON, or too deeply nested for Python (`json` raises RecursionError there).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
