"""The folder of Parquet files that `scale` writes: its schema, and which images it holds."""

from __future__ import annotations

import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from idmetric.metric.files import StrPath
from idmetric.metric.files.hints import MissingExtraError, install
from idmetric.metric.files.output import replacing
from idmetric.metric.images.paths import is_hidden
from idmetric.metric.scoring.pipeline import Input, embed

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs
except ImportError as error:
    raise MissingExtraError(f"embedding a data set needs pyarrow: {install('data')}") from error

if TYPE_CHECKING:
    from idmetric.metric.models.embedder import Embedder

Stored = Literal["float32", "float16"]
META = b"idmetric.embed"
PART = re.compile(r"part_[0-9a-f]{32}_[0-9]{6}-[0-9]+\.parquet")  # as Ray Data names them
WRITING: dict[str, Any] = {"use_dictionary": False, "write_page_checksum": True}
SCHEMES = ("file", "s3", "gs", "abfs", "abfss", "hdfs")  # pyarrow opens others too, and addresses inside addresses


class ScaleError(RuntimeError):
    """A source or a folder of embeddings cannot be used; the message says why and how to fix it."""


@dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes:
        images: rows in the folder. embedded: how many of them were embedded in this run. parts: files.
        unreadable: image -> why it has no embedding.
        removed: deleted files: damaged, or with an image that has changed, could not be opened, or is gone.
    """

    images: int
    embedded: int
    parts: int
    unreadable: dict[str, str] = field(default_factory=dict)
    removed: int = 0

    def __str__(self) -> str:
        files = "1 file" if self.parts == 1 else f"{self.parts} files"
        unreadable = f", {len(self.unreadable)} unreadable" if self.unreadable else ""
        return f"{self.images} images in {files}, {self.embedded} embedded{unreadable}"


# Addresses


def locate(address: StrPath) -> tuple[Any, str, str]:
    """Return pyarrow's file system, the path there, and the prefix of names there: empty on this machine."""
    text = os.fspath(address)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return fs.LocalFileSystem(), os.path.abspath(text), ""
    if scheme not in SCHEMES:
        raise ScaleError(
            f"{text!r} is not an address of {', '.join(SCHEMES)}: download it, and name the file or folder"
        )
    try:
        system, path = fs.FileSystem.from_uri(text)
    except (pa.ArrowException, OSError, ImportError) as error:
        raise ScaleError(f"{text!r} cannot be opened ({error}): check its name, network and credentials") from error
    return system, path.rstrip("/"), "" if scheme == "file" else f"{scheme}://"


def files_below(system: Any, root: str) -> dict[str, str]:
    """Return path -> stamp of the files in and below a folder, sorted and without hidden ones, or of a file."""
    info = system.get_file_info(root)
    infos = [info]
    if not info.is_file:
        infos = system.get_file_info(fs.FileSelector(root, recursive=True))
    stamps = {}
    for info in sorted(infos, key=lambda info: str(info.path)):
        names = info.path[len(root) :].split("/")
        if info.is_file and not any(map(is_hidden, names)):
            stamps[info.path] = f"{info.size} {info.mtime_ns}"
    return stamps


# The folder


def schema_of(
    metric: Embedder,
    patches: bool,
    stored: Stored,
    sources: Sequence[str],
) -> Any:
    """Find the schema of a model's files by embedding one image; its metadata names model, settings and sources."""
    blank = Input(None, pixels=torch.zeros(3, *metric.image_size))
    embedding, _ = embed(metric, [blank], patches)
    size = embedding.cls.shape[1]
    grid = None
    if patches:
        if embedding.patches is None or embedding.grid is None:
            raise ScaleError(f"{metric.label} has no patches: leave them out")
        grid = [*embedding.grid, embedding.patches.shape[2]]

    number = pa.from_numpy_dtype(stored)
    columns = dict.fromkeys(("image", "name", "stamp", "key"), pa.string())
    columns |= dict.fromkeys(("width", "height"), pa.int32())
    columns["embedding"] = pa.list_(number, size)
    if grid:
        columns["patches"] = pa.list_(number, math.prod(grid))
    columns["error"] = pa.string()
    facts = {"format": 2, **metric.about(), "size": size, "patches": grid, "stored": stored, "sources": sources}
    return pa.schema(columns, {META: json.dumps(facts)})


@dataclass
class Output:
    """The folder of embeddings of a run.

    Attributes:
        schema: of its files. stamps: of images, or of the tables that hold them. fail: stop at unreadable images.
        done: the images that have a row. removed: number of files that were deleted.
    """

    system: Any
    folder: str
    is_local: bool
    schema: Any
    stamps: dict[str, str]
    fail: bool
    done: set[str] = field(default_factory=set)
    removed: int = 0

    def stamp(self, image: str) -> str | None:
        """Return the stamp of an image, or of the table in which it is a row; None if it is in no source."""
        table, _, _ = image.rpartition("#")
        return self.stamps.get(image, self.stamps.get(table))

    def table(self, records: list[dict[str, Any]]) -> pa.Table:
        """Return rows of a file; ScaleError for an unreadable image at which the run stops."""
        for record in records:
            record["stamp"] = self.stamp(record["image"])
            self.check_readable(record)
        return pa.Table.from_pylist(records, schema=self.schema)

    def check_readable(self, row: dict[str, Any]) -> None:
        """Raise ScaleError for an unreadable image at which the run stops."""
        if self.fail and row["error"]:
            raise ScaleError(
                f"{row['image']}: {row['error']}; replace it, or keep it as a row with its error (on_error 'skip')"
            )

    def remove_outdated(self) -> None:
        """Delete files that are damaged, or do not hold what the sources hold, and note what others hold."""
        for path, rows in self.parts().items():
            images = {row["image"] for row in rows}
            is_current = all(row["key"] and row["stamp"] == self.stamp(row["image"]) for row in rows)
            if not rows or not is_current or images & self.done:
                self.system.delete_file(path)
                self.removed += 1
                continue
            self.done |= images
            for row in rows:
                self.check_readable(row)

    def parts(self) -> dict[str, list[dict[str, Any]]]:
        """Return path -> image, stamp, key and error of the rows of each file, checked with their checksums.

        There are no rows if the file is damaged. Patches are not checked.

        Raises:
            ScaleError: for a Parquet file of another origin. OSError: if a file cannot be read now.
        """
        columns = [name for name in self.schema.names if name != "patches"]
        parts: dict[str, list[dict[str, Any]]] = {}
        for path in files_below(self.system, self.folder):
            if not path.endswith(".parquet"):
                continue
            if not PART.fullmatch(os.path.relpath(path, self.folder)):
                raise ScaleError(f"{self.folder!r} holds other Parquet files ({path}): name a folder of its own")
            parts[path] = []
            try:
                with (
                    self.system.open_input_file(path) as file,
                    pq.ParquetFile(file, page_checksum_verification=True) as part,
                ):
                    check_same(path, part.schema_arrow.metadata or {}, self.schema)
                    table = part.read(columns=columns)
                parts[path] = table.select(["image", "stamp", "key", "error"]).to_pylist()
            except (pa.ArrowException, KeyError, ValueError):
                continue
            except OSError as error:
                if error.errno is not None:  # pyarrow reports wrong checksums as OSErrors without a number
                    raise
        return parts

    def write(self, tables: list[pa.Table]) -> None:
        """Write a file."""
        table = pa.concat_tables(tables)
        path = os.path.join(self.folder, f"part_{uuid.uuid4().hex}_000000-0.parquet")
        if not self.is_local:
            pq.write_table(table, path, filesystem=self.system, **WRITING)
            return
        with replacing(Path(path)) as temporary:
            pq.write_table(table, temporary, **WRITING)

    def summary(self, images: Iterable[str] = ()) -> Summary:
        """Check that all images have a row, and no two rows one name, and count them."""
        parts = self.parts()
        errors: dict[str, str | None] = {}
        for rows in parts.values():
            for row in rows:
                if row["image"] in errors:
                    raise ScaleError(f"{row['image']!r} has two rows: name a column with unique ids (--id-column)")
                errors[row["image"]] = row["error"]

        missing = [image for image in images if image not in errors]
        if missing:
            raise ScaleError(
                f"{len(missing)} images ({missing[0]}, ...) are not in {self.folder!r}: it must be a place that all "
                "processes share; run again for what is missing"
            )
        unreadable = {image: error for image, error in errors.items() if error is not None}
        embedded = len(errors.keys() - unreadable.keys() - self.done)
        return Summary(len(errors), embedded, len(parts), unreadable, self.removed)


def check_same(
    path: str,
    metadata: dict[bytes, bytes],
    schema: Any,
) -> None:
    """Raise ScaleError for a file of another model, settings or sources; the package's version may differ."""
    if META not in metadata:
        raise ScaleError(f"{path!r} is another Parquet file: name a folder of its own")
    facts = json.loads(metadata[META])
    different = [
        f"{name} {facts.get(name)} instead of {value}"
        for name, value in json.loads(schema.metadata[META]).items()
        if name != "idmetric" and facts.get(name) != value
    ]
    if different:
        raise ScaleError(f"{path!r} is of other work ({'; '.join(different)}): name another folder")
