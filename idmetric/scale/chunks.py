"""Cut the images of folders, files, lists and Parquet tables into chunks; each chunk is written as one part."""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from idmetric.gallery.sources import Entry
from idmetric.images.paths import IMAGE_ENDINGS
from idmetric.scale.parts import part_name
from idmetric.scale.places import Place, ScaleError, place

ROWS = 256  # images of a chunk, on average
# columns of images, in order of preference: bytes (also as datasets' struct of bytes and path), or paths
_IMAGES = ("image_bytes", "image", "bytes", "path")
_NAMES = ("id", "path")


@dataclass(frozen=True)
class Chunk:
    """Images that are embedded and written together.

    Attributes:
        part: name of the file of their embeddings, the same as long as the chunk has the same images.
        count: number of images.
        names, paths: of files: names relative to the source, and paths.
        table: a Parquet table with the images; "" for files. start: number of the first row.
        column, column_id: columns of the table with images, and with their names ("" if it has none).
    """

    part: str
    count: int
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    table: str = ""
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
    allow: Sequence[str] = (),
) -> list[Chunk]:
    """Cut all images of the sources into chunks, each file once.

    The hash of a file's name decides whether a chunk ends after it (at the latest after four times `rows`), so one
    file more or less changes one chunk, not all that follow. In a Parquet table each `rows` rows are a chunk, whatever
    its row groups.

    Args:
        sources: folders (with all below them), image files, Parquet files, folders of Parquet files, or addresses of
            any of these. lists: text files with a path on each line, relative to the list's folder.
        filesystem: the file system of sources and lists, see `places.place`.
        column, column_id: of Parquet tables; default: the first of image_bytes, image, bytes, path, and of id, path.
        rows: images per chunk, on average.
        allow: protocols that addresses in lists may have, see `places.place`.

    Raises:
        ScaleError: for a source that is missing or holds no image, a table without such a column, or an address that
            is not allowed in a list.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    found: list[Chunk] = []
    files: list[tuple[str, Place]] = []
    for at in (place(source, filesystem) for source in sources):
        kind = at.kind()
        if kind == "folder":
            below = at.files()
            images = [name for name in below if os.path.splitext(name)[1].lower() in IMAGE_ENDINGS]
            tables = [name for name in below if name.endswith(".parquet") and not name.startswith("_")]
            if not images and not tables:
                raise ScaleError(
                    f"{at.name!r} holds no images (files ending in {' '.join(IMAGE_ENDINGS)}), no .parquet"
                )
            if images and tables:
                raise ScaleError(f"{at.name!r} holds images and Parquet files: name one kind, or the files")
            files += [(name, at.child(name)) for name in images]
            found += [c for name in tables for c in _ranges(at.child(name), column, column_id, rows)]
        elif kind == "file" and at.path.endswith(".parquet"):
            found += _ranges(at, column, column_id, rows)
        elif kind == "file" and at.path.endswith((".csv", ".jsonl")):
            raise ScaleError(f"{at.name!r}: of tables, Parquet files are read (a manifest can be written as one)")
        elif kind == "file":
            files.append((at.name.rpartition("/")[2], at))
        else:
            raise ScaleError(f"there is no folder, image or Parquet file at {at.name!r}: name the place it has now")
    for listed in lists:
        files += _listed(place(listed, filesystem, allow))
    different = {at.name: (name, at) for name, at in reversed(files)}
    found += _runs(list(reversed(different.values())), rows)
    unique = list({chunk.part: chunk for chunk in found}.values())
    if not unique:
        raise ScaleError("the sources hold no images")
    return unique


def places(chunk: Chunk, filesystem: Any = None) -> list[str]:
    """Return the places of a chunk's images, as `entries` names them, without reading any file."""
    if chunk.table:
        name = place(chunk.table, filesystem).name
        return [f"{name}#{number}" for number in range(chunk.start, chunk.start + chunk.count)]
    return [place(path, filesystem).name for path in chunk.paths]


def entries(
    todo: Iterable[Chunk], filesystem: Any = None, batch: int = 32, allow: Sequence[str] = ()
) -> Iterator[tuple[Chunk, Entry]]:
    """Yield the images of chunks, in order; adjacent chunks of a table are read in one pass, a batch at a time.

    Args:
        allow: protocols that addresses in tables may have; a row with another protocol cannot be read.

    Raises:
        ScaleError: for a table that cannot be read, or has lost rows.
    """
    for table, some in groupby(todo, key=lambda chunk: chunk.table):
        if table:
            yield from _rows(place(table, filesystem, allow), list(some), batch)
            continue
        for chunk in some:
            for name, path in zip(chunk.names, chunk.paths, strict=True):
                at = place(path, filesystem)
                yield chunk, Entry(name, at.name, (), at.read)


def _rows(at: Place, todo: Sequence[Chunk], batch: int) -> Iterator[tuple[Chunk, Entry]]:
    """Yield the images of chunks of one table, in one pass from the first of them."""
    wanted = {todo[0].column, todo[0].column_id, *(["path"] if todo[0].column == "image_bytes" else [])}
    waiting = deque(sorted(todo, key=lambda chunk: chunk.start))
    with _reading(at), _table(at) as table:
        ends = list(accumulate(table.metadata.row_group(k).num_rows for k in range(table.num_row_groups)))
        first = bisect_right(ends, waiting[0].start)
        number = ends[first - 1] if first else 0  # of the first row that is read
        columns = [name for name in table.schema_arrow.names if name in wanted]
        for rows in table.iter_batches(batch, row_groups=list(range(first, len(ends))), columns=columns):
            end = number + len(rows)
            while waiting and waiting[0].start < end:
                chunk, start = waiting[0], max(waiting[0].start, number)
                for row in rows.slice(start - number, chunk.start + chunk.count - start).to_pylist():
                    yield chunk, _entry(at, chunk, start, row)
                    start += 1
                if start < chunk.start + chunk.count:
                    break  # the rest comes with the next rows
                waiting.popleft()
            number = end
            if not waiting:
                break
    if waiting:
        raise ScaleError(f"{at.name!r} has fewer rows than it had: run again when nobody writes to it")


def _entry(at: Place, chunk: Chunk, number: int, row: dict[str, Any]) -> Entry:
    value = row[chunk.column]
    if isinstance(value, dict):  # as datasets keep images
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    value = row.get("path") if value is None else value  # a manifest's rows have one or the other
    called = row[chunk.column_id] if chunk.column_id else number
    return Entry(str(called), f"{at.name}#{number}", (), _Reader(at, value))


@dataclass(frozen=True)
class _Reader:
    """Reads an image of a table: its bytes, or the file that the row names, relative to the table."""

    table: Place
    value: Any

    def __call__(self) -> bytes:
        if isinstance(self.value, bytes):
            return self.value
        if not isinstance(self.value, str):
            raise OSError(f"the row holds no image, but {self.value!r:.40}")
        try:
            return self.table.parent.child(self.value).read()
        except ScaleError as error:  # only this row cannot be read
            raise OSError(str(error)) from error


def _runs(files: Sequence[tuple[str, Place]], rows: int) -> Iterator[Chunk]:
    """Cut files into chunks, each named after its last file."""
    run: list[tuple[str, Place]] = []
    for k, (name, at) in enumerate(files):
        run.append((name, at))
        ends = int.from_bytes(
            hashlib.blake2b(at.name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
        )
        if ends % rows == 0 or len(run) >= 4 * rows or k == len(files) - 1:
            names, places = zip(*run, strict=True)
            yield Chunk(part_name(at.name), len(run), names, tuple(p.name for p in places))
            run = []


def _ranges(at: Place, column: str | None, column_id: str | None, rows: int) -> Iterator[Chunk]:
    """Cut the rows of a Parquet file into chunks."""
    with _reading(at), _table(at) as table:
        there, count = table.schema_arrow.names, table.metadata.num_rows
    images = next((c for c in ([column] if column else _IMAGES) if c in there), None)
    if images is None or (column_id and column_id not in there):
        lacking, option = (column or f"any of {', '.join(_IMAGES)}", "--column")
        if images is not None:
            lacking, option = f"{column_id}", "--id-column"
        raise ScaleError(f"{at.name!r} has no column {lacking}, but {', '.join(there)}: say which ({option})")
    names = next((c for c in ([column_id] if column_id else _NAMES) if c in there), "")
    for start in range(0, count, rows):
        part, size = part_name(f"{at.name}#{start}"), min(rows, count - start)
        yield Chunk(part, size, table=at.name, start=start, column=images, column_id=names)


@contextmanager
def _table(at: Place) -> Iterator[Any]:
    """Open a Parquet file to read its row groups a page at a time."""
    import pyarrow.parquet as pq

    with at.opened() as opened, pq.ParquetFile(opened, buffer_size=2**20, pre_buffer=False) as table:
        yield table


@contextmanager
def _reading(at: Place) -> Iterator[None]:
    """Turn errors of reading a table into a ScaleError with its name."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise ScaleError(f"{at.name!r} cannot be read as Parquet: {error}") from error


def _listed(at: Place) -> list[tuple[str, Place]]:
    """Return the files that a list names."""
    try:
        lines = at.read().decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScaleError(f"cannot read the list {at.name!r}: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ScaleError(f"the list {at.name!r} names no image")
    try:
        # find's ./a.jpg is a.jpg
        return [(name, at.parent.child(re.sub(r"^(\./+)+", "", name) or name)) for name in names]
    except ScaleError as error:
        raise ScaleError(f"the list {at.name!r}: {error}") from error
