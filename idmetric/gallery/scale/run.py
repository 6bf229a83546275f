"""Embed chunks in this process: threads read ahead, the model embeds batch by batch, and parts are written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from idmetric.gallery.index import Item
from idmetric.gallery.read import load
from idmetric.gallery.scale.chunks import ROWS, Chunk, chunks, entries
from idmetric.gallery.scale.parts import (
    META,
    Stored,
    as_text,
    clean,
    errors_in,
    own_folder,
    parts_in,
    rows_of,
    schema_of,
)
from idmetric.gallery.scale.places import Place, ScaleError, place
from idmetric.gallery.sources import Entry
from idmetric.metric.files.hints import need
from idmetric.metric.scoring.pipeline import Input, batches

if TYPE_CHECKING:
    from idmetric.metric.models.embedder import Embedder

Source = str | os.PathLike[str]
OnError = Literal["skip", "fail"]
Progress = Callable[[int, int], None]
# a chunk, whether it was embedded in this run, and image -> error
Done = tuple[Chunk, bool, dict[str, str]]


@dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes:
        images: rows in the folder. embedded: how many of them were embedded in this run. parts: files.
        unreadable: image -> why it has no embedding.
        removed: deleted parts, with images that are in no source any more (or in other chunks).
    """

    images: int
    embedded: int
    parts: int
    unreadable: dict[str, str] = field(default_factory=dict)
    removed: int = 0

    def __str__(self) -> str:
        more = [f"{len(self.unreadable)} unreadable"] if self.unreadable else []
        more += [f"{self.removed} removed"] if self.removed else []
        files = f"{self.parts} file{'s' if self.parts != 1 else ''}"
        return ", ".join([f"{self.images} images in {files}", f"{self.embedded} embedded", *more])


def embed_dataset(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    model: Embedder | str | Callable[[], Embedder] = "dinov3_vitl16",
    patches: bool = False,
    stored: Stored = "float32",
    column: str | None = None,
    column_id: str | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    rows: int = ROWS,
    on_error: OnError = "skip",
    progress: Progress | None = None,
) -> Summary:
    """Embed all images of the sources into a folder of Parquet files; see `parts` for their columns.

    Memory grows only with the names of the images: at most three batches are decoded at once. A run that was stopped or
    killed loses its current chunk; the next run embeds the missing and changed images. In the end the folder holds one
    row for each image, and no others.

    Args:
        sources: folders and image files, or Parquet files and folders of them; local or addresses that fsspec opens.
        out: a local folder or an address.
        model: a name for `idmetric.load`, a function that opens the model, or the model itself.
        patches: keep patch tokens too: megabytes per image.
        stored: "float16" halves the files; an image with numbers beyond its range gets an error.
        column, column_id: of Parquet sources, see `chunks.chunks`.
        batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
        rows: images per part, on average. A chunk is embedded again if size or time of any of its files has changed.
        on_error: "fail" stops at the first chunk with an unreadable image; parts written before stay.
        progress: called with (images done, images in all).

    Raises:
        ScaleError: if a source or `out` cannot be used. Unreadable images become rows with an `error`.
        OSError: if the folder cannot be written. ImportError: without pyarrow.
    """
    with prepared(sources, out, model, patches, stored, column=column, column_id=column_id, rows=rows) as work:
        done = embed_chunks(work.metric, work.todo, work.folder, work.schema, batch_size, workers)
        return finish(work, done, on_error, progress)


@dataclass(frozen=True)
class Work:
    """The chunks of a run, the model, the schema of its parts, and the folder that the run has locked."""

    todo: list[Chunk]
    metric: Embedder
    schema: Any
    folder: Place


@contextmanager
def prepared(
    sources: Source | Sequence[Source], out: Source, model: Any, patches: bool, stored: Stored, **cut: Any
) -> Iterator[Work]:
    """List the images, open the model, and hold the folder during the block; `cut`: how sources become chunks."""
    need("data", "embedding a data set", pyarrow="pyarrow")
    several = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    folder, names = place(out), [place(source).name for source in several]
    for name in names:
        if f"{folder.name}/".startswith(f"{name}/"):  # the next run would find it among the images
            raise ScaleError(f"{folder.name!r} lies in the source {name!r}: keep the embeddings elsewhere")
    todo = chunks(several, **cut)
    metric = open_model(model)
    schema = schema_of(metric, patches, stored)
    work = {"made_by": json.loads(schema.metadata[META]), "sources": [as_text(name) for name in names], **cut}
    with own_folder(folder, work):
        yield Work(todo, metric, schema, folder)


def open_model(model: Embedder | str | Callable[[], Embedder]) -> Embedder:
    """Open a model, unless it is open."""
    from idmetric.metric.models.embedder import Embedder
    from idmetric.metric.models.load import load

    if isinstance(model, Embedder):
        return model
    return load(model) if isinstance(model, str) else model()


def embed_chunks(
    metric: Embedder, todo: Sequence[Chunk], folder: Place, schema: Any, batch_size: int, workers: int | None
) -> Iterator[Done]:
    """Yield the chunks with finished parts, then write the other parts one by one, reading ahead across them."""
    import pyarrow.parquet as pq

    missing: list[Chunk] = []
    for chunk in todo:
        if (errors := errors_in(folder.child(chunk.part), chunk.count)) is None:
            missing.append(chunk)
        else:
            yield chunk, False, errors

    def read(one: tuple[Chunk, Entry]) -> Input[tuple[Chunk, Item]]:
        chunk, entry = one
        found = load(metric, entry, Item(entry.name, entry.place, entry.files, ""), lambda _: False, masked=False)
        return Input((chunk, found.item), pixels=found.pixels, problem=found.problem)

    ahead = batches(
        entries(missing, batch_size), read, batch_size=batch_size, workers=workers, group=lambda one: one.item[0].part
    )
    with closing(ahead):
        for chunk, several in groupby(ahead, key=lambda batch: batch[0].item[0]):
            errors = {}
            with (
                folder.child(chunk.part).replacing() as path,
                pq.ParquetWriter(path, schema, use_dictionary=False, write_page_checksum=True) as writer,
            ):
                for batch in several:
                    table = rows_of(metric, [(one.item[1], one) for one in batch], schema)
                    writer.write_table(table)
                    texts = zip(table["image"].to_pylist(), table["error"].to_pylist(), strict=True)
                    errors |= {image: error for image, error in texts if error}
            yield chunk, True, errors


def finish(work: Work, results: Iterator[Done], on_error: OnError, progress: Progress | None) -> Summary:
    """Wait for all chunks, check that all parts are there, and remove parts without a chunk and half-written files."""
    total, images, embedded = sum(chunk.count for chunk in work.todo), 0, 0
    unreadable: dict[str, str] = {}
    for chunk, fresh, errors in results:
        images += chunk.count
        embedded += chunk.count - len(errors) if fresh else 0
        unreadable |= errors
        for image, reason in errors.items() if on_error != "skip" else ():
            raise ScaleError(f"{image}: {reason}; replace it, or keep it as a row with its error (on_error 'skip')")
        if progress is not None:
            progress(images, total)
    wanted = {chunk.part for chunk in work.todo}
    if missing := wanted - parts_in(work.folder):
        raise ScaleError(
            f"{len(missing)} of {len(wanted)} parts are not in {work.folder.name!r}: it must be a place that all "
            "processes share; run again for what is missing"
        )
    return Summary(images, embedded, len(wanted), unreadable, clean(work.folder, wanted))
