"""The pairs of a CSV file, read a line at a time, however many there are."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.cli.score_format import File, UsageError
from idmetric.text_file import MOST

_ALIASES = {"image_a": "a", "ref": "a", "reference": "a", "image_b": "b", "gen": "b", "image": "b"}
_COLUMNS = ["a", "b", "mask_a", "mask_b"]


@dataclass(frozen=True)
class Pair:
    """Two images to compare, with their masks' files."""

    a: str
    b: str
    mask_a: str | None = None
    mask_b: str | None = None

    @property
    def files(self) -> tuple[File, File]:
        """Both images, each with its mask."""
        return (self.a, self.mask_a), (self.b, self.mask_b)


class Pairs:
    """The pairs of a file, in its order; it is read once to check it, and again at each iteration.

    Args:
        path: CSV with columns a,b[,mask_a,mask_b], a header with other names of these, or none. Paths in it are
            relative to its folder. What can be read only once (a pipe) is copied to a temporary file.

    Attributes:
        masked: which there are: images with a mask (True), images without one (False).

    Raises:
        UsageError: naming the file, and the pair that lacks an image.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._copy = path, path, None
        try:
            if path.is_char_device() or path.is_block_device():
                raise UsageError(f"cannot read {str(path)!r}: a device may have no end: give a file or a pipe")
            if path.exists() and not path.is_file():
                self._file, self._copy = _copied(path)
        except OSError as error:
            raise UsageError(f"cannot read {str(path)!r}: {error}") from error
        self._count, self.masked = 0, set[bool]()
        for pair in self:
            self._count += 1
            self.masked |= {mask is not None for _, mask in pair.files}
        if not self._count:
            raise UsageError(f"{str(path)!r} holds no pairs")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Pair]:
        try:
            with self._file.open(newline="", encoding="utf-8-sig") as file:
                lines = (line for line in csv.reader(file) if any(cell.strip() for cell in line))
                yield from self._of(lines)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"cannot read {str(self._path)!r}: {error}") from error

    def _of(self, lines: Iterator[list[str]]) -> Iterator[Pair]:
        number, names = 0, _COLUMNS
        for k, line in enumerate(lines):
            if k == 0:
                found = [_ALIASES.get(cell.strip().lower(), cell.strip().lower()) for cell in line]
                if {"a", "b"} <= set(found):
                    names = found
                    continue
            number += 1
            cells = {name: cell.strip() for name, cell in zip(names, line, strict=False) if cell.strip()}
            if not {"a", "b"} <= cells.keys():
                raise UsageError(f"{str(self._path)!r}, pair {number}: two image paths are needed, found {line}")
            at = {name: str(self._path.parent / cell) for name, cell in cells.items()}  # absolute paths stay
            yield Pair(at["a"], at["b"], at.get("mask_a"), at.get("mask_b"))

    def windows(self, files: int) -> Iterator[list[Pair]]:
        """The pairs in runs of neighbours that name at most `files` different images (a pair may name two)."""
        part: list[Pair] = []
        named: set[File] = set()
        for pair in self:
            more = named | set(pair.files)
            if part and len(more) > files:
                yield part
                part, more = [], set(pair.files)
            part.append(pair)
            named = more
        if part:
            yield part


def _copied(path: Path) -> tuple[Path, Any]:
    """A copy of what can be read once, and what deletes it."""
    folder = tempfile.TemporaryDirectory(prefix="idmetric-")
    copy, left = Path(folder.name) / "pairs.csv", MOST
    with path.open("rb") as source, copy.open("wb") as target:
        while data := source.read(min(left + 1, 2**20)):
            left -= len(data)
            if left < 0:  # a pipe may have no end either
                raise UsageError(f"{str(path)!r} has more than {MOST} bytes: give a file")
            target.write(data)
    return copy, folder
