"""Cut the images of folders, files and Parquet tables into chunks; each chunk is written as one part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from idmetric.gallery.scale.places import Place, ScaleError, place
from idmetric.gallery.sources import Entry
from idmetric.metric.images.paths import IMAGE_ENDINGS, is_address, is_image

ROWS = 256  # images of a chunk, on average
# columns of images, in order of preference: bytes (also as datasets' struct of bytes and path), or paths
_IMAGES = ("image_bytes", "image", "bytes", "path")
_NAMES = ("id", "path")


@dataclass(frozen=True)
class Chunk:
    """Images that are embedded and written together.

    Attributes:
        part: name of the file of their embeddings, the same as long as the images are.
        count: number of images.
        files: names relative to the source, and places; none for a table.
        table: a Parquet table with the images. start: number of the first row.
        column, column_id: columns of the table with images, and with their names ("" if it has none).
    """

    part: str
    count: int
    files: tuple[tuple[str, Place], ...] = ()
    table: Place | None = None
    start: int = 0
    column: str = ""
    column_id: str = ""


def chunks(
    sources: Sequence[str | os.PathLike[str]],
    *,
    column: str | None = None,
    column_id: str | None = None,
    rows: int = ROWS,
) -> list[Chunk]:
    """Cut all images of the sources into chunks, each file once.

    The hash of a file's name decides whether a chunk ends after it (at the latest after four times `rows`), so one
    file more or less changes one chunk, not all that follow. In a Parquet table each `rows` rows are a chunk, whatever
    its row groups.

    Args:
        sources: folders (with all below them) and image files, or Parquet files and folders of them; also addresses.
        column, column_id: of Parquet tables; default: the first of image_bytes, image, bytes, path, and of id, path.
        rows: images per chunk, on average.

    Raises:
        ScaleError: for a source that is missing or holds no image, or a table without such a column.
    """
    images: dict[str, tuple[str, Place]] = {}
    tables: list[Place] = []
    for at in map(place, sources):
        kind = at.kind()
        if kind == "nothing":
            raise ScaleError(f"there is no folder, image or Parquet file at {at.name!r}: name the place it has now")
        if kind == "file" and at.path.endswith((".csv", ".jsonl")):
            raise ScaleError(f"{at.name!r}: of tables, Parquet files are read (a manifest can be written as one)")

        below = at.files() if kind == "folder" else [""]
        found = len(images) + len(tables)
        for name in below:
            one = at.child(name) if name else at
            if one.path.endswith(".parquet"):
                known = [table.name for table in tables]
                tables += [] if os.path.basename(name).startswith("_") or one.name in known else [one]
            elif not name or is_image(name):
                images.setdefault(one.name, (name or os.path.basename(at.path), one))
        if kind == "folder" and len(images) + len(tables) == found:
            raise ScaleError(f"{at.name!r} holds no images (files ending in {' '.join(IMAGE_ENDINGS)}), no .parquet")
    if images and tables:
        raise ScaleError(f"images and Parquet files ({tables[0].name!r}) are embedded apart: name one kind")
    cut = [chunk for table in tables for chunk in _ranges(table, column, column_id, rows)]
    cut += _runs(list(images.values()), rows)
    if not cut:
        raise ScaleError("the sources hold no images")
    return cut


def _runs(files: Sequence[tuple[str, Place]], rows: int) -> Iterator[Chunk]:
    """Cut files into chunks."""
    run: list[tuple[str, Place]] = []
    for number, file in enumerate(files, 1):
        run.append(file)
        if int(_hash(file[1].name), 16) % rows == 0 or len(run) >= 4 * rows or number == len(files):
            part = _hash(*(f"{at.name} {at.stamp()}" for _, at in run))
            yield Chunk(f"part-{part}.parquet", len(run), tuple(run))
            run = []


def _ranges(at: Place, column: str | None, column_id: str | None, rows: int) -> Iterator[Chunk]:
    """Cut the rows of a Parquet file into chunks."""
    with _reading(at) as table:
        there, count = table.schema_arrow.names, table.metadata.num_rows
    images = next((c for c in ([column] if column else _IMAGES) if c in there), None)
    names = next((c for c in ([column_id] if column_id else _NAMES) if c in there), "")
    if images is None or (column_id and not names):
        lacking = column_id if images else column or f"any of {', '.join(_IMAGES)}"
        option = "--id-column" if images else "--column"
        raise ScaleError(f"{at.name!r} has no column {lacking}, but {', '.join(there)}: say which ({option})")
    stamp = at.stamp()
    for start in range(0, count, rows):
        part = _hash(f"{at.name} {stamp} {images} {names} {start}")
        yield Chunk(f"part-{part}.parquet", min(rows, count - start), (), at, start, images, names)


def entries(todo: Iterable[Chunk], batch: int) -> Iterator[tuple[Chunk, Entry]]:
    """Yield the images of chunks, in order; a table is read in one pass, `batch` rows at a time."""
    for table, some in groupby(todo, key=lambda chunk: chunk.table):
        if table is not None:
            yield from _rows(table, list(some), batch)
        else:
            yield from ((chunk, Entry(name, at.name, (), at.read)) for chunk in some for name, at in chunk.files)


def _rows(at: Place, todo: Sequence[Chunk], batch: int) -> Iterator[tuple[Chunk, Entry]]:
    """Yield the images of chunks of one table."""
    chunk_of = {number: chunk for chunk in todo for number in range(chunk.start, chunk.start + chunk.count)}
    column, column_id = todo[0].column, todo[0].column_id
    wanted = {column, column_id, *(["path"] if column == "image_bytes" else [])}
    with _reading(at) as table:
        number = 0
        for rows in table.iter_batches(batch, columns=[name for name in table.schema_arrow.names if name in wanted]):
            for k in range(len(rows)):
                if (chunk := chunk_of.get(number)) is not None:
                    row = rows.slice(k, 1).to_pylist()[0]
                    name = str(row[column_id] if column_id else number)
                    yield chunk, Entry(name, f"{at.name}#{number}", (), partial(_image, at, row, column))
                number += 1


def _image(table: Place, row: dict[str, Any], column: str) -> bytes:
    """Return the image of a row: its bytes, or those of the file that it names, relative to the table's folder."""
    value = row[column]
    if isinstance(value, dict):  # as datasets keep images
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    value = row.get("path") if value is None else value  # a manifest's rows have one or the other
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise OSError(f"the row holds no image, but {value!r:.40}")
    if "://" in value or is_address(value):
        raise OSError(f"{value!r} is an address in a table, which is not opened: store the image's bytes or a path")
    return replace(table, path=os.path.dirname(table.path)).child(value).read()


@contextmanager
def _reading(at: Place) -> Iterator[Any]:
    """Open a Parquet file, to be read a page at a time; turn errors into a ScaleError with its name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with at.opened() as opened, pq.ParquetFile(opened, buffer_size=2**20, pre_buffer=False) as table:
            yield table
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise ScaleError(f"{at.name!r} cannot be read as Parquet: {error}") from error


def _hash(*texts: str) -> str:
    return hashlib.blake2b("\n".join(texts).encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()
