"""JSON, TOML and text from files that anybody may have written, and JSON of results."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from typing import Any

from idmetric.metric.files import StrPath
from idmetric.metric.files.output import refuse_irregular

MOST = 2**30  # bytes


def read_text(path: StrPath, encoding: str = "utf-8", most: int = MOST) -> str:
    """The whole text of a file.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: as `read_bytes`. ValueError: if it is not text.
    """
    return read_bytes(path, most).decode(encoding)


def read_bytes(path: StrPath, most: int = MOST) -> bytes:
    """All bytes of a file; OSError if it cannot be read, has more than `most`, or may never end (a pipe, a device)."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"it has more than {most} bytes")
    return data


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
