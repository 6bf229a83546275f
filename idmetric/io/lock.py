"""One lock for all folders that one process may change at a time."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

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
    """
    path.open("ab").close()  # the system's own error; filelock would make folders on the way
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=-1 if wait else 0, poll_interval=0.2)
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
