"""Pairs of images, from tuples or a CSV file."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.errors import RequestError
from idmetric.metric.files import MOST_BYTES, shown
from idmetric.metric.paths import is_image, with_slashes
from idmetric.scoring.in_memory import ImageInMemory
from idmetric.scoring.scores import COLUMNS, File
from idmetric.tables import TableError, first_few, plain_name, read_cells

if TYPE_CHECKING:
    from idmetric.metric.images import ImageLike

_SIDES: dict[str, tuple[str, ...]] = {"a": ("a", "image_a", "ref", "reference"), "b": ("b", "image_b", "gen", "image")}
# read as images only where the names above do not name both: other tables keep facts in such columns
_MORE: dict[str, tuple[str, ...]] = {
    "a": (*_SIDES["a"], "image1", "image_1", "source", "ref_path", "ref_image", "reference_path", "reference_image"),
    "b": (
        *_SIDES["b"],
        "image2",
        "image_2",
        "target",
        "generated",
        "gen_path",
        "gen_image",
        "generated_path",
        "generated_image",
    ),
}
_CANDIDATES = ("gen", "image")  # only with these headers a column `mask` belongs to one of the images
_COLUMNS = ("a", "b", "mask_a", "mask_b")  # without a header
_NAMES = {"a": "reference", "b": "image", "mask_a": "mask_a", "mask_b": "mask_b"}  # of images in memory


def _aliases(sides: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Map headers of images and masks to `_COLUMNS`."""
    aliases = {}
    for side, names in sides.items():
        for name in names:
            aliases[name] = side
            aliases[f"mask_{name}"] = f"mask_{side}"
            aliases[f"{name}_mask"] = f"mask_{side}"
    return aliases


@dataclass(frozen=True)
class Pair:
    """Two images to compare, with their masks, and the other columns of their line; paths, or `ImageInMemory`."""

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
        files: list[File] = []
        for pair in self.rows:
            files += pair.files
        return files

    @property
    def other(self) -> tuple[str, ...]:
        """Names of the columns that are carried through to the scores."""
        names: dict[str, str] = {}
        for pair in self.rows:
            names |= dict(pair.other)
        return tuple(names)

    @property
    def pictures(self) -> int:
        """The number of pictures on a page of the scores, with each reference once."""
        return len({pair.files[0] for pair in self.rows}) + len(self.rows)


def pairs_of(pairs: Iterable[Pair | Mapping[Any, Any] | Sequence[ImageLike | None]]) -> Pairs:
    """Collect pairs: `Pair` objects, tuples (a, b) or (a, b, mask_a, mask_b) of images, or rows with named columns.

    The images in memory of the fourth pair are called reference[3] and image[3]; one object in several pairs is one
    image, with its first name.

    Args:
        pairs: a pandas DataFrame or dicts have columns named as in a file of pairs (`read_pairs`); other columns are
            carried through. Arrays hold a pair in each row.

    Raises:
        RequestError: naming the pair that is in none of these forms, or for no pairs.
    """
    if hasattr(pairs, "columns") and hasattr(pairs, "to_dict"):
        pairs = pairs.to_dict("records")  # of a DataFrame, which pandas need not be installed for
    rows = []
    images: dict[int, ImageInMemory] = {}  # by the address of the object
    for number, pair in enumerate(pairs, 1):
        try:
            rows.append(_pair_of(pair, number - 1, images))
        except (RequestError, TypeError) as error:
            raise RequestError(
                f"pair {number}: {error}; a pair is (a, b) or (a, b, mask_a, mask_b) of images, or a dict or row of a "
                f"DataFrame with columns a and b, got {shown(pair)}"
            ) from error
    if not rows:
        raise RequestError("there are no pairs")
    return Pairs(rows)


def _pair_of(pair: Any, index: int, images: dict[int, ImageInMemory]) -> Pair:
    from idmetric.metric.images import is_image_like

    if isinstance(pair, Pair):
        return pair
    if isinstance(pair, str):
        raise RequestError("text is no pair")
    names: Sequence[str] = _COLUMNS
    cells = pair
    if isinstance(pair, Mapping):
        names = _header([str(name) for name in pair], Path()) or ()
        cells = pair.values()

    entries = []
    for name, cell in zip_longest(names, cells):
        if name in _COLUMNS and is_image_like(cell) and not isinstance(cell, str | os.PathLike):
            image_name = f"{_NAMES[name]}[{index}]"
            cell = images.setdefault(id(cell), ImageInMemory(image_name, cell))
        entries.append(cell)
    return _pair(entries, names, Path())


def _pair(cells: Sequence[Any], names: Sequence[str], folder: Path) -> Pair:
    """The pair in the cells of these columns; TypeError for other objects."""
    if not all(map(_is_empty, cells[len(names) :])):
        raise RequestError(f"{len(cells)} cells for {len(names)} columns: quote cells that hold commas")
    values = dict(zip(names, cells, strict=False))
    paths = []
    for column in _COLUMNS:
        cell = values.pop(column, None)
        if not isinstance(cell, ImageInMemory):
            cell = None if _is_empty(cell) else with_slashes(str(folder / cell))
        paths.append(cell)
    a, b, mask_a, mask_b = paths
    if a is None or b is None:
        raise RequestError(f"two images are needed (separate columns by commas), found {shown(cells)}")

    other = []
    for name in names:
        if name not in _COLUMNS:
            value = values.get(name)
            other.append((name, "" if _is_empty(value) else str(value)))
    return Pair(a, b, mask_a, mask_b, tuple(other))


def _is_empty(cell: Any) -> bool:
    """Whether a cell of a table is empty: None, NaN as pandas marks it, or empty text."""
    return cell is None or (isinstance(cell, str) and not cell) or (isinstance(cell, float) and math.isnan(cell))


# Files


def read_pairs(path: Path, on_error: str = "fail") -> Pairs:
    """Read the pairs of a file, in its order.

    Args:
        path: a table with columns a,b[,mask_a,mask_b], a header with other names of these, or none. Paths in it are
            relative to its folder; in a pipe, `-` (standard input) and what lies in /dev, to the working directory.
            Other columns are carried through; a name that scores use already becomes `input_NAME`.
        on_error: "skip" leaves out pairs that lack an image, see `Pairs.skipped`.

    Raises:
        RequestError: naming the file, and the pair that lacks an image, or two columns that mean the same.
    """
    pairs = Pairs([])
    try:
        lines = _lines(path)
        folder = path.parent if path.is_file() and path.parts[:2] != ("/", "dev") else Path()
        names = _header(lines[0], folder) if lines else None
        if names is None:
            more = range(len(_COLUMNS), max(map(len, lines), default=0))
            names = [*_COLUMNS, *(f"column_{column + 1}" for column in more)]
        else:
            lines = lines[1:]

        for number, line in enumerate(lines, 1):
            try:
                pairs.rows.append(_pair(line, names, folder))
            except RequestError as error:
                if on_error != "skip" or len(line) == 1:
                    raise RequestError(f"pair {number}: {error}") from error
                pairs.skipped[f"{path}, pair {number}"] = str(error)
        if not pairs.rows:
            raise RequestError("it holds no pairs")
    except (RequestError, TableError, OSError) as error:
        raise RequestError(f"cannot read {str(path)!r}: {error}") from error
    return pairs


def _lines(path: Path) -> list[list[str]]:
    """Return the cells of each line of a file or pipe that has any."""
    with sys.stdin.buffer if str(path) == "-" else path.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise RequestError(f"it has more than {MOST_BYTES} bytes")
    return [row.cells for row in read_cells(data)]


def _header(line: list[str], base: Path) -> list[str] | None:
    """Return the names of the columns, images and masks as in `_COLUMNS`; None if the line is not a header."""
    plain = [plain_name(cell) for cell in line]
    for sides in (_SIDES, _MORE):
        aliases = _aliases(sides)
        names = [aliases.get(name, name) for name in plain]
        if {"a", "b"} <= set(names):
            break
    else:
        cells = [cell for cell in line if cell]
        if len(cells) > 1 and not any(is_image(cell) or (base / cell).is_file() for cell in cells):
            raise RequestError(
                f"{', '.join(map(shown, first_few(cells)))} name neither two images nor the columns of both: call one "
                f"column {', '.join(_MORE['a'])}, the other {', '.join(_MORE['b'])}"
            )
        return None
    if "mask" in plain:
        if not set(plain) & set(_CANDIDATES):
            raise RequestError(
                "the column 'mask' may belong to either image: call it mask_a or mask_b, and name both if there are two"
            )
        names = ["mask_b" if name == "mask" else name for name in names]

    headers: dict[str, str] = {}  # name -> as the file calls it
    for number, (name, cell) in enumerate(zip(names, line, strict=True), 1):
        if name not in _COLUMNS:
            name = cell or f"column_{number}"
            while name in (*COLUMNS, *_COLUMNS):
                name = f"input_{name}"
        if name in headers:
            raise RequestError(f"the columns {headers[name]!r} and {cell!r} mean the same: rename or remove one")
        headers[name] = cell
    return list(headers)
