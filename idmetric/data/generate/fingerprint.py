"""A short hash of the weights in a local folder or file, fast enough to compute before each run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_READ = {".safetensors", ".json", ".txt", ".model", ".jinja"}  # extensions of files that pipelines load
_SAMPLE = 16 * 1024  # bytes read at each of three places of a tensor
_MOST_HEADER = 100_000_000  # bytes; safetensors' own limit


def fingerprint(path: Path) -> str:
    """12 hex digits of a SHA-256 over the names and contents of a folder's files, or of one file.

    Configurations, vocabularies and the headers of safetensors files are hashed completely, and of each tensor the
    first, middle and last 16 KiB. Other values or settings therefore give another hash without reading every byte. The
    path of the folder doesn't matter.
    """
    digest = hashlib.sha256()
    root = path if path.is_dir() else path.parent
    for file in _files(path):
        digest.update(f"{file.relative_to(root).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            for part in _samples(opened, file.stat().st_size) if file.suffix == ".safetensors" else _whole(opened):
                digest.update(part)
    return digest.hexdigest()[:12]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = (p for p in path.rglob("*") if p.suffix in _READ and p.is_file())
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(path).parts))


def _whole(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(1 << 20):
        yield part


def _samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The header, then samples of every tensor in order; a broken file completely."""
    try:
        start = 8 + (length := int.from_bytes(file.read(8), "little"))
        if length > min(_MOST_HEADER, size):
            raise ValueError
        header = file.read(length)
        spans = sorted(_span(entry) for name, entry in json.loads(header).items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError, AttributeError):
        file.seek(0, os.SEEK_SET)
        yield from _whole(file)
        return

    yield header
    for begin, end in spans:
        middle = max(begin, (begin + end - _SAMPLE) // 2)
        for place in sorted({begin, middle, max(begin, end - _SAMPLE)}):
            file.seek(start + place)
            yield file.read(min(_SAMPLE, end - place))


def _span(entry: Any) -> tuple[int, int]:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end:
        raise ValueError
    return int(begin), int(end)
