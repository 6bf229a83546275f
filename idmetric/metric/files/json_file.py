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


def read_text(path: StrPath, most: int = MOST) -> str:
    """The whole text of a file, see `decoded`.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: as `read_bytes`. ValueError: if it is not text.
    """
    return decoded(read_bytes(path, most))


def decoded(data: bytes, encoding: str | None = None) -> str:
    """The text of a file, without a byte order mark; by default UTF-8, UTF-16 or UTF-32 by its first four bytes.

    Raises:
        UnicodeDecodeError: if it is not text.
    """
    return data.decode(encoding or json.detect_encoding(data)).removeprefix("\ufeff")


def read_bytes(path: StrPath, most: int = MOST) -> bytes:
    """All bytes of a file; OSError if it cannot be read, has more than `most`, or may never end (a pipe, a device)."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"it has more than {most} bytes")
    return data


def read(path: StrPath, most: int = MOST) -> Any:
    """The value in a JSON file, or in one of TOML, if its name ends in .toml; errors as `read_text` and `parse`."""
    content = read_text(path, most)
    if os.fspath(path).lower().endswith(".toml"):
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


def parse(text: str | bytes, unique: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        unique: refuse an object with two values of one name, of which otherwise the last counts.

    Raises:
        ValueError: if it is not JSON, or too deeply nested for Python (`json` raises RecursionError there).
    """
    try:
        return json.loads(text, object_pairs_hook=_unique if unique else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of names and values; ValueError for a name that occurs twice."""
    names = dict(pairs)
    if len(names) < len(pairs):
        occurring = [name for name, _ in pairs]
        repeated = next(name for name in names if occurring.count(name) > 1)
        raise ValueError(f"{repeated!r} occurs twice: rename or remove one")
    return names
