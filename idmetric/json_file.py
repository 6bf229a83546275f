"""JSON from files that anybody may have written."""

from __future__ import annotations

import json
import os
from typing import Any

from idmetric import text_file


def read(path: str | os.PathLike[str], encoding: str = "utf-8", most: int = text_file.MOST) -> Any:
    """The value in a JSON file of at most `most` bytes.

    Raises:
        OSError: if the file cannot be read.
        ValueError: as `text_file.read`, or as `parse`.
    """
    return parse(text_file.read(path, encoding, most))


def parse(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is none, or nested so deeply that Python cannot hold it (`json` raises RecursionError there).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
