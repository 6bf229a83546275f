"""Digests that files hold of their own bytes, so that a file that was damaged on its way is refused.

    save_sealed(tensors, path, metadata)    # a safetensors file
    content = {**BLANK, **content}          # in the JSON of a file
    seal(path)                              # writes the digest over the zeros
    seal_problem(path)                      # "", or that a byte has changed since

They protect from damage, not from a forger, who can compute them.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.metric.files.output import refuse_irregular

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = 32
BLANK = {"digest": "0" * DIGITS}
_FIELD = re.compile(rb'"digest": ?"([0-9a-f]{%d})"' % DIGITS)  # within a text of JSON, its quotes have backslashes


def new_digest() -> hashlib.blake2b:
    """An empty digest; its text has `DIGITS` hexadecimal digits."""
    return hashlib.blake2b(digest_size=DIGITS // 2)


def seal(path: Path) -> None:
    """Write the digest of a file over the zeros of `BLANK` in it."""
    digests = _digests(path)
    if digests is None:
        raise ValueError(f"{path} has no place for a digest")
    start, _, digest = digests
    with path.open("r+b") as file:
        file.seek(start)
        file.write(digest)


def save_sealed(tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with the digest of its bytes; equal contents give equal bytes."""
    from safetensors.torch import save_file

    save_file(tensors, path, {**BLANK, **metadata})
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors writes it in any order
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))
    seal(path)


def seal_problem(path: Path) -> str:
    """Compare a file's bytes with the digest in it: why they do not match, or "".

    Raises:
        OSError: if the file cannot be read.
    """
    refuse_irregular(path)
    if not path.stat().st_size:
        return "it is empty"
    digests = _digests(path)
    if digests is None:
        return "it has no digest of its bytes"
    _, stored, digest = digests
    if stored != digest:
        return "its bytes do not match the digest in it"
    return ""


def _digests(path: Path) -> tuple[int, bytes, bytes] | None:
    """The position of the digest in a file, that digest, and the digest of its bytes with zeros in that place.

    None for a file without a digest.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        field = _FIELD.search(data)
        if field is None:
            return None
        start, end = field.span(1)
        del field  # a match keeps the memory open

        digest = new_digest()
        with memoryview(data) as view:
            digest.update(view[:start])
            digest.update(b"0" * DIGITS)
            digest.update(view[end:])
        return start, data[start:end], digest.hexdigest().encode()
