"""Digests that files hold of their own bytes, so that a file that was damaged on its way is refused.

    header = {**header, **BLANK}    # in the JSON of a file, or the metadata of a safetensors file
    seal(path)                      # writes the digest over the zeros
    check_seal(path)                # DigestError if any byte has changed since

They protect from damage, not from a forger, who can compute them.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from pathlib import Path

from idmetric.metric.files.output import refuse_irregular

DIGITS = 32
BLANK = {"digest": "0" * DIGITS}
_FIELD = re.compile(rb'"digest": ?"([0-9a-f]{%d})"' % DIGITS)  # within a text of JSON, its quotes have backslashes


class DigestError(ValueError):
    """A file with bytes that do not match the digest in it, or without a digest."""


def new_digest() -> hashlib.blake2b:
    """An empty digest; its text has `DIGITS` hexadecimal digits."""
    return hashlib.blake2b(digest_size=DIGITS // 2)


def seal(path: Path) -> None:
    """Write the digest of a file over the zeros of `BLANK` in it."""
    start, _, digest = _digests(path)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(digest)


def check_seal(path: Path) -> None:
    """Compare a file's bytes with the digest in it.

    Raises:
        DigestError: if they differ, or the file has no digest. OSError: if it cannot be read.
    """
    _, stored, digest = _digests(path)
    if stored != digest:
        raise DigestError("its bytes do not match the digest in it")


def _digests(path: Path) -> tuple[int, bytes, bytes]:
    """The position of the digest in a file, that digest, and the digest of its bytes with zeros in that place."""
    refuse_irregular(path)
    if not path.stat().st_size:
        raise DigestError("it is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        field = _FIELD.search(data)
        if field is None:
            raise DigestError("it has no digest of its bytes, as files of earlier versions")
        start, end = field.span(1)
        del field  # a match keeps the memory open

        digest = new_digest()
        with memoryview(data) as view:
            digest.update(view[:start])
            digest.update(b"0" * DIGITS)
            digest.update(view[end:])
        return start, data[start:end], digest.hexdigest().encode()
