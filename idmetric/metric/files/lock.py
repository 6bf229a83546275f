"""One lock for all folders that one process may change at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from idmetric.metric.files.output import refuse_irregular, writing

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)  # of ENOSYS, filelock takes care


@contextmanager
def locked(path: Path, busy: Exception, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock on a file during the block. The system releases it when the process ends, however it ends.

    Args:
        path: the lock file, which stays in its folder.
        busy: raised if another process holds the lock.
        wait: wait for the other process instead.

    Yields:
        True; False if the file system has no locks, so that no other process is kept out.

    Raises:
        OutputError: if the file cannot be written. OSError: if it is a link, a pipe or a device.
    """
    # before filelock, which follows links, waits for pipes and makes folders on the way
    if path.is_symlink():
        raise OSError(f"{os.fspath(path)!r} should be a lock file and is a link: remove it")
    with writing(path):
        if path.exists():
            refuse_irregular(path)
        path.open("ab").close()

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=wait, poll_interval=0.2)
    except Timeout:
        raise busy from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        yield False
        return

    try:
        yield True
    finally:
        lock.release()
