"""JSON from files that anybody may have written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read(path: str | os.PathLike[str], encoding: str = "utf-8") -> Any:
    """The value in a JSON file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not UTF-8 text, or as `parse`.
    """
    return parse(Path(path).read_text(encoding=encoding))


def parse(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is none, or nested so deeply that Python cannot hold it (`json` raises RecursionError there).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
