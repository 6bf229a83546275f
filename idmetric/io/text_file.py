"""Text from files that anybody may have written."""

from __future__ import annotations

import os
import stat

MOST = 2**30  # bytes


def read(path: str | os.PathLike[str], encoding: str = "utf-8", most: int = MOST) -> str:
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
