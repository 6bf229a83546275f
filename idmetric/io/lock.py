"""A lock on a file, which the operating system takes back when its process ends, however it ends."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO


def lock(file: BinaryIO) -> bool | None:
    """Lock an open file until it is closed, or the process ends.

    Returns:
        Whether the lock is ours; False if another has it, None where the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0, os.SEEK_SET)  # the byte that is locked is the one at the position
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True
