"""The images of folders, files, lists and Parquet tables, cut into chunks: the unit of work, of loss and of output."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from idmetric.gallery.sources import EXTENSIONS, Entry
from idmetric.scale.places import Place, ScaleError, place

ROWS = 256  # images of a chunk, on average
# columns that hold images, the first that is there: bytes (also as datasets' struct of bytes and path), or paths
_IMAGES = ("image_bytes", "image", "bytes", "path")
_NAMES = ("id", "path")


@dataclass(frozen=True)
class Chunk:
    """Some images.

    Attributes:
        part: name of the file that their embeddings go to; it stays while these images do.
        count: of images.
        names, paths: of files: what they are called below their source, and where they lie.
        group: of a Parquet table: number of a row group, -1 for files. start: number of its first row.
        column, column_id: of a Parquet table: with the images, and with their names ("" if it has none).
    """

    part: str
    count: int
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    table: str = ""
    group: int = -1
    start: int = 0
    column: str = ""
    column_id: str = ""


def chunks(
    sources: Sequence[str | os.PathLike[str]],
    *,
    lists: Sequence[str | os.PathLike[str]] = (),
    filesystem: Any = None,
    column: str | None = None,
    column_id: str | None = None,
    rows: int = ROWS,
) -> list[Chunk]:
    """All images of the sources, each file once.

    A run of files ends after one whose name hashes to the end of a chunk (or at four times `rows`), so that a file
    more or less changes one chunk, not all that follow. Of a Parquet table each row group is a chunk.

    Args:
        sources: folders (with all below them), image files, Parquet files, folders of Parquet files, or addresses of
            any of these. lists: text files with a path on each line, relative to the list's folder.
        filesystem: in which sources and lists are paths, see `places.place`.
        column, column_id: of Parquet tables; default: the first of image_bytes, image, bytes, path; and id, path.
        rows: images of a chunk, on average.

    Raises:
        ScaleError: for a source that is not there, holds no image, or a table without such a column.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    found: list[Chunk] = []
    files: list[tuple[str, Place]] = []
    for at in (place(source, filesystem) for source in sources):
        kind, _ = at.info()
        if kind == "folder":
            below = at.files()
            images = [name for name in below if os.path.splitext(name)[1].lower() in EXTENSIONS]
            tables = [name for name in below if name.endswith(".parquet") and not name.startswith("_")]
            if not images and not tables:
                raise ScaleError(f"{at.name!r} holds no images (files ending in {' '.join(EXTENSIONS)}), no .parquet")
            if images and tables:
                raise ScaleError(f"{at.name!r} holds images and Parquet files: name one kind, or the files")
            files += [(name, at.child(name)) for name in images]
            found += [c for name in tables for c in _groups(at.child(name), column, column_id)]
        elif kind == "file" and at.path.endswith(".parquet"):
            found += _groups(at, column, column_id)
        elif kind == "file" and at.path.endswith((".csv", ".jsonl")):
            raise ScaleError(f"{at.name!r}: of tables, Parquet files are read (a manifest can be written as one)")
        elif kind == "file":
            files.append((at.name.rpartition("/")[2], at))
        else:
            raise ScaleError(f"there is no folder, image or Parquet file at {at.name!r}: name the place it has now")
    for listed in lists:
        files += _listed(place(listed, filesystem))
    different = {at.name: (name, at) for name, at in reversed(files)}
    found += _runs(list(reversed(different.values())), rows)
    unique = list({chunk.part: chunk for chunk in found}.values())
    if not unique:
        raise ScaleError("the sources hold no images")
    return unique


def entries(chunk: Chunk, filesystem: Any = None, batch: int = 32) -> Iterator[Entry]:
    """The images of a chunk, in order; bytes of a table come a batch at a time.

    Raises:
        ScaleError: for a table that cannot be read.
    """
    if chunk.group < 0:
        for name, path in zip(chunk.names, chunk.paths, strict=True):
            at = place(path, filesystem)
            yield Entry(name, at.name, (), at.read)
        return
    at = place(chunk.table, filesystem)
    number = chunk.start
    with _table(at) as table:
        wanted = {chunk.column, chunk.column_id, *(["path"] if chunk.column == "image_bytes" else [])}
        columns = [name for name in table.schema_arrow.names if name in wanted]
        for part in table.iter_batches(batch, row_groups=[chunk.group], columns=columns):
            for row in part.to_pylist():
                value = row[chunk.column]
                if isinstance(value, dict):  # as datasets keep images
                    value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
                value = row.get("path") if value is None else value  # a manifest's rows have one or the other
                called = row[chunk.column_id] if chunk.column_id else number
                yield Entry(str(called), f"{at.name}#{number}", (), _Reader(at, value))
                number += 1


@dataclass(frozen=True)
class _Reader:
    """Reads an image of a table: its bytes, or the file that it names beside the table."""

    table: Place
    value: Any

    def __call__(self) -> bytes:
        if isinstance(self.value, bytes):
            return self.value
        if not isinstance(self.value, str):
            raise OSError(f"the row holds no image, but {self.value!r:.40}")
        return self.table.parent.child(self.value).read()


def _runs(files: Sequence[tuple[str, Place]], rows: int) -> Iterator[Chunk]:
    """Files as chunks, each called after its last one."""
    run: list[tuple[str, Place]] = []
    for k, (name, at) in enumerate(files):
        run.append((name, at))
        ends = int.from_bytes(
            hashlib.blake2b(at.name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
        )
        if ends % rows == 0 or len(run) >= 4 * rows or k == len(files) - 1:
            names, places = zip(*run, strict=True)
            yield Chunk(_part(at.name), len(run), names, tuple(p.name for p in places))
            run = []


def _groups(at: Place, column: str | None, column_id: str | None) -> Iterator[Chunk]:
    """The row groups of a Parquet file."""
    with _table(at) as table:
        there = table.schema_arrow.names
        images = next((c for c in ([column] if column else _IMAGES) if c in there), None)
        if images is None or (column_id and column_id not in there):
            lacking = column_id if images is not None else column or "any of " + ", ".join(_IMAGES)
            raise ScaleError(f"{at.name!r} has no column {lacking}, but {', '.join(there)}: say which (--column)")
        names = next((c for c in ([column_id] if column_id else _NAMES) if c in there), "")
        start = 0
        for group in range(table.num_row_groups):
            count = table.metadata.row_group(group).num_rows
            if count:
                yield Chunk(_part(f"{at.name}#{group}"), count, table=at.name, group=group, start=start,
                            column=images, column_id=names)  # fmt: skip
            start += count


def _table(at: Place) -> Any:
    """A Parquet file, whose row groups are read a page at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(at.opened(), buffer_size=2**20, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise ScaleError(f"{at.name!r} cannot be read as Parquet: {error}") from error


def _listed(at: Place) -> list[tuple[str, Place]]:
    """The files that a list names."""
    try:
        lines = at.read().decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScaleError(f"cannot read the list {at.name!r}: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ScaleError(f"the list {at.name!r} names no image")
    return [(name, at.parent.child(name)) for name in names]


def _part(name: str) -> str:
    return f"part-{hashlib.blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=10).hexdigest()}.parquet"
