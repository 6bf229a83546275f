"""Tables of published datasets: Parquet, Arrow, CSV and JSON lines, from a file, a folder or the Hugging Face Hub.

Rows come one by one, so a large dataset needs little memory. Files of the Hub are downloaded unchanged and read here
instead of by `datasets.load_dataset`: there is no second copy in its cache, no code of the repository runs, and
datasets with a card that breaks the loader (MVEB) can be read.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any

from idmetric.images.paths import is_address
from idmetric.images.paths import walk as files_below
from idmetric.io import json_file
from idmetric.io.hints import need

ENDINGS = (".parquet", ".arrow", ".csv", ".jsonl")
_BATCH = 16  # rows read at once: rows may hold several images of megabytes
_STATE = "state.json"  # of `datasets.Dataset.save_to_disk`
_SHARD = re.compile(r"-\d{3,}-of-\d{3,}(-[0-9a-f]+)?$")
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "eval"}


class SourceError(ValueError):
    """A dataset that cannot be imported; the message names file, row or column, and says what to do."""


@dataclass(frozen=True)
class Shard:
    """A file of rows, or a folder that `save_to_disk` wrote."""

    path: Path
    split: str | None

    @property
    def stem(self) -> str:
        """Name without extension and shard number."""
        return _SHARD.sub("", self.path.stem)


@dataclass(frozen=True)
class Source:
    """The rows of a dataset, in the order of its files.

    Attributes:
        name: the Hub id, or the name of the file or folder.
        root: the folder that holds its files.
        revision: commit on the Hub; None for local files.
    """

    name: str
    root: Path
    shards: tuple[Shard, ...]
    revision: str | None = None

    @property
    def label(self) -> str:
        """Name and revision, for a row's parameters."""
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of all files, in order of appearance."""
        return tuple(dict.fromkeys(name for shard in self.shards for name in open_table(shard.path).columns))

    @cached_property
    def count(self) -> int:
        """Number of rows."""
        total = 0
        for shard in self.shards:
            with _readable(shard.path):
                total += open_table(shard.path).count()
        return total

    def locate(self, path: str) -> Path:
        """The file that a row names, relative to the root or, in local tables, absolute.

        Raises:
            SourceError: for a URL, and in a table of the Hub for a path outside the dataset's folder, because the
                table's author must not get access to other local files.
        """
        return locate(path, self.root, self.name, self.revision is not None)

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Shard, dict[str, Any]]]:
        """Each row with these columns (None: all); a column that its file lacks is None."""
        wanted = self.columns if columns is None else tuple(columns)
        for shard in self.shards:
            table = open_table(shard.path)
            with _readable(shard.path):
                for row in table.rows([c for c in wanted if c in table.columns]):
                    yield shard, {c: row.get(c) for c in wanted}


def locate(path: str, root: Path, name: str, inside: bool) -> Path:
    """As `Source.locate`, for a table of this name; `inside` refuses paths outside the root."""
    if is_address(path):
        shown = path if len(path) <= 100 else path[:100] + "..."
        raise SourceError(f"{name}: {shown}: URLs are not downloaded; download the images and name their files")
    there, depth = PureWindowsPath(path), 0  # it recognizes both kinds of slashes, drives and servers
    for part in there.parts if inside else ():
        depth += -1 if part == ".." else 1
        if depth < 0 or there.anchor:
            raise SourceError(f"{name}: {path!r} is outside the dataset's folder, which a table of the Hub may not use")
    return root / path


def open_source(source: str | os.PathLike[str], revision: str | None = None, files: str | None = None) -> Source:
    """A file, a folder with tables or `save_to_disk` folders, or a dataset of the Hub (`owner/name`).

    Args:
        revision: branch, tag or commit on the Hub.
        files: pattern of the files to use, such as "sample/*.parquet".

    Raises:
        SourceError: if it does not exist, or holds no table.
    """
    path = Path(source)
    if not path.exists():
        return _download(os.fspath(source), revision, files)
    if revision is not None:
        raise SourceError(f"{path} is a local {'folder' if path.is_dir() else 'file'}, which has no revision")
    shards = _shards(path, files) if path.is_dir() else (Shard(path, None),)
    if not shards or (path.is_file() and path.suffix not in ENDINGS):
        raise SourceError(
            f"{path}: no {', '.join(ENDINGS)} file and no folder of save_to_disk{_matching(files)}; unpack archives "
            "first"
        )
    return Source(path.resolve().name, path if path.is_dir() else path.parent, shards)


def hub_files(repo: str, revision: str | None = None, files: str | None = None) -> tuple[str, list[tuple[str, int]]]:
    """Commit of a Hub dataset, and (name, bytes) of the files that `open_source` would download."""
    from huggingface_hub import HfApi

    info = _ask(repo, lambda: HfApi().dataset_info(repo, revision=revision, files_metadata=True))
    listed = [(s.rfilename, int(s.size or 0)) for s in info.siblings or []]
    # JSON: state of save_to_disk, splits
    wanted = [f for f in listed if f[0].endswith(".json") or (f[0].endswith(ENDINGS) and _fits(f[0], files))]
    return str(info.sha), wanted


def _download(repo: str, revision: str | None, files: str | None) -> Source:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise SourceError(f"{repo}: no such file or folder, and not the name of a Hub dataset (owner/name)")
    from huggingface_hub import snapshot_download

    commit, listed = hub_files(repo, revision, files)
    names = [name for name, _ in listed]
    if not any(name.endswith(ENDINGS) for name in names):
        raise SourceError(
            f"{repo}: no {', '.join(ENDINGS)} file{_matching(files)}; try --revision refs/convert/parquet, or download "
            "and unpack it and import the folder"
        )
    got = _ask(repo, lambda: snapshot_download(repo, repo_type="dataset", revision=commit, allow_patterns=names))
    return Source(repo, Path(got), _shards(Path(got), files), commit)


def _matching(files: str | None) -> str:
    return f" that matches {files!r}" if files else ""


def _fits(name: str, files: str | None) -> bool:
    return files is None or fnmatch(name, files)


def _ask(repo: str, request: Callable[[], Any]) -> Any:
    """The Hub's answer to a request; its errors become one line that says how to fix them."""
    try:
        return request()
    except Exception as error:  # the client raises OSError, ValueError and its HTTP library's own errors
        kind, first = type(error).__name__, (str(error).splitlines() or [""])[0]
        raise SourceError(
            f"{repo}: neither a local path, nor a dataset that the Hub gives ({kind}: {first}); check the name and the "
            "revision, log in if it is gated or private (hf auth login), or download it elsewhere and import the folder"
        ) from error


def _shards(folder: Path, files: str | None) -> tuple[Shard, ...]:
    """The tables in a folder at any depth, sorted; a folder written by `save_to_disk` is one table."""
    below = list(files_below(folder))
    states = {p.parent: read_json(p) for p in below if p.name == _STATE}
    saved = {path: state for path, state in states.items() if isinstance(state, dict) and "_data_files" in state}
    found = [Shard(p, state.get("_split") or (p.name if p != folder else None)) for p, state in saved.items()]
    for path in below:
        name = path.relative_to(folder)
        alone = path.suffix in ENDINGS and saved.keys().isdisjoint(path.parents)
        if alone and _fits(name.as_posix(), files):
            found.append(Shard(path, _split_of(name)))
    return tuple(found)


def _split_of(name: Path) -> str | None:
    """The split in a file name of the Hub, such as data/train-00000-of-00005.parquet or default/test/0000.parquet."""
    stem = _SHARD.sub("", name.stem)
    if stem != name.stem or stem.split("_")[0] in _SPLITS:
        return stem
    parent = name.parent.name
    return parent if parent.split("_")[0] in _SPLITS else None


def read_json(path: Path, kind: type = object) -> Any:
    """The content of a JSON file that comes with a dataset.

    Raises:
        SourceError: naming the file, if it cannot be read, or holds something else than a list or dict as asked for.
    """
    try:
        value = json_file.read(path)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, kind):
        raise SourceError(f"{path}: it must hold {'a list' if kind is list else 'an object'}")
    return value


# Files


@dataclass(frozen=True)
class Table:
    """A table of any format: its columns, a function that counts its rows, and one that reads some of their columns."""

    columns: tuple[str, ...]
    count: Callable[[], int]
    rows: Callable[[Sequence[str]], Iterator[dict[str, Any]]]


def open_table(path: Path) -> Table:
    """The table in a file, or in a folder that `save_to_disk` wrote.

    Raises:
        SourceError: if it cannot be read.
    """
    with _readable(path):
        if path.suffix == ".parquet" and path.is_file():
            return _parquet(path)
        return _arrow(path) if path.is_dir() or path.suffix == ".arrow" else _text(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of readers become a `SourceError` that names the file."""
    try:
        yield
    except SourceError:
        raise
    except (OSError, ValueError, IndexError, csv.Error) as error:  # pyarrow's errors are among them
        raise SourceError(f"{path}: not readable: {error}; fetch it again") from error


def _parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    # a small buffer instead of reading ahead: else all row groups come into memory with their images
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)

    def rows(columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        for batch in file.iter_batches(_BATCH, columns=list(columns)):
            yield from _named(batch.to_pylist(), file.schema_arrow)

    return Table(tuple(file.schema_arrow.names), lambda: int(file.metadata.num_rows), rows)


def _arrow(path: Path) -> Table:
    need("data", f"reading {path}", datasets="datasets")
    import datasets

    whole = datasets.load_from_disk(str(path)) if path.is_dir() else datasets.Dataset.from_file(str(path))

    def rows(columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        if not columns:
            yield from ({} for _ in range(len(whole)))
            return
        for table in whole.select_columns(list(columns)).with_format("arrow").iter(_BATCH):
            yield from _named(table.to_pylist(), whole.features.arrow_schema)

    return Table(tuple(whole.column_names), lambda: len(whole), rows)


def _named(rows: list[dict[str, Any]], schema: Any) -> list[dict[str, Any]]:
    """The rows with names of classes, where the Hub stores class labels as numbers."""
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features") or {}
    labels = {n: f["names"] for n, f in features.items() if isinstance(f, dict) and f.get("_type") == "ClassLabel"}
    for row in rows:
        for column in labels.keys() & row.keys():
            number = row[column]
            row[column] = None if number is None or number < 0 else labels[column][number]
    return rows


def _text(path: Path) -> Table:
    read = _csv if path.suffix == ".csv" else json_file.lines
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns = tuple(next(csv.reader(file), []))
    else:
        columns = tuple(dict.fromkeys(name for row in json_file.lines(path) for name in row))
    return Table(columns, lambda: sum(1 for _ in read(path)), lambda _: read(path))


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            if None in row or None in row.values():  # more fields than the header has, or fewer
                raise SourceError(f"{path}: row {number} has another number of fields than the header")
            yield {name: value or None for name, value in row.items()}
