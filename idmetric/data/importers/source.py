"""Tables of published datasets: Parquet, Arrow, CSV and JSON lines, from a file, a folder or the Hugging Face Hub.

Rows come one by one, so a large dataset needs little memory. Files of the Hub are downloaded unchanged and read here
instead of by `datasets.load_dataset`: there is no second copy in its cache, no code of the repository runs, and
datasets with a card that breaks the loader (MVEB) can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any

from idmetric.data.importers.files import ENDINGS, SourceError, open_table
from idmetric.images.paths import walk as files_below
from idmetric.io import json_file

__all__ = ["Shard", "Source", "SourceError", "hub_files", "locate", "open_source", "read_json"]

_STATE = "state.json"  # of `datasets.Dataset.save_to_disk`
_SHARD = re.compile(r"-\d{3,}-of-\d{3,}(-[0-9a-f]+)?$")
_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "eval"}


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
        return sum(open_table(shard.path).count() for shard in self.shards)

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
            here = [c for c in wanted if c in table.columns]
            for row in table.rows(here):
                yield shard, {c: row.get(c) for c in wanted}


def locate(path: str, root: Path, name: str, inside: bool) -> Path:
    """As `Source.locate`, for a table of this name; `inside` refuses paths outside the root."""
    if _ADDRESS.match(path):
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
    return str(info.sha), [(name, size) for name, size in listed if _wanted(name, files)]


def _download(repo: str, revision: str | None, files: str | None) -> Source:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise SourceError(f"{repo}: no such file or folder, and not the name of a Hub dataset (owner/name)")
    from huggingface_hub import snapshot_download

    commit, listed = hub_files(repo, revision, files)
    if not any(name.endswith(ENDINGS) for name, _ in listed):
        raise SourceError(
            f"{repo}: no {', '.join(ENDINGS)} file{_matching(files)}; try --revision refs/convert/parquet, or download "
            "and unpack it and import the folder"
        )

    names = [name for name, _ in listed]
    folder = Path(
        _ask(repo, lambda: snapshot_download(repo, repo_type="dataset", revision=commit, allow_patterns=names))
    )
    return Source(repo, folder, _shards(folder, files), commit)


def _matching(files: str | None) -> str:
    return f" that matches {files!r}" if files else ""


def _wanted(name: str, files: str | None) -> bool:
    if name.endswith(ENDINGS):
        return files is None or fnmatch(name, files)
    return name.endswith(".json")  # state of save_to_disk, splits


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
    found = []
    below = list(files_below(folder))
    states = {p.parent: read_json(p) for p in below if p.name == _STATE}
    saved = {path: state for path, state in states.items() if isinstance(state, dict) and "_data_files" in state}
    for path, state in saved.items():
        found.append(Shard(path, state.get("_split") or (path.name if path != folder else None)))
    for path in below:
        name = path.relative_to(folder)
        if path.suffix not in ENDINGS or any(s in path.parents for s in saved):
            continue
        if files is None or fnmatch(name.as_posix(), files):
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
