"""Tables of published datasets: Parquet, Arrow, CSV and JSON lines, from a file, a folder or the Hugging Face Hub.

Rows come one by one, so a large dataset needs little memory. Files of the Hub are downloaded unchanged and read here
instead of by `datasets.load_dataset`: there is no second copy in its cache, no code of the repository runs, and
datasets with a card that breaks the loader (MVEB) can be read.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PureWindowsPath
from posixpath import normpath
from typing import Any

from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.split import split_word
from idmetric.metric.files import StrPath, parse_json, read_json_file
from idmetric.metric.paths import is_address, matches, pattern_folder, walk, with_slashes
from idmetric.tables import column_names, read_table

ENDINGS = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl")
_LISTS = ".txt"  # a table only where it is named: SOP's Ebay_train.txt, with spaces between its columns
_BATCH = 16  # rows read at once: rows may hold several images of megabytes
_STATE = "state.json"  # of `datasets.Dataset.save_to_disk`
_OF_ALL_SPLITS = ("index", "database")  # tables of these names hold all splits, unlike folders
_SHARD = re.compile(r"-\d{3,}-of-\d{3,}(-[0-9a-f]+)?$")


@dataclass(frozen=True)
class Shard:
    """A file of rows."""

    path: Path
    split: str | None

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
        known: columns that an importer uses, which text tables may have in capitals and with spaces.
    """

    name: str
    root: Path
    shards: tuple[Shard, ...]
    revision: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """Name and revision, for a row's parameters."""
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @cached_property
    def _heads(self) -> list[tuple[list[str], int]]:
        """Columns and number of rows of each file."""
        heads = []
        for shard in self.shards:
            with _readable(shard.path):
                names, count, _ = _opened(shard.path, self._spellings)
                column_names(names, ())  # refuses one that occurs twice
            heads.append((names, count))
        return heads

    @property
    def _spellings(self) -> frozenset[str]:
        """The columns that are recognized in other spellings; a name of --map is as in the file."""
        return self.known - {*self.renamed.values()}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of all files, in order of appearance; renamed ones last."""
        stored: dict[str, None] = {}
        for names, _ in self._heads:
            stored |= dict.fromkeys(names)
        renamed = {*self.renamed, *self.renamed.values()}
        columns = [name for name in stored if name not in renamed]
        columns += [name for name, stored_name in self.renamed.items() if stored_name in stored]
        return tuple(columns)

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(count for _, count in self._heads)

    def need(self, *columns: str) -> None:
        """Check that it has these columns; the ManifestError names its columns and the option to map them."""
        for column in columns:
            if column in self.columns:
                continue
            raise ManifestError(
                f"{self.name}: no column {self.renamed.get(column, column)!r}; there are "
                f"{', '.join(self.columns) or 'none'} (name another by --map {column}=NAME)"
            )

    def locate(self, path: str) -> Path:
        """The file that a row names, relative to the root or, in local tables, absolute; raises as `locate`."""
        return locate(path, self.root, self.name, inside=self.revision is not None)

    def rows(self) -> Iterator[tuple[Shard, dict[str, Any]]]:
        """Each row; NaN, and a column that its file lacks, is None."""
        stored_names = {name: self.renamed.get(name, name) for name in self.columns}
        for shard in self.shards:
            for row in _rows(shard.path, self._spellings):
                cells = {}
                for name, stored_name in stored_names.items():
                    cell = row.get(stored_name)
                    is_missing = isinstance(cell, float) and math.isnan(cell)  # as pandas writes missing values
                    cells[name] = None if is_missing else cell
                yield shard, cells


def locate(path: str, root: Path, name: str, inside: bool) -> Path:
    """The file that a table of this name names, relative to the root; ManifestError for a URL or a forbidden path.

    Args:
        inside: refuse paths outside the root: a table of the Hub must not get access to other local files.
    """
    if is_address(path):
        raise ManifestError(f"{name}: {path[:100]}: URLs are not downloaded; download the images and name their files")
    windows_path = PureWindowsPath(path)  # it recognizes both kinds of slashes, drives and servers
    if inside and (windows_path.anchor or normpath(windows_path.as_posix()).split("/")[0] == ".."):
        raise ManifestError(f"{name}: {path!r} is outside the dataset's folder, which a table of the Hub may not use")
    if windows_path.anchor:
        return root / path
    return Path(with_slashes(str(root / path)))


def open_source(
    source: StrPath,
    revision: str | None = None,
    files: str | None = None,
    renamed: Mapping[str, str] | None = None,
    known: Iterable[str] = (),
) -> Source:
    """A file, a folder with tables or `save_to_disk` folders, a pattern, or a dataset of the Hub (`owner/name`).

    Args:
        revision: branch, tag or commit on the Hub.
        files: pattern of the files to use, such as "sample/*.parquet".
        renamed: expected column -> its name in the files (`--map`).
        known: see `Source`.

    Raises:
        ManifestError: if it does not exist, or holds no table.
    """
    root = Path(source)
    matched = [Path(path) for path in matches(os.fspath(source))]
    if matched:
        root = Path(pattern_folder(os.fspath(source)) or ".")
        name, commit = root.resolve().name, None
    elif root.exists():
        name, commit = root.resolve().name, None
        if revision is not None:
            raise ManifestError(f"{root} is a local {'folder' if root.is_dir() else 'file'}, which has no revision")
    else:
        name = os.fspath(source)
        commit, sizes = hub_files(name, revision, files)
        with _hub_errors(name):
            from huggingface_hub import snapshot_download

            folder = snapshot_download(name, repo_type="dataset", revision=commit, allow_patterns=[*sizes])
            root = Path(folder)

    shards = _shards(root, files) if not matched else ()
    for path in matched:
        split = _split_of(path.relative_to(root))
        shards += tuple(replace(shard, split=shard.split or split) for shard in _shards(path, files))
    if not shards:
        matching = f" that matches {files!r}" if files else ""
        raise ManifestError(
            f"{source}: no {', '.join(ENDINGS)} file and no folder of save_to_disk{matching}; unpack archives, or on "
            "the Hub try --revision refs/convert/parquet"
        )
    folder = root if root.is_dir() else root.parent
    return Source(name, folder, shards, commit, renamed or {}, frozenset(known))


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


def _shards(folder: Path, files: str | None) -> tuple[Shard, ...]:
    """A file, or the tables in a folder at any depth, sorted."""
    if not folder.is_dir():
        is_table = folder.is_file() and folder.suffix.lower() in (*ENDINGS, _LISTS)
        return (Shard(folder, None),) if is_table else ()
    shards = []
    for path in walk(folder):
        name = path.relative_to(folder)
        if path.suffix.lower() not in ENDINGS or not fnmatch(name.as_posix(), files or "*"):
            continue
        split = _split_of(name)
        state_file = path.with_name(_STATE)
        if path.suffix.lower() == ".arrow" and state_file.is_file():
            state = read_json(state_file, dict)
            this_file = {"filename": path.name}
            if this_file not in state.get("_data_files", [this_file]):  # a file of the library's cache
                continue
            split = state.get("_split") or (path.parent.name if path.parent != folder else None)
        shards.append(Shard(path, split))
    return tuple(shards)


def _split_of(name: Path) -> str | None:
    """The split in a file name of the Hub, such as data/train-00000-of-00005.parquet or default/test/0000.parquet."""
    stem = _SHARD.sub("", name.stem)
    if stem in _OF_ALL_SPLITS:
        return None
    if stem != name.stem or split_word(stem.split("_")[0]):
        return stem
    parent = name.parent.name
    return parent if split_word(parent.split("_")[0]) else None


def read_json(path: Path, kind: type = object) -> Any:
    """The content of a JSON file that comes with a dataset; ManifestError for another kind than list or dict."""
    try:
        value = read_json_file(path)
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, kind):
        raise ManifestError(f"{path}: it must hold {'a list' if kind is list else 'an object'}")
    return value


# Files


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of readers become a `ManifestError` that names the file."""
    try:
        yield
    except (OSError, ValueError, IndexError) as error:  # pyarrow's errors are among them
        raise ManifestError(f"{path}: not readable: {error}; correct it, or fetch it again") from error


def _rows(path: Path, spellings: frozenset[str]) -> Iterator[dict[str, Any]]:
    with _readable(path):
        _, _, rows = _opened(path, spellings)
        yield from rows


def _opened(path: Path, spellings: frozenset[str]) -> tuple[list[str], int, Iterable[dict[str, Any]]]:
    """The table's columns, its number of rows, and the rows.

    Args:
        spellings: as `known` of `tables.read_table`.
    """
    ending = path.suffix.lower()
    if ending not in (".parquet", ".arrow"):
        text_table = read_table(path, known=spellings)
        text_table.check_kinds()
        rows = (row for _, row in text_table.records())
        return list(text_table.columns), len(text_table.rows), rows

    import pyarrow as pa
    import pyarrow.parquet as pq

    if ending == ".parquet":
        # a small buffer instead of reading ahead: else all row groups come into memory with their images
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
        schema = file.schema_arrow
        return schema.names, file.metadata.num_rows, _with_labels(file.iter_batches(_BATCH), schema)

    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    return table.schema.names, len(table), _with_labels(table.to_batches(_BATCH), table.schema)


def _with_labels(batches: Iterable[Any], schema: Any) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow table; labels that the Hub stores as numbers are names."""
    description = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))
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
