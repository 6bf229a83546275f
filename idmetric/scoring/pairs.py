"""Pairs of images: in memory, or in a CSV file that is read a line at a time, however many there are."""

from __future__ import annotations

import csv
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.io.text_file import MOST
from idmetric.scoring.scores import COLUMNS, File, RequestError

_SIDES = {"a": ("a", "image_a", "ref", "reference"), "b": ("b", "image_b", "gen", "image")}
_CANDIDATES = ("gen", "image")  # only with these headers a column `mask` belongs to one of the images
_COLUMNS = ("a", "b", "mask_a", "mask_b")  # without a header


def _aliases() -> dict[str, str]:
    """Map headers of images and masks to `_COLUMNS`."""
    found = {name: side for side, names in _SIDES.items() for name in names}
    for side, names in _SIDES.items():
        found |= {mask: f"mask_{side}" for name in names for mask in (f"mask_{name}", f"{name}_mask")}
    return found


_ALIASES = _aliases()


@dataclass(frozen=True)
class Pair:
    """Two images to compare, with their masks' files, and the other columns of their line."""

    a: str
    b: str
    mask_a: str | None = None
    mask_b: str | None = None
    other: tuple[tuple[str, str], ...] = ()

    @property
    def files(self) -> tuple[File, File]:
        """Both images, each with its mask."""
        return (self.a, self.mask_a), (self.b, self.mask_b)


class Pairs:
    """Pairs in memory: `Pair` objects, or tuples (a, b), (a, b, mask_a, mask_b) of paths.

    Attributes:
        masked: whether some images have a mask (True), and some have none (False).
        other: names of the columns that are carried through to the scores.

    Raises:
        RequestError: if there are no pairs.
    """

    def __init__(self, pairs: Iterable[Pair | Sequence[str | os.PathLike[str] | None]]) -> None:
        self._pairs = [pair if isinstance(pair, Pair) else _pair_of(pair) for pair in pairs]
        if not self._pairs:
            raise RequestError("there are no pairs")
        self.masked = {mask is not None for pair in self._pairs for _, mask in pair.files}
        self.other = tuple(dict.fromkeys(name for pair in self._pairs for name, _ in pair.other))

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    @property
    def files(self) -> Iterator[File]:
        """The images of all pairs, with their masks; images of several pairs recur."""
        return (file for pair in self for file in pair.files)

    @property
    def pictures(self) -> int:
        """The number of pictures on a page of the scores, with each reference once."""
        return len({pair.files[0] for pair in self}) + len(self)

    def windows(self, files: int) -> Iterator[list[Pair]]:
        """Split the pairs into runs that name at most `files` different images (a single pair may name two)."""
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


def _pair_of(paths: Sequence[str | os.PathLike[str] | None]) -> Pair:
    names = [None if path is None else os.fspath(path) for path in paths]
    if len(names) not in (2, 4) or names[0] is None or names[1] is None:
        raise RequestError(f"a pair is (a, b) or (a, b, mask_a, mask_b), got {tuple(paths)!r}")
    mask_a, mask_b = names[2:] or (None, None)
    return Pair(names[0], names[1], mask_a, mask_b)


class PairsFile(Pairs):
    """The pairs of a file, in its order; it is read once to check it, and again at each iteration.

    Args:
        path: CSV with columns a,b[,mask_a,mask_b], a header with other names of these, or none. Paths in it are
            relative to its folder. A pipe, which can be read only once, is copied to a temporary file.

    Attributes:
        masked: whether some images have a mask (True), and some have none (False).
        other: names of the columns that are carried through to the scores. A name that scores use already becomes
            `input_NAME`.

    Raises:
        RequestError: naming the file, and the pair that lacks an image, or two columns that mean the same.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._copy = path, path, None
        try:
            if path.is_char_device() or path.is_block_device():
                raise RequestError(f"cannot read {str(path)!r}: a device may have no end: give a file or a pipe")
            if path.exists() and not path.is_file():
                self._file, self._copy = _copied(path)
        except OSError as error:
            raise RequestError(f"cannot read {str(path)!r}: {error}") from error
        self._count, self.masked = 0, set[bool]()
        self.other: tuple[str, ...] = ()
        for pair in self:
            self._count += 1
            self.masked |= {mask is not None for _, mask in pair.files}
            if len(pair.other) > len(self.other):
                self.other = tuple(name for name, _ in pair.other)
        if not self._count:
            raise RequestError(f"{str(path)!r} holds no pairs")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Pair]:
        try:
            with self._file.open(newline="", encoding="utf-8-sig") as file:
                lines = (line for line in csv.reader(file) if any(cell.strip() for cell in line))
                yield from self._of(lines)
        except UnicodeDecodeError as error:
            raise RequestError(
                f"cannot read {str(self._path)!r}: it is not UTF-8 ({error}): save it as UTF-8"
            ) from error
        except (OSError, csv.Error) as error:
            raise RequestError(f"cannot read {str(self._path)!r}: {error}") from error

    def _of(self, lines: Iterator[list[str]]) -> Iterator[Pair]:
        number, header = 0, None
        for k, line in enumerate(lines):
            if k == 0 and (header := self._header(line)) is not None:
                continue
            number += 1
            names = header or [*_COLUMNS, *(f"column_{n}" for n in range(len(_COLUMNS) + 1, len(line) + 1))]
            yield self._pair(number, names, line)

    def _pair(self, number: int, names: Sequence[str], line: list[str]) -> Pair:
        if any(cell.strip() for cell in line[len(names) :]):
            raise RequestError(
                f"{str(self._path)!r}, pair {number} has {len(line)} cells, the header {len(names)}: quote cells that "
                "hold commas"
            )
        cells = dict(zip(names, line, strict=False))
        at = {name: str(self._path.parent / cells[name].strip())  # absolute paths stay
              for name in _COLUMNS if cells.get(name, "").strip()}  # fmt: skip
        if not {"a", "b"} <= at.keys():
            hint = "; separate columns by commas" if len(line) == 1 and re.search("[;\t|]", line[0]) else ""
            raise RequestError(f"{str(self._path)!r}, pair {number}: two image paths are needed, found {line}{hint}")
        other = tuple((name, cells.get(name, "")) for name in names if name not in _COLUMNS)
        return Pair(at["a"], at["b"], at.get("mask_a"), at.get("mask_b"), other)

    def _header(self, line: list[str]) -> list[str] | None:
        """Return the names of the columns, images and masks as in `_COLUMNS`; None if the line is not a header."""
        plain = [cell.strip().lower().replace("-", "_").replace(" ", "_") for cell in line]
        names = [_ALIASES.get(name, name) for name in plain]
        if not {"a", "b"} <= set(names):
            self._refuse_half_a_header(line, names)
            return None
        if "mask" in plain:
            if not set(plain) & set(_CANDIDATES):
                raise RequestError(
                    f"{str(self._path)!r}: the column 'mask' may belong to either image: call it mask_a or mask_b, and "
                    "name both if there are two"
                )
            names = ["mask_b" if name == "mask" else name for name in names]
        own: dict[str, str] = {}  # name -> header
        for number, (name, cell) in enumerate(zip(names, line, strict=True), 1):
            kept = name if name in _COLUMNS else _free(cell) if cell.strip() else f"column_{number}"
            if kept in own:
                raise RequestError(
                    f"{str(self._path)!r}: the columns {own[kept]!r} and {cell!r} mean the same: rename or remove one"
                )
            own[kept] = cell
        return list(own)

    def _refuse_half_a_header(self, line: list[str], names: list[str]) -> None:
        for side, other in (("a", "b"), ("b", "a")):
            if side not in names or other in names:
                continue
            cell = line[names.index(side)]
            if not (self._path.parent / cell.strip()).exists():
                raise RequestError(
                    f"{str(self._path)!r}: the header names the column {cell!r}, but none for the other image: call it "
                    f"{' or '.join(_SIDES[other])}"
                )


def _free(name: str) -> str:
    """Return the name under which a column is carried through: its own, unless scores have such a column."""
    while name in (*COLUMNS, *_COLUMNS):
        name = f"input_{name}"
    return name


def _copied(path: Path) -> tuple[Path, Any]:
    """Copy a pipe's content; returns the copy and its temporary folder."""
    folder = tempfile.TemporaryDirectory(prefix="idmetric-")
    copy, left = Path(folder.name) / "pairs.csv", MOST
    with path.open("rb") as source, copy.open("wb") as target:
        while data := source.read(min(left + 1, 2**20)):
            left -= len(data)
            if left < 0:  # a pipe may have no end either
                raise RequestError(f"{str(path)!r} has more than {MOST} bytes: give a file")
            target.write(data)
    return copy, folder
