"""Pairs of images: in memory, or in a CSV file that is read a line at a time, however many there are."""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.images.paths import InputError, existing, is_image
from idmetric.io.json_file import MOST
from idmetric.scoring.scores import COLUMNS, File, RequestError

_SIDES: dict[str, tuple[str, ...]] = {"a": ("a", "image_a", "ref", "reference"), "b": ("b", "image_b", "gen", "image")}
_KINDS = ("path", "image")
# read as images only where the names above do not name both: other tables keep facts in such columns
_MORE: dict[str, tuple[str, ...]] = {
    "a": (*_SIDES["a"], "image1", "image_1", "source", *(f"{x}_{y}" for x in ("ref", "reference") for y in _KINDS)),
    "b": (*_SIDES["b"], "image2", "image_2", "target", "generated",
          *(f"{x}_{y}" for x in ("gen", "generated") for y in _KINDS)),
}  # fmt: skip
_CANDIDATES = ("gen", "image")  # only with these headers a column `mask` belongs to one of the images
_COLUMNS = ("a", "b", "mask_a", "mask_b")  # without a header


def _aliases(sides: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Map headers of images and masks to `_COLUMNS`."""
    found = {name: side for side, names in sides.items() for name in names}
    for side, names in sides.items():
        found |= {mask: f"mask_{side}" for name in names for mask in (f"mask_{name}", f"{name}_mask")}
    return found


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
        skipped: pairs without two images, by their place in the file, with the reason.

    Raises:
        RequestError: if there are no pairs.
    """

    def __init__(self, pairs: Iterable[Pair | Sequence[str | os.PathLike[str] | None]]) -> None:
        self.skipped: dict[str, str] = {}
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


def _pair_of(paths: Sequence[str | os.PathLike[str] | None]) -> Pair:
    names = [None if path is None else os.fspath(path) for path in paths]
    if len(names) not in (2, 4) or names[0] is None or names[1] is None:
        raise RequestError(f"a pair is (a, b) or (a, b, mask_a, mask_b), got {tuple(paths)!r}")
    a, b, *masks = (None if name is None else _existing(name) for name in names)
    mask_a, mask_b = masks or (None, None)
    return Pair(str(a), str(b), mask_a, mask_b)


def _existing(path: str) -> str:
    try:
        found = existing(path)
        other = path.replace("\\", "/")  # a table from Windows
        return found if other == path or os.path.lexists(found) else existing(other)
    except InputError as error:
        raise RequestError(str(error)) from error


class PairsFile(Pairs):
    """The pairs of a file, in its order; it is read once to check it, and again at each iteration.

    Args:
        path: CSV with columns a,b[,mask_a,mask_b], a header with other names of these, or none. Paths in it are
            relative to its folder. A pipe, `-` (standard input) and what lies in /dev are copied to a temporary file,
            and their paths are relative to the working directory.
        on_error: "skip" leaves out pairs that lack an image, see `skipped`.

    Attributes:
        masked: whether some images have a mask (True), and some have none (False).
        other: names of the columns that are carried through to the scores. A name that scores use already becomes
            `input_NAME`.

    Raises:
        RequestError: naming the file, and the pair that lacks an image, or two columns that mean the same.
    """

    def __init__(self, path: Path, on_error: str = "fail") -> None:
        self._path, self._file, self._base, self._copy = path, path, path.parent, None
        self._skips, self.skipped = on_error == "skip", {}
        try:
            if path.is_char_device() or path.is_block_device():
                raise RequestError(f"cannot read {str(path)!r}: a device may have no end: give a file or a pipe")
            if str(path) == "-" or path.parts[:2] == ("/", "dev") or (path.exists() and not path.is_file()):
                self._file, self._copy = _copied(path)
                self._base = Path()
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
                separator = re.fullmatch(r'"?sep=(.)"?\s*', file.readline(16))  # as Excel writes it
                if separator is None:
                    file.seek(0)
                cells = csv.reader(file, delimiter=separator[1] if separator else ",", skipinitialspace=True)
                yield from self._of(line for line in cells if any(cell.strip() for cell in line))
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
            pair = self._pair(number, names, line)
            if pair is not None:
                yield pair

    def _pair(self, number: int, names: Sequence[str], line: list[str]) -> Pair | None:
        if any(cell.strip() for cell in line[len(names) :]):
            raise RequestError(
                f"{str(self._path)!r}, pair {number} has {len(line)} cells, the header {len(names)}: quote cells that "
                "hold commas"
            )
        cells = dict(zip(names, line, strict=False))
        at = {name: _existing(str(self._base / cells[name].strip()))  # absolute paths stay
              for name in _COLUMNS if cells.get(name, "").strip()}  # fmt: skip
        if not {"a", "b"} <= at.keys():
            if self._skips and len(line) > 1:
                self.skipped[f"{self._path}, pair {number}"] = f"two image paths are needed, found {line}"
                return None
            hint = "; separate columns by commas" if len(line) == 1 and re.search("[;\t|]", line[0]) else ""
            raise RequestError(f"{str(self._path)!r}, pair {number}: two image paths are needed, found {line}{hint}")
        other = tuple((name, cells.get(name, "")) for name in names if name not in _COLUMNS)
        return Pair(at["a"], at["b"], at.get("mask_a"), at.get("mask_b"), other)

    def _header(self, line: list[str]) -> list[str] | None:
        """Return the names of the columns, images and masks as in `_COLUMNS`; None if the line is not a header."""
        plain = [cell.strip().lower().replace("-", "_").replace(" ", "_") for cell in line]
        for sides in (_SIDES, _MORE):
            aliases = _aliases(sides)
            names = [aliases.get(name, name) for name in plain]
            if {"a", "b"} <= set(names):
                break
        else:
            self._refuse_other_headers(line)
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

    def _refuse_other_headers(self, line: list[str]) -> None:
        """Refuse a first line in which no cell ends as an image does, or is the name of a file."""
        cells = [cell.strip() for cell in line if cell.strip()]
        if len(cells) > 1 and not any(is_image(cell) or (self._base / cell).is_file() for cell in cells):
            raise RequestError(
                f"{str(self._path)!r}: the first line ({', '.join(map(repr, cells))}) names neither two images nor the "
                f"columns of both: call one {', '.join(_MORE['a'])}, the other {', '.join(_MORE['b'])}"
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
    opened = nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb")
    with opened as source, copy.open("wb") as target:
        while data := source.read(min(left + 1, 2**20)):
            left -= len(data)
            if left < 0:  # a pipe may have no end either
                raise RequestError(f"{str(path)!r} has more than {MOST} bytes: give a file")
            target.write(data)
    return copy, folder
