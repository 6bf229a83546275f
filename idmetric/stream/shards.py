"""Files of embeddings and pictures, called shards: named by a digest of their bytes, which is checked before use.

    path = write(folder, "cls", data)  # folder/cls-<digest>.safetensors
    check(path)                        # ShardError if a byte has changed

Files with other names in the folder are not read.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

from idmetric.metric.files.digest import new_digest
from idmetric.metric.files.output import refuse_irregular, replacing, writing

_DAMAGED = "is damaged: its bytes do not match the digest in its name; delete it, and its images are embedded again"
_NAME = re.compile(r"([a-z]+)-([0-9a-f]{32})\.safetensors")


class ShardError(ValueError):
    """A shard that cannot be used.

    Attributes:
        path: its file. reason: why it cannot be used, and what to do.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # the arguments, by which an exception is copied
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{os.fspath(self.path)!r} {self.reason}"


def write(folder: Path, kind: str, data: bytes) -> Path:
    """Write a shard atomically and return its path; OutputError if that fails."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{_digest_of(data)}.safetensors"
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return path


def shards_in(folder: Path, *kinds: str) -> list[Path]:
    """Return the shards of some kinds in a folder, sorted by name; none if there is no folder.

    Raises:
        OSError: for a folder that cannot be listed.
    """
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [_NAME.fullmatch(name) for name in names]
    return [folder / match[0] for match in matches if match and match[1] in kinds]


def check(path: Path) -> None:
    """Compare a shard's bytes with the digest in its name; an unchanged file is read once per process.

    Raises:
        ShardError: if they differ. OSError: if it cannot be read, or is a pipe or a device.
    """
    refuse_irregular(path)
    status = os.stat(path)
    _check(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(2**16)
def _check(path: Path, *stamp: int) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, new_digest)
    match = _NAME.fullmatch(path.name)
    if match is None or match[2] != digest.hexdigest():
        raise ShardError(path, _DAMAGED)


def _digest_of(data: bytes) -> str:
    digest = new_digest()
    digest.update(data)
    return digest.hexdigest()
