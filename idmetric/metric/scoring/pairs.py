"""Pairs of images, from tuples or a CSV file."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from idmetric.metric.files.json_file import MOST
from idmetric.metric.files.tables import first_few
from idmetric.metric.files.typed import shown
from idmetric.metric.images.paths import InputError, existing, is_image
from idmetric.metric.scoring.scores import COLUMNS, File, RequestError

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


@dataclass(frozen=True)
class Pairs:
    """Pairs in order.

    Attributes:
        skipped: pairs without two images, by their place in the file, with the reason.
    """

    rows: list[Pair]
    skipped: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.rows)

    @property
    def files(self) -> list[File]:
        """The images of all pairs, with their masks; images of several pairs recur."""
        return [file for pair in self.rows for file in pair.files]

    @property
    def other(self) -> tuple[str, ...]:
        """Names of the columns that are carried through to the scores."""
        return tuple(dict.fromkeys(name for pair in self.rows for name, _ in pair.other))

    @property
    def pictures(self) -> int:
        """The number of pictures on a page of the scores, with each reference once."""
        return len({pair.files[0] for pair in self.rows}) + len(self.rows)


def pairs_of(pairs: Iterable[Pair | Mapping[Any, Any] | Sequence[str | os.PathLike[str] | None]]) -> Pairs:
    """Collect pairs: `Pair` objects, tuples (a, b) or (a, b, mask_a, mask_b) of paths, or rows with named columns.

    Args:
        pairs: a pandas DataFrame or dicts have columns named as in a file of pairs (`read_pairs`); other columns are
            carried through. Arrays hold a pair in each row.

    Raises:
        RequestError: naming the pair that is in none of these forms, or for no pairs.
    """
    if hasattr(pairs, "columns") and hasattr(pairs, "to_dict"):
        pairs = pairs.to_dict("records")  # of a DataFrame, which pandas need not be installed for
    rows = []
    for number, pair in enumerate(pairs, 1):
        if isinstance(pair, Mapping):
            pair = _pair_of_columns(pair, number)
        elif not isinstance(pair, Pair):
            pair = _pair_of_paths(pair, number)
        rows.append(pair)
    if not rows:
        raise RequestError("there are no pairs")
    return Pairs(rows)


def _pair_of_paths(pair: Any, number: int) -> Pair:
    paths = [] if isinstance(pair, str) or not isinstance(pair, Iterable) else list(pair)
    paths = [None if _is_empty(path) else path for path in paths]
    are_paths = all(isinstance(path, str | os.PathLike | None) for path in paths)
    if len(paths) not in (2, 4) or not are_paths or None in paths[:2]:
        raise RequestError(
            f"pair {number}: a pair is (a, b) or (a, b, mask_a, mask_b) of paths, or a dict or row of a DataFrame with "
            f"columns a and b, got {shown(pair)}"
        )
    a, b, mask_a, mask_b = (None if path is None else _existing(os.fspath(path)) for path in [*paths, None, None][:4])
    return Pair(str(a), str(b), mask_a, mask_b)


def _pair_of_columns(row: Mapping[Any, Any], number: int) -> Pair:
    try:
        names = _header([str(name) for name in row], Path())
    except RequestError as error:
        raise RequestError(f"pair {number}: {error}") from error
    cells = dict(zip(names or (), row.values(), strict=False))
    own = {name: cells.pop(name, None) for name in _COLUMNS}
    pair = _pair_of_paths([own[name] for name in _COLUMNS], number)
    other = tuple((name, "" if _is_empty(value) else str(value)) for name, value in cells.items())
    return replace(pair, other=other)


def _is_empty(cell: Any) -> bool:
    """Whether a cell of a table is empty: None, NaN as pandas marks it, or empty text."""
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def _existing(path: str) -> str:
    found = existing(path)
    other = path.replace("\\", "/")  # a table from Windows
    return found if other == path or os.path.lexists(found) else existing(other)


# Files


def read_pairs(path: Path, on_error: str = "fail") -> Pairs:
    """Read the pairs of a file, in its order.

    Args:
        path: CSV with columns a,b[,mask_a,mask_b], a header with other names of these, or none. Paths in it are
            relative to its folder; in a pipe, `-` (standard input) and what lies in /dev, to the working directory.
            Other columns are carried through; a name that scores use already becomes `input_NAME`.
        on_error: "skip" leaves out pairs that lack an image, see `Pairs.skipped`.

    Raises:
        RequestError: naming the file, and the pair that lacks an image, or two columns that mean the same.
    """
    try:
        lines = _lines(path)
        base = path.parent if path.is_file() and path.parts[:2] != ("/", "dev") else Path()
        header = _header(lines[0], base) if lines else None
        found = Pairs([])
        for number, line in enumerate(lines[header is not None :], 1):
            names = header or [*_COLUMNS, *(f"column_{n}" for n in range(len(_COLUMNS) + 1, len(line) + 1))]
            if any(cell.strip() for cell in line[len(names) :]):
                raise RequestError(f"pair {number} has {len(line)} cells, the header {len(names)}: quote cells that "
                                   "hold commas")  # fmt: skip
            cells = dict(zip(names, line, strict=False))
            at = {name: _existing(str(base / cells[name].strip()))  # absolute paths stay
                  for name in _COLUMNS if cells.get(name, "").strip()}  # fmt: skip
            if {"a", "b"} <= at.keys():
                other = tuple((name, cells.get(name, "")) for name in names if name not in _COLUMNS)
                found.rows.append(Pair(at["a"], at["b"], at.get("mask_a"), at.get("mask_b"), other))
            elif on_error == "skip" and len(line) > 1:
                found.skipped[f"{path}, pair {number}"] = f"two image paths are needed, found {line}"
            else:
                hint = "; separate columns by commas" if len(line) == 1 and re.search("[;\t|]", line[0]) else ""
                raise RequestError(f"pair {number}: two image paths are needed, found {line}{hint}")
        if not found.rows:
            raise RequestError("it holds no pairs")
    except (RequestError, InputError, UnicodeDecodeError, OSError, csv.Error) as error:
        hint = " (save it as UTF-8)" if isinstance(error, UnicodeDecodeError) else ""
        raise RequestError(f"cannot read {str(path)!r}: {error}{hint}") from error
    return found


def _lines(path: Path) -> list[list[str]]:
    """Return the cells of each line of a file or pipe that has any."""
    if str(path) == "-":
        data = sys.stdin.buffer.read(MOST + 1)
    else:
        with path.open("rb") as opened:
            data = opened.read(MOST + 1)
    if len(data) > MOST:
        raise RequestError(f"it has more than {MOST} bytes")
    text = data.decode("utf-8-sig")
    delimiter = ","
    if spreadsheet := re.match(r'"?sep=(.)"?[ \t]*\r?\n', text):  # a first line for spreadsheets
        delimiter, text = spreadsheet[1], text[spreadsheet.end() :]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    return [line for line in reader if any(cell.strip() for cell in line)]


def _header(line: list[str], base: Path) -> list[str] | None:
    """Return the names of the columns, images and masks as in `_COLUMNS`; None if the line is not a header."""
    plain = [cell.strip().lower().replace("-", "_").replace(" ", "_") for cell in line]
    for sides in (_SIDES, _MORE):
        aliases = _aliases(sides)
        names = [aliases.get(name, name) for name in plain]
        if {"a", "b"} <= set(names):
            break
    else:
        cells = [cell.strip() for cell in line if cell.strip()]
        if len(cells) > 1 and not any(is_image(cell) or (base / cell).is_file() for cell in cells):
            raise RequestError(
                f"{', '.join(map(shown, first_few(cells)))} name neither two images nor the columns of both: call one "
                f"column {', '.join(_MORE['a'])}, the other {', '.join(_MORE['b'])}"
            )
        return None
    if "mask" in plain:
        if not set(plain) & set(_CANDIDATES):
            raise RequestError("the column 'mask' may belong to either image: call it mask_a or mask_b, and name both "
                               "if there are two")  # fmt: skip
        names = ["mask_b" if name == "mask" else name for name in names]
    own: dict[str, str] = {}  # name -> header
    for number, (name, cell) in enumerate(zip(names, line, strict=True), 1):
        kept = name if name in _COLUMNS else cell if cell.strip() else f"column_{number}"
        while name not in _COLUMNS and kept in (*COLUMNS, *_COLUMNS):
            kept = f"input_{kept}"
        if kept in own:
            raise RequestError(f"the columns {own[kept]!r} and {cell!r} mean the same: rename or remove one")
        own[kept] = cell
    return list(own)
