"""Lists the images of folders, manifests and addresses, and embeds them batch by batch into rows of `parts`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from idmetric.gallery.index import Item, files_of, stamp_of
from idmetric.gallery.parts import META, Output, ScaleError, files_below, locate
from idmetric.gallery.read import load
from idmetric.gallery.sources import Entry, Source, entries
from idmetric.metric.files import StrPath
from idmetric.metric.images.paths import is_image
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.models.load import load as load_model
from idmetric.metric.scoring.pipeline import Input, batches, embed

if TYPE_CHECKING:
    import pyarrow as pa

Model = Embedder | str | Callable[[], Embedder]


def listed(sources: Sequence[StrPath]) -> tuple[list[Entry], dict[str, str]]:
    """List all images, each once, and image -> stamp: size and time of its file."""
    images: dict[str, Entry] = {}
    stamps: dict[str, str] = {}
    for source in sources:
        system, root, prefix = locate(source)
        if not prefix:
            for entry in entries([Source(root)], masked=False):
                name = as_text(entry.place)
                images[name] = replace(entry, name=as_text(entry.name), place=name)
                stamps[name] = str(stamp_of(files_of(entry)))
            continue
        for path, stamp in files_below(system, root).items():
            if path == root or is_image(path):
                name = path[len(root) + 1 :] or os.path.basename(path)
                images[prefix + path] = Entry(name, prefix + path, (), partial(_read, system, path))
                stamps[prefix + path] = stamp
    if not images:
        raise ScaleError("the sources hold no images: check their addresses")
    return list(images.values()), stamps


def _read(system: Any, path: str) -> bytes:
    with system.open_input_stream(path) as file:
        return bytes(file.read())


def table_entry(
    prefix: str,
    column: str,
    column_id: str,
    row: dict[str, Any],
) -> Entry:
    """Return the image in a row of a table."""
    name = str(row[column_id])
    return Entry(name, f"{prefix}{row['path']}#{name}", (), partial(_cell, row[column]))


def _cell(value: Any) -> bytes:
    """Return the image in a table's cell: bytes, or datasets' struct with them."""
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise OSError(f"the row holds no image bytes, but {value!r:.80}; paths and addresses in tables are not opened")
    return data


def as_text(name: str) -> str:
    """Escape a name that may not be UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


class Worker:
    """Embeds images; Ray Data opens one in each process.

    Args:
        output: the folder of embeddings. entry_of: returns the image in a row of Ray Data.
    """

    def __init__(
        self,
        model: Model,
        output: Output,
        batch_size: int,
        workers: int | None,
        entry_of: Callable[[dict[str, Any]], Entry] | None = None,
    ) -> None:
        self.metric = opened(model)
        self.output = output
        self.batch_size = batch_size
        self.workers = workers
        self.entry_of = entry_of
        self.facts = json.loads(output.schema.metadata[META])
        if not self.metric.about().items() <= self.facts.items():
            raise ScaleError("the model on this machine differs from that of the driver")

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield tables of embeddings for a block of Ray Data."""
        assert self.entry_of is not None
        yield from self.tables(map(self.entry_of, rows.to_pylist()))

    def tables(self, images: Iterable[Entry]) -> Iterator[pa.Table]:
        """Yield a table of embeddings for each batch of the images that are not done."""
        done = self.output.done
        todo = (entry for entry in images if entry.place not in done)
        loaded = batches(todo, self._load, batch_size=self.batch_size, workers=self.workers)
        with closing(loaded):
            for batch in loaded:
                yield self.output.table(self._records(batch))

    def _load(self, entry: Entry) -> Input[Item]:
        item = Item(entry.name, entry.place, entry.files, "")
        return load(self.metric, entry, item, lambda key: False, masked=False)

    def _records(self, images: Sequence[Input[Item]]) -> list[dict[str, Any]]:
        """Embed the images with pixels in one batch, and return a row for each image."""
        records = [record_of(image) for image in images]
        readable = [row for row, image in enumerate(images) if image.pixels is not None]
        if not readable:
            return records

        has_patches = bool(self.facts["patches"])
        stored = self.facts["stored"]
        inputs = [images[row] for row in readable]
        embedding, errors = embed(self.metric, inputs, has_patches)
        embedding = embedding.to("cpu", getattr(torch, stored))
        for position in (~embedding.finite()).nonzero().flatten().tolist():
            errors.setdefault(position, f"its embedding exceeds what {stored} can hold")
        for position, row in enumerate(readable):
            if position in errors:
                records[row]["error"] = errors[position]
                continue
            records[row]["embedding"] = embedding.cls[position].numpy()
            if has_patches and embedding.patches is not None:
                records[row]["patches"] = embedding.patches[position].flatten().numpy()
        return records


def record_of(image: Input[Item]) -> dict[str, Any]:
    """Return an image's row, without its embedding."""
    item = image.item
    return {
        "image": item.place,
        "name": item.name,
        "key": item.key or None,
        "width": item.width or None,
        "height": item.height or None,
        "error": as_text(image.problem) or None,
    }


def opened(model: Model) -> Embedder:
    """Open a model, unless it is open."""
    if isinstance(model, Embedder):
        return model
    return load_model(model) if isinstance(model, str) else model()
