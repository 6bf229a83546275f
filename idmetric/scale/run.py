"""Embed chunks in this process: threads read ahead, the model embeds batch by batch, and parts are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from idmetric.embed.keys import content_key
from idmetric.embed.pipeline import Input, batches, threads
from idmetric.gallery.index import Item
from idmetric.gallery.read import load
from idmetric.gallery.sources import Entry
from idmetric.io.hints import need
from idmetric.io.threads import in_order
from idmetric.scale.chunks import ROWS, Chunk, chunks, entries, places
from idmetric.scale.folder import clean, own_folder, parts_of
from idmetric.scale.parts import Held, Layout, Stored, as_text, held, writing
from idmetric.scale.places import Place, ScaleError, checked_protocols, place

if TYPE_CHECKING:
    from idmetric.models.embedder import Embedder

Source = str | os.PathLike[str]
OnError = Literal["skip", "fail"]


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


@dataclass(frozen=True)
class Done:
    """The result of a chunk: rows in its part, and how many of them were embedded in this run."""

    part: str
    images: int
    embedded: int
    errors: dict[str, str]


@dataclass(frozen=True)
class Settings:
    """Options of reading and writing chunks."""

    batch_size: int = 32
    workers: int | None = None
    quick: bool = False
    filesystem: Any = None
    out_filesystem: Any = None
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


def embed_dataset(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    model: Embedder | str | Callable[[], Embedder] = "dinov3_vitl16",
    lists: Sequence[Source] = (),
    patches: bool = False,
    stored: Stored = "float32",
    column: str | None = None,
    column_id: str | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    rows: int = ROWS,
    quick: bool = False,
    on_error: OnError = "skip",
    filesystem: Any = None,
    out_filesystem: Any = None,
    allow: str | Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Embed all images of the sources into a folder of Parquet files; see `parts` for their columns.

    Memory grows only with the names of the images: at most three batches are decoded at once. A run that was stopped or
    killed loses its current chunk; the next run embeds the missing and changed images. In the end the folder holds one
    row for each image, and no others.

    Args:
        sources, lists: see `chunks.chunks`. out: a local folder or an address.
        model: a name for `idmetric.load`, a function that opens the model, or the model itself.
        patches: keep patch tokens too: megabytes per image.
        stored: "float16" halves the files; an image with numbers beyond its range gets an error.
        column, column_id: of Parquet sources. filesystem, out_filesystem: see `places.place`.
        batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
        rows: images per part, on average. A chunk is embedded again if any of its images has changed.
        quick: trust parts with the expected names; otherwise each image is read to see whether it has changed.
        allow: protocols, such as "s3", that addresses in tables and lists may have in addition to the protocol of the
            table or list itself; a row with another protocol, or a list with one, is an error.
        on_error: "fail" stops at the first chunk with an unreadable image; parts written before stay.
        progress: called with (images done, images in all).

    Raises:
        ScaleError: if a source or `out` cannot be used. Unreadable images become rows with an `error`.
        OSError: if the folder cannot be written. ImportError: without pyarrow.
    """
    settings = Settings(batch_size, workers, quick, filesystem, out_filesystem, checked_protocols(allow))
    with prepared(sources, out, model, lists, patches, stored, column, column_id, rows, settings) as work:
        results = embed_chunks(work.metric, work.todo, work.folder, work.layout, settings)
        return finish(work.folder, work.todo, results, on_error, progress)


def open_model(model: Embedder | str | Callable[[], Embedder]) -> Embedder:
    """Open a model, unless it is open."""
    from idmetric.models.embedder import Embedder
    from idmetric.models.load import load_embedder

    if isinstance(model, Embedder):
        return model
    return load_embedder(model) if isinstance(model, str) else model()


@dataclass(frozen=True)
class Work:
    """The chunks of a run, the model, and the folder that the run has locked."""

    todo: list[Chunk]
    metric: Embedder
    layout: Layout
    folder: Place


@contextmanager
def prepared(
    sources: Source | Sequence[Source], out: Source, model: Embedder | str | Callable[[], Embedder],
    lists: Sequence[Source], patches: bool, stored: Stored, column: str | None, column_id: str | None, rows: int,
    settings: Settings,
) -> Iterator[Work]:  # fmt: skip
    """List the images, open the model, and hold the folder during the block; arguments as for `embed_dataset`."""
    need("data", "embedding a data set", pyarrow="pyarrow")
    several = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    folder = place(out, settings.out_filesystem)
    _check_apart(several, folder, settings)
    todo = chunks(
        several, lists=lists, filesystem=settings.filesystem, column=column, column_id=column_id, rows=rows,
        allow=settings.allow,
    )  # fmt: skip
    metric = open_model(model)
    layout = Layout.of(metric, patches, stored)
    named, listed = ([as_text(place(x, settings.filesystem).name) for x in some] for some in (several, lists))
    work = {"sources": named, "lists": listed, "column": column, "column_id": column_id, "rows": rows}
    with own_folder(folder, layout, work):
        yield Work(todo, metric, layout, folder)


def _check_apart(sources: Sequence[Source], folder: Place, settings: Settings) -> None:
    """Refuse an output folder inside a source, where the next run would find it among the images."""
    for at in (place(source, settings.filesystem) for source in sources):
        names = [x.name if x.system is not None else os.path.realpath(x.path) for x in (folder, at)]
        if f"{names[0]}/".startswith(f"{names[1]}/") and settings.filesystem is settings.out_filesystem:
            raise ScaleError(f"{folder.name!r} lies in the source {at.name!r}: keep the embeddings elsewhere")


@dataclass
class _Read(Input[Item]):
    """An image on its way to a part."""

    part: str = ""


def embed_chunks(
    metric: Embedder, todo: Sequence[Chunk], folder: Place, layout: Layout, settings: Settings
) -> Iterator[Done]:
    """Yield the chunks with up-to-date parts, then write the other parts one by one, reading ahead across them.

    Raises:
        ScaleError, OSError: see `embed_dataset`.
    """
    missing: list[Chunk] = []
    yield from _kept(todo, folder, layout, settings, missing)

    def read(one: tuple[Chunk, Entry]) -> _Read:
        chunk, entry = one
        found = load(metric, entry, Item(entry.name, entry.place, entry.files, ""), lambda _: False, masked=False)
        return _Read(**vars(found), part=chunk.part)

    wanted = entries(missing, settings.filesystem, settings.batch_size, settings.allow)
    with closing(
        batches(wanted, read, batch_size=settings.batch_size, workers=settings.workers, group=lambda one: one.part)
    ) as ahead:
        for name, several in groupby(ahead, key=lambda batch: batch[0].part):
            with writing(folder, name, layout) as part:
                for batch in several:
                    part.add(metric, batch)
            yield Done(name, part.rows, part.rows - len(part.errors), part.errors)


def _kept(
    todo: Sequence[Chunk], folder: Place, layout: Layout, settings: Settings, missing: list[Chunk]
) -> Iterator[Done]:
    """Yield the chunks with up-to-date parts; add the others to `missing`."""
    known: dict[str, Held] = {}  # parts of the chunks that are being read

    def candidates() -> Iterator[Chunk]:
        for chunk in todo:
            found = held(folder, chunk.part, layout)
            if found is None or found.images != [as_text(x) for x in places(chunk, settings.filesystem)]:
                missing.append(chunk)
            else:
                known[chunk.part] = found
                yield chunk

    def done(chunk: Chunk) -> Done:
        return Done(chunk.part, chunk.count, 0, known.pop(chunk.part).errors)

    def seen(one: tuple[Chunk, Entry]) -> tuple[Chunk, str, str | None]:
        chunk, entry = one
        try:
            return chunk, as_text(entry.name), content_key(entry.image())
        except OSError:
            return chunk, as_text(entry.name), None

    if settings.quick:
        yield from map(done, candidates())
        return
    here = entries(candidates(), settings.filesystem, settings.batch_size, settings.allow)
    with closing(in_order(seen, here, threads=threads(settings.workers), waiting=2 * settings.batch_size)) as now:
        for _, group in groupby(now, key=lambda one: one[0].part):
            chunks_, names, keys = zip(*group, strict=True)
            found = known[chunks_[0].part]
            if (found.names, found.keys) == (list(names), list(keys)):
                yield done(chunks_[0])
            else:
                missing.append(chunks_[0])
                del known[chunks_[0].part]


def finish(
    folder: Place,
    todo: Sequence[Chunk],
    results: Iterator[Done],
    on_error: OnError,
    progress: Callable[[int, int], None] | None,
) -> Summary:
    """Wait for all chunks, check that all parts are there, and remove parts without a chunk and half-written files.

    Raises:
        ScaleError: if parts are missing, or an image could not be read and `on_error` is "fail".
    """
    if on_error not in ("skip", "fail"):
        raise ValueError(f"on_error must be 'skip' or 'fail', got {on_error!r}")
    total, images, embedded = sum(chunk.count for chunk in todo), 0, 0
    unreadable: dict[str, str] = {}
    for done in results:
        images, embedded = images + done.images, embedded + done.embedded
        unreadable |= done.errors
        for image, reason in done.errors.items() if on_error == "fail" else ():
            raise ScaleError(f"{image}: {reason}; replace it, or keep it as a row with its error (on_error 'skip')")
        if progress is not None:
            progress(images, total)
    there, wanted = parts_of(folder), {chunk.part for chunk in todo}
    if wanted - there or images != total:
        raise ScaleError(
            f"{len(wanted - there)} of {len(wanted)} parts are not in {folder.name!r}, {images} of {total} images are "
            "done: it must be a place that all processes share; run again for what is missing"
        )
    return Summary(images, embedded, len(wanted), unreadable, clean(folder, wanted))
