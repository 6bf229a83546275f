"""One lock for all folders that one process may change at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
_held: set[FileLock] = set()


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
        OSError: if the file cannot be created.
    """
    if not _has_locks(path):
        yield False
        return

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=-1 if wait else 0, poll_interval=0.2)
    except Timeout:
        raise busy from None

    _held.add(lock)
    try:
        yield True
    finally:
        _held.discard(lock)
        lock.release()


def _has_locks(path: Path) -> bool:
    """Whether a file, which is created, can be locked; filelock takes some file systems without locks for busy ones."""
    with path.open("ab") as file:  # permissions by the umask, and the system's own error if it cannot be opened
        if fcntl is None:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
    return True


def _close_in_child() -> None:
    """Close the locks in a forked process, which may outlive a killed parent; filelock does so only since 4.0."""
    for lock in _held:
        if (handle := lock._context.lock_file_fd) is not None:
            os.close(handle)
            lock._context.lock_file_fd = None
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
