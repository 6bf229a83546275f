"""Tables of published datasets: Parquet, Arrow, CSV and JSON lines, from a file, a folder or the Hugging Face Hub.

Rows come one by one, so a large dataset needs little memory. Files of the Hub are downloaded unchanged and read here
instead of by `datasets.load_dataset`: there is no second copy in its cache, no code of the repository runs, and
datasets with a card that breaks the loader (MVEB) can be read.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from idmetric.data.manifest import ManifestError, text_of
from idmetric.data.split import split_word
from idmetric.metric.files import StrPath, need, read_json_file, shown
from idmetric.metric.paths import is_address, walk, with_slashes
from idmetric.tables import number_of, read_table

Row = dict[str, Any]  # columns of a source, or of a manifest

ENDINGS = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl")
_LISTS = ".txt"  # a table only where it is named: SOP's Ebay_train.txt, with spaces between its columns
_BATCH = 16  # rows read at once: rows may hold several images of megabytes
_OF_ALL_SPLITS = ("index", "database")  # tables of these names hold all splits, unlike folders
_LONGEST = 2000  # characters of a column that parameters keep
_SHARD = re.compile(r"-\d{3,}-of-\d{3,}(-[0-9a-f]+)?$")


@dataclass(frozen=True)
class Shard:
    """A file of rows: its path, the split that its name gives, its columns, and its number of rows."""

    path: Path
    split: str | None
    columns: tuple[str, ...]
    count: int

    @property
    def stem(self) -> str:
        """Name of the table: without extension and shard number, or that of the folder which `save_to_disk` wrote."""
        if self.path.suffix.lower() == ".arrow":
            return self.path.parent.name
        return _SHARD.sub("", self.path.stem)


@dataclass(frozen=True)
class Source:
    """The rows of a dataset, in the order of its files.

    Attributes:
        name: the Hub id, or the name of the file or folder.
        root: the folder that holds its files.
        revision: commit on the Hub; None for local files.
        renamed: name under which rows have a column -> its name in the files.
    """

    name: str
    root: Path
    shards: tuple[Shard, ...]
    revision: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and revision, for a row's parameters."""
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @property
    def columns(self) -> dict[str, str]:
        """Names of the columns of all files, in order of appearance, renamed ones last -> their names in the files."""
        stored = {column: column for shard in self.shards for column in shard.columns}
        columns = {name: name for name in stored if name not in {*self.renamed, *self.renamed.values()}}
        return columns | {name: column for name, column in self.renamed.items() if column in stored}

    def __len__(self) -> int:
        return sum(shard.count for shard in self.shards)

    def need(self, *columns: str) -> None:
        """Check that it has these columns; the ManifestError names its columns and the option to map them."""
        for column in columns:
            if column not in self.columns:
                raise ManifestError(
                    f"{self.name}: no column {self.renamed.get(column, column)!r}; there are "
                    f"{', '.join(self.columns) or 'none'} (name another by --map {column}=NAME)"
                )

    def locate(self, path: str) -> Path:
        """The file that a row names, relative to the root or, in local tables, absolute; raises as `locate`."""
        return locate(path, self.root, self.name, inside=self.revision is not None)

    def __iter__(self) -> Iterator[Record]:
        """Each row; NaN, and a column that its file lacks, is None."""
        columns = self.columns
        counts: Counter[str | None] = Counter()
        for shard in self.shards:
            for row in _rows(shard.path):
                values = {}
                for name, column in columns.items():
                    cell = row.get(column)
                    is_nan = isinstance(cell, float) and cell != cell  # as pandas writes missing values
                    values[name] = None if is_nan else cell
                yield Record(self, shard, counts[shard.split], values)
                counts[shard.split] += 1


@dataclass(frozen=True)
class Record:
    """A row of a table.

    Attributes:
        number: counted from 0 within its split.
        values: by the expected names of their columns (`--map`).
    """

    source: Source
    shard: Shard
    number: int
    values: Row

    def __str__(self) -> str:
        """The name of the row for messages, counted from 1."""
        row = f"{self.source.name}: row {self.number + 1}"
        return f"{row} of {self.shard.split}" if self.shard.split else row

    def about(self, *used: str) -> Row:
        """Where it comes from, and its short values apart from the columns used, for the parameters of its rows."""
        return {"source": self.source.label, "row": self.number, **scalars(self.values, *used)}

    def __getitem__(self, column: str) -> Any:
        """The value in a column; None if it is empty or missing."""
        return self.values.get(column)

    def text(self, column: str) -> str | None:
        """The name or id in a column, see `name_of`; None if it is empty or missing."""
        return name_of(self[column], f"{self}, column {column!r}")

    def number_in(self, column: str) -> float:
        """The number in a column; ManifestError for another value, or none."""
        value = self[column]
        try:
            return number_of(value) if isinstance(value, str) else float(value)
        except (TypeError, ValueError) as error:
            raise ManifestError(f"{self}, column {column!r}: {shown(value)} is not a number") from error


def name_of(value: Any, where: str) -> str | None:
    """The text of a name or id, see `text_of`; ManifestError, which says where it stands, for other values."""
    try:
        return None if value in (None, "") else text_of(value)
    except (TypeError, ValueError) as error:
        raise ManifestError(f"{where}: {shown(value)} is not a name; give text or a whole number") from error


def scalars(values: Row, *used: str) -> Row:
    """The remaining short values of a row, for its parameters, without NaN and infinity."""
    short = {}
    for name, value in values.items():
        is_short = isinstance(value, str | int | float) and len(str(value)) <= _LONGEST
        if name not in used and is_short and (isinstance(value, str) or math.isfinite(value)):
            short[name] = value
    return short


def as_list(cell: Any) -> list[Any]:
    """The values of a cell that holds a list, one value or nothing."""
    if cell is None:
        return []
    return cell if isinstance(cell, list) else [cell]


def locate(path: str, root: Path, name: str, inside: bool) -> Path:
    """The file that a table of this name names, relative to the root; ManifestError for a URL or a forbidden path.

    Args:
        inside: refuse paths outside the root: a table of the Hub must not get access to other local files.
    """
    if is_address(path):
        raise ManifestError(f"{name}: {path[:100]}: URLs are not downloaded; download the images and name their files")
    file = Path(with_slashes(str(root / path)))
    if inside and not Path(os.path.abspath(file)).is_relative_to(os.path.abspath(root)):
        raise ManifestError(f"{name}: {path!r} is outside the dataset's folder, which a table of the Hub may not use")
    return file


def open_source(
    source: StrPath, revision: str | None = None, files: str | None = None, renamed: Mapping[str, str] | None = None
) -> Source:
    """A file, a folder with tables or `save_to_disk` folders, or a dataset of the Hub (`owner/name`).

    Args:
        revision: branch, tag or commit on the Hub.
        files: pattern of the files to use, such as "sample/*.parquet".
        renamed: expected column -> its name in the files (`--map`).

    Raises:
        ManifestError: if it does not exist, holds no table, or a table that cannot be read.
    """
    root, commit = Path(source), None
    if not root.exists():
        name = os.fspath(source)
        commit, sizes = hub_files(name, revision, files)
        with _hub_errors(name):
            from huggingface_hub import snapshot_download

            root = Path(snapshot_download(name, repo_type="dataset", revision=commit, allow_patterns=[*sizes]))
    elif revision is not None:
        raise ManifestError(f"{root} is a local {'folder' if root.is_dir() else 'file'}, which has no revision")
    else:
        name = root.resolve().name

    shards = []
    for path in _tables_below(root, files):
        columns, count, _ = _opened(path)
        if len({*columns}) < len(columns):
            raise ManifestError(f"{path}: two columns have one name: {', '.join(columns)}; rename or remove one")
        split = None if path == root else _split_of(path, path.relative_to(root))
        shards.append(Shard(path, split, tuple(columns), count))
    if not shards:
        matching = f" that matches {files!r}" if files else ""
        raise ManifestError(
            f"{source}: no {', '.join(ENDINGS)} file and no folder of save_to_disk{matching}; unpack archives, or on "
            "the Hub try --revision refs/convert/parquet"
        )
    return Source(name, root if root.is_dir() else root.parent, tuple(shards), commit, renamed or {})


def hub_files(repo: str, revision: str | None = None, files: str | None = None) -> tuple[str, dict[str, int]]:
    """Commit of a Hub dataset, and name -> bytes of the files that `open_source` would download."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ManifestError(f"{repo}: no such file or folder, and not the name of a Hub dataset (owner/name)")
    with _hub_errors(repo):
        from huggingface_hub import HfApi, constants

        seconds = constants.HF_HUB_ETAG_TIMEOUT  # the client's own default is to wait forever
        info = HfApi().dataset_info(repo, revision=revision, files_metadata=True, timeout=seconds)

    sizes = {}
    for file in info.siblings or ():
        name = file.rfilename
        is_table = name.lower().endswith(ENDINGS) and fnmatch(name, files or "*")
        if is_table or name.lower().endswith(".json"):  # JSON: state of save_to_disk, splits
            sizes[name] = int(file.size or 0)
    return str(info.sha), sizes


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turn the errors of a request to the Hub into one line that says how to fix them."""
    try:
        yield
    except Exception as error:  # the client raises OSError, ValueError and its HTTP library's own errors
        first = (str(error).splitlines() or [""])[0]
        raise ManifestError(
            f"{repo}: neither a local path, nor a dataset that the Hub gives ({type(error).__name__}: {first}); check "
            "name and revision, and log in if it is gated or private (hf auth login)"
        ) from error


def _tables_below(root: Path, files: str | None) -> Iterator[Path]:
    """A file, or the tables in a folder at any depth, sorted, without what `datasets` has cached next to its own."""
    if root.is_file() and root.suffix.lower() in (*ENDINGS, _LISTS):
        yield root
    elif root.is_dir():
        for path in walk(root):
            is_table = path.suffix.lower() in ENDINGS and fnmatch(path.relative_to(root).as_posix(), files or "*")
            if is_table and not (path.name.startswith("cache-") and path.suffix == ".arrow"):
                yield path


def _split_of(path: Path, name: Path) -> str | None:
    """The split of a table, by its name below the source's folder.

    On the Hub that is data/train-00000-of-00005.parquet or default/test/0000.parquet. A folder of `save_to_disk` states
    its split, or is called so.
    """
    state_file = path.with_name("state.json")
    if path.suffix.lower() == ".arrow" and state_file.is_file():
        return read_json(state_file, dict).get("_split") or name.parent.name or None
    stem = _SHARD.sub("", name.stem)
    if stem in _OF_ALL_SPLITS:
        return None
    if stem != name.stem or split_word(stem.split("_")[0]):
        return stem
    folder = name.parent.name
    return folder if split_word(folder.split("_")[0]) else None


# Files


def read_json(path: Path, kind: type = object) -> Any:
    """The content of a JSON file that comes with a dataset; ManifestError for another kind than list or dict."""
    with _readable(path):
        value = read_json_file(path)
    if not isinstance(value, kind):
        raise ManifestError(f"{path}: it must hold {'a list' if kind is list else 'an object'}")
    return value


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of readers become a `ManifestError` that names the file."""
    try:
        yield
    except (OSError, ValueError, IndexError) as error:  # pyarrow's errors are among them
        raise ManifestError(f"{path}: not readable: {error}; correct it, or fetch it again") from error


def _rows(path: Path) -> Iterator[Row]:
    with _readable(path):
        yield from _opened(path)[2]


def _opened(path: Path) -> tuple[list[str], int, Iterable[Row]]:
    """The table's columns, its number of rows, and the rows."""
    if path.suffix.lower() not in (".parquet", ".arrow"):
        with _readable(path):
            text_table = read_table(path)
            text_table.check_kinds()
        return list(text_table.columns), len(text_table.rows), (row for _, row in text_table.records())

    need("eval", "a table of Parquet or Arrow", pyarrow="pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _readable(path):
        if path.suffix.lower() == ".parquet":
            # a small buffer instead of reading ahead: else all row groups come into memory with their images
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
            schema, count, batches = file.schema_arrow, file.metadata.num_rows, file.iter_batches(_BATCH)
            return schema.names, count, _with_labels(batches, schema)
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        return table.schema.names, len(table), _with_labels(table.to_batches(_BATCH), table.schema)


def _with_labels(batches: Iterable[Any], schema: Any) -> Iterator[Row]:
    """The rows of an Arrow table; labels that the Hub stores as numbers are names."""
    description = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = description.get("info", {}).get("features") or {}
    labels = {}
    for name, feature in features.items():
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            labels[name] = feature["names"]

    for batch in batches:
        for row in batch.to_pylist():
            for name, names in labels.items():
                number = row.get(name)
                row[name] = None if number is None or number < 0 else names[number]
            yield row
