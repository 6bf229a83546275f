"""The manifest: one table of images that every recipe, protocol and data step reads and writes.

A row is an image (or a use of it in a triplet): where its pixels are, whose identity it shows, and what made it. Files
are Parquet, CSV or JSON lines, by their ending; image and mask paths in them are relative to the file's folder.

    from idmetric.data.manifest.table import read
    manifest = read("photos.csv")
    dogs = manifest.filter(category="dog", role="real")
    dogs.write("dogs.parquet")
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from idmetric.io.hints import install

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv
    import pyarrow.parquet
except ImportError as error:  # pragma: no cover
    raise ImportError(f"manifests need pyarrow: {install('data')}") from error

from idmetric.data.manifest.values import (
    SHOWN,
    as_array,
    casts,
    dump_all,
    free_array,
    is_binary,
    is_object,
    objects,
    plain,
    refuse_rows,
    short,
    why,
)
from idmetric.data.manifest.values import ManifestError as ManifestError  # part of this module
from idmetric.io.output import replacing, writing

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

ROLES = ("real", "context-edit", "identity-edit", "distractor", "part-edit")
SLOTS = ("anchor", "positive", "negative", "query", "candidate", "left", "right")
FORMATS = (".parquet", ".csv", ".jsonl")
_CHUNK = 4096  # rows held as objects at once


@dataclass(frozen=True)
class Row:
    """One image of a manifest. Empty values are None.

    Attributes:
        identity: whose it is: equal exactly for images of the same thing, over all datasets of the manifest; empty
            where it is unknown or the image shows no thing (a background).
        path, image_bytes: the image: a file, relative to the manifest's folder, or its encoded bytes. One of the two.
        id: names the row, unique; made of group, slot and path (or the bytes' hash) where it isn't given.
        dataset: where it came from. split: such as train, val, test.
        domain: such as animals, products. category: such as dog, mug.
        mask, mask_bytes: the object, see `idmetric.images.masks`. part_mask, part_mask_bytes: its edited part.
        role: one of `ROLES`: real (a photo or a rendering), context-edit (the parent's identity in another context),
            identity-edit and distractor (another identity in the parent's context), part-edit (a part is changed).
        background: id of the background. engine: what generated the image.
        oracle: 1 - |part| / |object| in 0..1, the share of the object that an edit left (NearID, section 3.4).
        text: instruction, prompt or caption.
        label: a human or model judgement of this row within its group; its meaning is the dataset's.
        group, slot: rows with one group belong together (a pair, a triplet, a query with candidates); slot is the
            row's place in it, one of `SLOTS`.
        parent: id of the row that this one was made from.
        seed, parameters: what else made it.
    """

    identity: str | None
    path: str | None = None
    image_bytes: bytes | None = None
    id: str = ""
    dataset: str | None = None
    split: str | None = None
    domain: str | None = None
    category: str | None = None
    mask: str | None = None
    mask_bytes: bytes | None = None
    part_mask: str | None = None
    part_mask_bytes: bytes | None = None
    role: str = "real"
    background: str | None = None
    engine: str | None = None
    oracle: float | None = None
    text: str | None = None
    label: float | None = None
    group: str | None = None
    slot: str | None = None
    parent: str | None = None
    seed: int | None = None
    parameters: Mapping[str, Any] | None = None


_TYPES = {
    **{f.name: pa.string() for f in fields(Row)},
    "image_bytes": pa.large_binary(), "mask_bytes": pa.large_binary(), "part_mask_bytes": pa.large_binary(),
    "oracle": pa.float64(), "label": pa.float64(), "seed": pa.int64(),
}  # fmt: skip
SCHEMA = pa.schema(_TYPES.items(), metadata={"idmetric.manifest": "1"})
COLUMNS = tuple(SCHEMA.names)
PATHS = ("path", "mask", "part_mask")


class Manifest:
    """A table of images, immutable: every change gives a new one.

    Args:
        table: the columns of `SCHEMA`; columns left out are empty. Free columns start with `x_`.
        root: folder that relative paths start from.
        name: of the file, for messages.

    Raises:
        ManifestError: if a value breaks the rules of `Row`; rows are counted from 1.
    """

    def __init__(self, table: pa.Table, root: str | os.PathLike[str] = ".", name: str = "manifest") -> None:
        self.root = Path(root)
        self.table = _checked(_typed(table, name), name)

    @classmethod
    def from_rows(cls, rows: Iterable[Row], root: str | os.PathLike[str] = ".", name: str = "manifest") -> Manifest:
        """A manifest of these rows."""
        given, parts, count = iter(rows), [SCHEMA.empty_table()], 0
        while chunk := list(islice(given, _CHUNK)):
            parts.append(_table(chunk, name, count))
            count += len(chunk)
        return cls(pa.concat_tables(parts), root, name)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> Row:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a manifest of {len(self)} rows")
        return next(iter(self.take([index % len(self)])))

    def __iter__(self) -> Iterator[Row]:
        names = [c for c in self.table.column_names if c in COLUMNS]
        for batch in self.table.select(names).to_batches(max_chunksize=4096):
            for values in batch.to_pylist():
                if values["parameters"] is not None:
                    values["parameters"] = json.loads(values["parameters"])
                yield Row(**values)

    def __repr__(self) -> str:
        identities = set(self.column("identity")) - {None}
        return f"Manifest({len(self)} rows, {len(identities)} identities, root={str(self.root)!r})"

    def column(self, name: str) -> list[Any]:
        """Values of a column as a list; parameters are JSON text."""
        if name not in self.table.column_names:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.table.column_names)}")
        return cast("list[Any]", self.table[name].to_pylist())

    def take(self, rows: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> Manifest:
        """The rows of these numbers in this order, or where a boolean mask is true."""
        chosen = np.asarray(rows)
        if chosen.dtype == bool:
            if len(chosen) != len(self):
                raise ValueError(f"a mask of {len(chosen)} values for a manifest of {len(self)} rows")
            chosen = np.flatnonzero(chosen)
        return self._with(self.table.take(pa.array(chosen.astype(np.int64))))

    def filter(self, keep: Callable[[Row], bool] | None = None, **values: Any) -> Manifest:
        """The rows whose columns have these values (or one of several, or None for empty), and that `keep` accepts.

        `manifest.filter(role="real", dataset=("MET", "ILIAS"), mask=None)`
        """
        chosen = np.ones(len(self), dtype=bool)
        for name, wanted in values.items():
            if name not in self.table.column_names:
                raise KeyError(f"no column {name!r}; there are {', '.join(self.table.column_names)}")
            options = set(wanted) if isinstance(wanted, list | tuple | set | frozenset) else {wanted}
            chosen &= np.array([value in options for value in self.column(name)], dtype=bool)
        kept = self.take(chosen)
        return kept.take(np.array([keep(row) for row in kept], dtype=bool)) if keep else kept

    def replace(self, **columns: Sequence[Any] | Any) -> Manifest:
        """With these columns replaced: a sequence of one value for each row, or one value for all."""
        table = self.table
        for name, given in columns.items():
            values = _each(given) if _is_sequence(given) else [given] * len(self)
            if len(values) != len(self):
                raise ValueError(f"{len(values)} values of {name} for {len(self)} rows")
            if name == "parameters":
                values = dump_all(values, "manifest")
            array = (
                as_array(values, _TYPES[name], name, "manifest")
                if name in COLUMNS
                else free_array(values, name, "manifest")
            )
            at = table.column_names.index(name) if name in table.column_names else -1
            table = table.append_column(name, array) if at < 0 else table.set_column(at, name, array)
        if all(name.startswith("x_") for name in columns):  # no rule is about these
            return self._with(table)
        return Manifest(table, self.root)

    def source(self, index: int, column: str = "path") -> str | bytes | None:
        """The image (or `column="mask"`, `"part_mask"`) of a row: its path from here, or its bytes; None if empty."""
        if column not in PATHS:
            raise KeyError(f"{column!r} holds no files; {', '.join(PATHS)} do")
        data = self.table["image_bytes" if column == "path" else f"{column}_bytes"][index].as_py()
        if data is not None:
            return bytes(data)
        path = self.table[column][index].as_py()
        return None if path is None else str(self.root / path)

    def sources(self, column: str = "path") -> list[str | bytes | None]:
        """`source` of every row."""
        return [self.source(i, column) for i in range(len(self))]

    def image(self, index: int) -> Image.Image:
        """The image of a row, RGB.

        Raises:
            idmetric.ImageReadError: naming the file, if it cannot be read.
        """
        from idmetric.images.read import read_image

        return read_image(cast("str | bytes", self.source(index)))

    def mask(self, index: int, size: tuple[int, int] | None = None, column: str = "mask") -> Tensor | None:
        """The mask of a row, (H, W) coverage in [0, 1], scaled to `size` (height, width); None if it has none."""
        from idmetric.images.masks import read_mask

        source = self.source(index, column)
        return None if source is None else read_mask(source, size)

    def at(self, root: str | os.PathLike[str]) -> Manifest:
        """The same images with paths relative to another folder."""
        here, there = self.root.resolve(), Path(root).resolve()
        table = self.table
        for name in PATHS:
            if here == there and not any(p is not None and os.path.isabs(p) for p in self.column(name)):
                continue
            moved = [None if p is None else _relative(here / p, there) for p in self.column(name)]
            table = table.set_column(table.column_names.index(name), name, pa.array(moved, pa.string()))
        return self._with(table, root)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .parquet, .csv or .jsonl file, whole or not at all; paths become relative to its folder.

        Raises:
            ManifestError: for another ending, or a column that the format cannot hold, such as bytes in text.
            OutputError: if it cannot be written.
        """
        path = Path(path)
        _check_ending(path)
        table = self.at(path.parent).table
        if path.suffix != ".parquet":
            # columns without a value say nothing
            table = table.select([n for n in table.column_names if table[n].null_count < len(table) or n == "identity"])
            _check_text(table, path)
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            if path.suffix == ".parquet":
                pyarrow.parquet.write_table(table.replace_schema_metadata(SCHEMA.metadata), temporary)
            elif path.suffix == ".csv":
                pyarrow.csv.write_csv(table, temporary)
            else:
                _write_lines(table, temporary, str(path))

    def _with(self, table: pa.Table, root: str | os.PathLike[str] | None = None) -> Manifest:
        """A manifest of already checked rows."""
        new = Manifest.__new__(Manifest)
        new.root, new.table = self.root if root is None else Path(root), table
        return new


def read(path: str | os.PathLike[str]) -> Manifest:
    """The manifest in a .parquet, .csv or .jsonl file.

    CSV and JSON lines may leave columns out and need no ids; an empty CSV field is an empty value. What a CSV file
    holds in free columns (x_...) stays text.

    Raises:
        ManifestError: naming the file, rows and columns that are wrong.
    """
    path = Path(path)
    _check_ending(path)
    if not path.is_file():
        raise ManifestError(f"{path}: no such file")
    try:
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
            table.validate(full=True)  # also that texts are UTF-8, which is taken on trust so far
        elif path.suffix == ".csv":
            table = _read_csv(path)
        else:
            table = _read_lines(path)
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8"
        ) from error
    except (pa.ArrowException, OSError, csv.Error) as error:
        raise ManifestError(f"{path}: not readable as {path.suffix[1:]}: {error}") from error
    return Manifest(table, path.parent, str(path))


def merge(manifests: Sequence[Manifest], shared: bool = False) -> Manifest:
    """One manifest of several, paths relative to the first's folder.

    Args:
        shared: equal identity and group names in two manifests mean the same thing. Otherwise they are refused, since
            two datasets that both call something "0001" rarely mean it.

    Raises:
        ManifestError: naming ids, identities or groups that occur twice, or a free column of two kinds.
    """
    if not manifests:
        raise ValueError("merge needs at least one manifest")
    for name in ("id",) if shared else ("id", "identity", "group"):
        owner: dict[str, int] = {}
        clashes = []
        for k, manifest in enumerate(manifests):
            for value in dict.fromkeys(manifest.column(name)):
                if value is not None and owner.setdefault(value, k) != k:
                    clashes.append(value)
        if clashes:
            way = "prefix them with the dataset's name" + ("" if name == "id" else ", or say they are shared")
            listed = ", ".join(repr(c) for c in clashes[:SHOWN])
            raise ManifestError(f"{len(clashes)} {name} values are in more than one manifest: {listed}; {way}")
    root = manifests[0].root
    try:
        table = pa.concat_tables([m.at(root).table for m in manifests], promote_options="default")
    except pa.ArrowException as error:
        raise ManifestError(f"a free column holds different kinds of values in the manifests: {error}") from error
    return Manifest(table, root)


def _write_lines(table: pa.Table, path: Path, name: str) -> None:
    rows = (values for batch in table.to_batches(max_chunksize=_CHUNK) for values in batch.to_pylist())
    with open(path, "w", encoding="utf-8") as file:
        for number, values in enumerate(rows, 1):
            if values.get("parameters") is not None:
                values["parameters"] = json.loads(values["parameters"])
            kept = {k: v for k, v in values.items() if k == "identity" or not (v is None or v != v)}  # NaN is no value
            try:
                file.write(json.dumps(kept, ensure_ascii=False, allow_nan=False, default=plain) + "\n")
            except (TypeError, ValueError) as error:
                raise ManifestError(f"{name}: row {number}: a free column holds no JSON ({error})") from error


def _read_csv(path: Path) -> pa.Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(use_threads=False),  # so that errors know their row
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={n: pa.string() for n in names},
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            null_values=[""],
        ),
    )


def _read_lines(path: Path) -> pa.Table:
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # numbers of thousands of digits too
                raise ManifestError(f"{path}: line {number} is not JSON: {why(error)}") from error
            if not isinstance(row, dict):
                raise ManifestError(f"{path}: line {number} is not an object of columns")
            rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["identity"]
    _check_names(names, str(path))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "parameters":
            values = dump_all(values, str(path))
        columns[name] = (
            as_array(values, _TYPES[name], name, str(path)) if name in COLUMNS else free_array(values, name, str(path))
        )
    return pa.table(columns)


def _table(rows: Sequence[Row], name: str, first: int) -> pa.Table:
    """Rows as columns; `first` counts the rows before them."""
    columns = {c: [getattr(row, c) for row in rows] for c in COLUMNS}
    columns["parameters"] = dump_all(columns["parameters"], name, first)
    try:
        if any(isinstance(v, str) for c in COLUMNS if is_binary(_TYPES[c]) for v in columns[c]):
            raise TypeError  # pyarrow would take text for bytes
        return pa.table({c: pa.array(columns[c], _TYPES[c]) for c in COLUMNS}, schema=SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, UnicodeEncodeError):
        return pa.table({c: as_array(columns[c], _TYPES[c], c, name, first) for c in COLUMNS}, schema=SCHEMA)


def _typed(table: pa.Table, name: str) -> pa.Table:
    """The table with all columns of the schema, in its order and types."""
    _check_names(table.column_names, name)
    columns = {}
    for column in COLUMNS:
        if column not in table.column_names:
            columns[column] = pa.nulls(len(table), _TYPES[column])
        elif table[column].type == _TYPES[column]:
            columns[column] = table[column]
        elif column == "parameters" and pa.types.is_nested(table[column].type):
            columns[column] = pa.array(dump_all(objects(table[column]), name), pa.string())
        else:
            try:
                if not casts(table[column].type, _TYPES[column]):
                    raise pa.ArrowInvalid("one by one")
                columns[column] = table[column].cast(_TYPES[column])
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                columns[column] = as_array(table[column].to_pylist(), _TYPES[column], column, name)
    for column in COLUMNS:
        if _TYPES[column] == pa.string():  # an empty text is an empty value, in every format
            empty = pc.equal(columns[column], "")
            columns[column] = pc.if_else(pc.fill_null(empty, False), None, columns[column])
    columns |= {c: table[c] for c in table.column_names if c.startswith("x_")}
    return pa.table(columns)


def _check_names(names: Sequence[str], name: str) -> None:
    unknown = [n for n in names if n not in COLUMNS and not n.startswith("x_")]
    if unknown:
        raise ManifestError(
            f"{name}: unknown column {unknown[0]!r}; a manifest has {', '.join(COLUMNS)}, and free columns x_..."
        )
    if "identity" not in names:
        raise ManifestError(f"{name}: column 'identity' is missing; it says which images show the same thing")
    repeated = {n for n in names if list(names).count(n) > 1}
    if repeated:
        raise ManifestError(f"{name}: column {min(repeated)!r} occurs twice")


def _check_text(table: pa.Table, path: Path) -> None:
    """Refuse columns that a text format cannot hold."""
    for column, kind in zip(table.column_names, table.schema.types, strict=True):
        if is_binary(kind) and not pa.types.is_null(kind):
            raise ManifestError(f"{path}: text formats hold no bytes (column {column!r}); write .parquet")
        if path.suffix == ".csv" and pa.types.is_nested(kind):
            raise ManifestError(f"{path}: CSV holds no lists or objects (column {column!r}); write .jsonl or .parquet")


def _checked(table: pa.Table, name: str) -> pa.Table:
    """The table with ids and roles filled in, or an error that names what is wrong."""
    rows = len(table)

    def values(column: str) -> list[Any]:
        return cast("list[Any]", table[column].to_pylist())

    def has(column: str) -> NDArray[np.bool_]:
        return np.asarray(pc.is_valid(table[column]))

    def refuse(wrong: NDArray[np.bool_], column: str, says: Callable[[int], str]) -> None:
        refuse_rows([(int(i) + 1, says(int(i))) for i in np.flatnonzero(wrong)], column, name)

    table = table.set_column(COLUMNS.index("role"), "role", pc.fill_null(table["role"], "real"))
    identity = values("identity")
    refuse(np.array([v is not None and not v.strip() for v in identity], bool), "identity", lambda _: "is blank")
    path = values("path")
    refuse(has("path") == has("image_bytes"), "path", lambda i: "path and image_bytes are both given" if path[i]
           else "no image: neither path nor image_bytes")  # fmt: skip
    for column in ("mask", "part_mask"):
        refuse(has(column) & has(f"{column}_bytes"), column, lambda _, c=column: f"{c} and {c}_bytes are both given")  # type: ignore[misc]
    for column in PATHS:
        given = values(column)
        wrong = [v is not None and (not v.strip() or "\0" in v or bool(_ADDRESS.match(v))) for v in given]
        refuse(np.array(wrong, bool), column, lambda i, g=given: f"{short(g[i])} is not a file's path")  # type: ignore[misc]
    for column, allowed in (("role", ROLES), ("slot", SLOTS)):
        given = values(column)
        refuse(
            np.array([v is not None and v not in allowed for v in given], bool), column,
            lambda i, g=given, a=allowed: f"{short(g[i])} is not one of {', '.join(a)}",  # type: ignore[misc]
        )  # fmt: skip
    refuse(has("group") != has("slot"), "slot", lambda _: "group and slot go together; one of them is empty")
    for column, low, high in (("oracle", 0.0, 1.0), ("label", -np.inf, np.inf), ("seed", 0, np.inf)):
        given = values(column)
        wrong = [v is not None and not (low <= v <= high and np.isfinite(v)) for v in given]
        span = "a finite number" if low == -np.inf else f"within {low:g}..{high:g}"
        refuse(np.array(wrong, bool), column, lambda i, g=given, s=span: f"{g[i]} is not {s}")  # type: ignore[misc]
    given = values("parameters")
    refuse(np.array([not is_object(v) for v in given], bool), "parameters",
           lambda i: f"{short(given[i])} is not a JSON object")  # fmt: skip
    ids = values("id")
    if not all(ids):
        data, group, slot = table["image_bytes"], values("group"), values("slot")
        for i in range(rows):
            if not ids[i]:
                image = path[i] or hashlib.sha256(data[i].as_py()).hexdigest()[:16]
                ids[i] = image if group[i] is None else f"{group[i]}/{slot[i]}/{image}"
        table = table.set_column(COLUMNS.index("id"), "id", pa.array(ids, pa.string()))
    first: dict[str, int] = {}
    doubles = np.array([first.setdefault(v, i) != i for i, v in enumerate(ids)], bool)
    refuse(doubles, "id", lambda i: f"{short(ids[i])} is also the id of row {first[ids[i]] + 1}")
    return table


_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def _is_sequence(given: Any) -> bool:
    if isinstance(given, np.ndarray | pa.Array | pa.ChunkedArray):
        return True
    return isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray | memoryview)


def _each(given: Any) -> list[Any]:
    return cast("list[Any]", given.to_pylist() if isinstance(given, pa.Array | pa.ChunkedArray) else list(given))


def _relative(path: Path, root: Path) -> str:
    try:
        return Path(os.path.relpath(path, root)).as_posix()
    except ValueError:  # another drive of Windows
        return path.as_posix()


def _check_ending(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise ManifestError(f"{path}: a manifest ends in {', '.join(FORMATS)}")


def file_mode() -> int:
    """Permissions of a new file as the user's umask has them; temporary files are made without any for others."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
