"""The manifest: one table of images that every recipe, protocol and data step reads and writes.

A row is an image, or one use of it in a triplet: the place of its pixels, the identity it shows, and how it was made.
The extension of a file says whether it is Parquet, CSV or JSON lines. Image and mask paths in it are relative to its
folder.

    from idmetric.data.old_manifest.table import read
    manifest = read("photos.csv")
    dogs = manifest.filter(category="dog", role="real")
    dogs.write("dogs.parquet")
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from idmetric.data.old_manifest.arrow import pa
from idmetric.data.old_manifest.files import CHUNK, FORMATS, check_extension, read_table, write_table
from idmetric.data.old_manifest.schema import (
    COLUMNS,
    PATHS,
    ROLES,
    SCHEMA,
    SLOTS,
    TYPES,
    ManifestError,
    Row,
    array_of,
    checked,
    text_of,
)
from idmetric.data.old_manifest.twins import twins_note
from idmetric.data.split import split_name
from idmetric.metric.files import StrPath
from idmetric.tables import first_few

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

__all__ = [
    "COLUMNS",
    "FORMATS",
    "PATHS",
    "ROLES",
    "SCHEMA",
    "SLOTS",
    "Manifest",
    "ManifestError",
    "Row",
    "merge",
    "read",
]


class Manifest:
    """An immutable table of images: every change returns a new one.

    Args:
        table: columns of `SCHEMA` (missing ones become empty) and free columns, which are named `x_...`.
        root: folder of relative paths.
        name: of the file, for messages.

    Raises:
        ManifestError: if a value breaks the rules of `Row`; rows are counted from 1.
    """

    def __init__(self, table: pa.Table, root: StrPath = ".", name: str = "manifest") -> None:
        self.root = Path(root)
        self.table = checked(table, name)

    @classmethod
    def from_rows(cls, rows: Iterable[Row], root: StrPath = ".", name: str = "manifest") -> Manifest:
        """A manifest of these rows."""
        remaining = iter(rows)
        tables = [SCHEMA.empty_table()]
        count = 0
        while chunk := list(islice(remaining, CHUNK)):
            columns = {}
            for column in COLUMNS:
                values = [getattr(row, column) for row in chunk]
                columns[column] = array_of(values, column, name, count)
            tables.append(pa.table(columns, schema=SCHEMA))
            count += len(chunk)
        return cls(pa.concat_tables(tables), root, name)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> Row:
        return next(iter(self.take([range(len(self))[index]])))

    def __iter__(self) -> Iterator[Row]:
        for batch in self.table.select(COLUMNS).to_batches(max_chunksize=CHUNK):
            for values in batch.to_pylist():
                if values["parameters"] is not None:
                    values["parameters"] = json.loads(values["parameters"])
                yield Row(**values)

    def __repr__(self) -> str:
        identities = set(self.column("identity")) - {None}
        return f"Manifest({len(self)} rows, {len(identities)} identities, root={str(self.root)!r})"

    def column(self, name: str) -> list[Any]:
        """Values of a column as a list; parameters are JSON text."""
        return cast("list[Any]", self.table[name].to_pylist())

    def take(self, rows: Sequence[int] | NDArray[Any]) -> Manifest:
        """The rows of these numbers in this order, or the rows where a boolean mask is true."""
        chosen = np.asarray(rows)
        if chosen.dtype == bool:
            chosen = np.flatnonzero(chosen)
        return self._with(self.table.take(pa.array(chosen, pa.int64())))

    def filter(self, keep: Callable[[Row], bool] | None = None, **values: Any) -> Manifest:
        """The rows with these values in their columns (one of several, or None for empty) that `keep` accepts.

        `manifest.filter(role="real", dataset=("MET", "ILIAS"), mask=None)`
        """
        chosen = np.ones(len(self), dtype=bool)
        for name, wanted in values.items():
            is_several = isinstance(wanted, list | tuple | set | frozenset)
            options = set(wanted) if is_several else {wanted}
            if TYPES.get(name) == pa.string():
                options = {text_of(option) for option in options}
            if name == "split":
                options = {option and split_name(option) for option in options}
            fits = [value in options for value in self.column(name)]
            chosen &= np.array(fits, dtype=bool)
        manifest = self.take(chosen)
        if keep is None:
            return manifest
        fits = [keep(row) for row in manifest]
        return manifest.take(np.array(fits, dtype=bool))

    def replace(self, **columns: Sequence[Any] | Any) -> Manifest:
        """The manifest with these columns replaced by a sequence of one value per row, or by one value for all rows."""
        arrays = self._columns
        for name, values in columns.items():
            is_text = isinstance(values, str | bytes)
            if is_text or not isinstance(values, Sequence | np.ndarray):
                values = [values] * len(self)
            if len(values) != len(self):
                raise ValueError(f"{len(values)} values of {name} for {len(self)} rows")
            arrays[name] = array_of(list(values), name, "manifest")

        table = pa.table(arrays)
        if all(name.startswith("x_") for name in columns):  # no rules apply to free columns
            return self._with(table)
        return Manifest(table, self.root)

    def source(self, index: int, column: str = "path") -> str | bytes | None:
        """The path, including `root`, or the bytes of a row's image, mask or part_mask; None if it is empty."""
        data: bytes | None = self.table[PATHS[column]][index].as_py()
        path = self.table[column][index].as_py()
        return data if path is None else str(self.root / path)

    def sources(self, column: str = "path") -> list[str | bytes | None]:
        """`source` of every row."""
        return [self.source(index, column) for index in range(len(self))]

    def image(self, index: int) -> Image.Image:
        """The image of a row, RGB.

        Raises:
            idmetric.ImageReadError: naming the file, if it cannot be read, or the row, if it is a text alone.
        """
        from idmetric.metric.images import ImageReadError, read_image

        source = self.source(index)
        if source is None:
            raise ImageReadError(f"row {index + 1}", "it is a text without an image")
        return read_image(source)

    def mask(self, index: int, size: tuple[int, int] | None = None, column: str = "mask") -> Tensor | None:
        """The mask of a row, (H, W) coverage in [0, 1], scaled to `size` (height, width); None if it is empty."""
        from idmetric.metric.masks import read_mask

        source = self.source(index, column)
        return None if source is None else read_mask(source, size)

    def at(self, root: StrPath) -> Manifest:
        """The same manifest with paths relative to another folder."""
        old, new = self.root.resolve(), Path(root).resolve()
        arrays = self._columns
        for name in PATHS:
            paths = [_moved(path, old, new) for path in self.column(name)]
            arrays[name] = pa.array(paths, pa.string())
        return self._with(pa.table(arrays), root)

    def write(self, path: StrPath) -> None:
        """Write a .parquet, .csv or .jsonl file atomically; paths become relative to its folder.

        Raises:
            ManifestError: for another ending, or a column that the format cannot hold, such as bytes in text.
            OutputError: if it cannot be written.
        """
        path = Path(path)
        check_extension(path)
        write_table(self.at(path.parent).table, path)

    @property
    def _columns(self) -> dict[str, Any]:
        return dict(zip(self.table.column_names, self.table.columns, strict=True))

    def _with(self, table: pa.Table, root: StrPath | None = None) -> Manifest:
        """A manifest of already checked rows."""
        manifest = Manifest.__new__(Manifest)
        manifest.root = self.root if root is None else Path(root)
        manifest.table = table
        return manifest


def read(path: StrPath) -> Manifest:
    """The manifest in a .parquet, .csv or .jsonl file.

    CSV and JSON lines may omit columns and ids. An empty CSV field is an empty value, and free columns (x_...) of a CSV
    file hold text.

    Raises:
        ManifestError: naming the file, rows and columns at fault.
    """
    path = Path(path)
    manifest = Manifest(read_table(path), path.parent, str(path))
    warn_of_twins(manifest)
    return manifest


def warn_of_twins(manifest: Manifest) -> None:
    """Warn of identities with names that differ by case, spaces or the coding of accents alone."""
    note = twins_note(manifest.column("identity"))
    if note is not None:
        warnings.warn(note, stacklevel=3)


def merge(manifests: Sequence[Manifest], shared: bool = False) -> Manifest:
    """One manifest of several, paths relative to the first's folder.

    Args:
        shared: equal identity and group names in two manifests name the same identity and group. Otherwise they are
            refused, because two datasets with a name such as "0001" rarely mean the same subject.

    Raises:
        ManifestError: naming ids, identities or groups that occur twice, or a free column of two types.
    """
    for name in ("id",) if shared else ("id", "identity", "group"):
        counts: Counter[str] = Counter()
        for manifest in manifests:
            counts.update(set(manifest.column(name)) - {None})
        clashes = [repr(value) for value, count in counts.items() if count > 1]
        if clashes:
            advice = "" if name == "id" else ", or say they are shared"
            raise ManifestError(
                f"{len(clashes)} {name} values are in more than one manifest: {', '.join(first_few(sorted(clashes)))}; "
                f"prefix them with the dataset's name{advice}"
            )

    root = manifests[0].root
    try:
        table = pa.concat_tables([manifest.at(root).table for manifest in manifests], promote_options="default")
    except pa.ArrowException as error:
        raise ManifestError(f"a free column holds different kinds of values in the manifests: {error}") from error
    return Manifest(table, root)


def _moved(path: str | None, old: Path, new: Path) -> str | None:
    """A path relative to one folder as a path relative to another."""
    if path is None or (old == new and not os.path.isabs(path)):
        return path
    try:
        return Path(os.path.relpath(old / path, new)).as_posix()
    except ValueError:  # another drive of Windows
        return (old / path).as_posix()
