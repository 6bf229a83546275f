"""One lock for all folders that one process may change at a time."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from idmetric.metric.files.output import OutputError, refuse_irregular, writing

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)  # as on Lustre, FUSE or NFS


@contextmanager
def locked(path: Path, busy: Exception, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on a file during the block. The system releases it when the process ends, however it ends.

    Where the file system has no locks, the block runs without one, with a warning.

    Args:
        path: the lock file, which stays in its folder.
        busy: raised if another process holds the lock.
        wait: wait for the other process instead.

    Raises:
        OutputError: if the file cannot be written or locked. OSError: if it is a link, a pipe or a device.
    """
    # before filelock, which follows links, waits for pipes and makes folders on the way
    if path.is_symlink():
        raise OSError(f"{os.fspath(path)!r} should be a lock file and is a link: remove it")
    with writing(path):
        if path.exists():
            refuse_irregular(path)
        path.open("ab").close()

    # a soft lock would take the file, which stays here, for another process that holds the lock
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=wait, poll_interval=0.2)
    except Timeout:
        raise busy from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            reason = f"cannot lock {os.fspath(path)!r}: {error.strerror or error}: name a folder on another disk"
            raise OutputError(error.errno, reason, os.fspath(path)) from error
        message = f"the file system of {os.fspath(path.parent)!r} has no locks: let no other process change this folder"
        warnings.warn(message, stacklevel=3)

    try:
        yield
    finally:
        lock.release()
