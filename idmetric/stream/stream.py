"""The way from items to embeddings: threads read and prepare, the encoders embed batch by batch.

for result in embedded(items, [metric]):
    result.item.name, result.embeddings[0].cls
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import Any

import torch

from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.distance.finite import NonFiniteError, reason, shown
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.kinds import ImageReadError, describe
from idmetric.stream.cache import Cache
from idmetric.stream.encoders import VectorModel
from idmetric.stream.item import Head, Item, Look, Seen, Want
from idmetric.stream.pipeline import grouped, threads
from idmetric.stream.reader import OnError, Reader, ReadItem


def embedded(
    items: Iterable[Item],
    encoders: Sequence[VectorModel],
    look: Look = Look(),  # noqa: B008  # immutable
    *,
    cache: Cache | None = None,
    reads_cache: bool = True,
    patches: bool = False,
    batch_size: int = 32,
    workers: int | None = None,
    ahead: int | None = None,
    on_error: OnError = "fail",
    head: Head | None = None,
    wants: Sequence[Want] = (),
    keeps_graph: bool = False,
) -> Generator[Seen, None, None]:
    """Embed items with each encoder, and yield them in order.

    An item's file is opened once, and decoded once for all encoders that decode alike, and for `wants`. With a cache,
    content that it holds is not embedded, and not decoded either unless something is wanted of it, or parts.

    Nothing is embedded with a graph, unless that is asked for.

    Args:
        look: which part of images with a mask the encoders see.
        cache: of these encoders and this look; the caller saves it.
        reads_cache: whether `Seen.embeddings` are there; False: the caller reads them from the cache by `Seen.keys`.
        patches: embeddings have patches, where an encoder has them.
        batch_size: images or parts per pass. workers: threads that read; default: one for each core, at most 8; 0: in
            turn.
        ahead: items that are read before they are embedded; default: two batches.
        on_error: raise for the first item that cannot be used, or yield it with its `problem`.
        head: a function of an item and the bytes of its image, called with a cache alone, see `Seen.head`.
        wants: functions of an item and its decoded picture, see `Seen.wanted`.
        keeps_graph: pixels that require grad are embedded with their graph, in the caller's grad mode. They are not
            checked to be finite, so as not to wait for the device.

    Raises:
        ImageReadError, NonFiniteError: with on_error="fail".
    """
    reader = Reader(encoders, look, on_error=on_error, wants=wants)
    if cache is not None:
        reader.is_known = cache.has
        reader.head = head
    batch_maker = _Batches(
        reader,
        encoders,
        cache,
        patches=patches,
        reads_cache=reads_cache,
        keeps_graph=keeps_graph,
    )
    read = partial(reader.read_parts, at_once=batch_size)
    waiting = ahead or 2 * batch_size
    with closing(in_order(read, items, threads=threads(workers), waiting=waiting)) as read_items:
        for batch in grouped(chain.from_iterable(read_items), batch_size):
            yield from batch_maker.embedded(batch)


def embedding_of(items: Iterable[Item], encoder: VectorModel, look: Look = Look(), **options: Any) -> Embedding:  # noqa: B008
    """The embedding of items by one encoder, on the CPU; `options` of `embedded`, which raises for unusable items."""
    return concatenate([result.embeddings[0] for result in embedded(items, [encoder], look, **options)])


def items_of_images(images: Sequence[Any], masks: Sequence[Any]) -> list[Item]:
    """Images of any kind, and their masks or None, as items with their names."""
    return [Item(describe(image), image, mask) for image, mask in zip(images, masks, strict=True)]


class _Batches:
    """Embeds batches of items, or takes their embeddings from the cache."""

    def __init__(
        self,
        reader: Reader,
        encoders: Sequence[VectorModel],
        cache: Cache | None,
        *,
        patches: bool,
        reads_cache: bool,
        keeps_graph: bool,
    ) -> None:
        self._reader = reader
        self._encoders = encoders
        self._cache = cache
        self._patches = patches
        self._reads_cache = reads_cache
        self._keeps_graph = keeps_graph

    def embedded(self, batch: Sequence[ReadItem]) -> Iterator[Seen]:
        """Yield the items of a batch in order."""
        problems = {row: read.error for row, read in enumerate(batch) if read.error is not None}
        embeddings = [self._by_encoder(number, batch, problems) for number in range(len(self._encoders))]
        for row, read in enumerate(batch):
            if row in problems:
                yield Seen(read.item, read.part, keys=(read.key,), problem=problems[row], head=read.head)
                continue
            keys = tuple([self._reader.key_of(read, number) for number in range(len(self._encoders))])
            rows_of_encoders = tuple([by_row.pop(row) for by_row in embeddings if row in by_row])
            yield Seen(read.item, read.part, rows_of_encoders, keys, head=read.head, wanted=read.wanted)

    def _by_encoder(
        self, number: int, batch: Sequence[ReadItem], problems: dict[int, ImageReadError]
    ) -> dict[int, Embedding]:
        """The embeddings by one encoder, by row; rows that cannot be used are added to the problems."""
        for read in batch:
            self._forget_known(number, read)
        by_row = self._from_cache(number, batch)
        if self._cache is not None:
            self._cache.tally.asked += sum(bool(read.key) and read.error is None for read in batch)
        rows_of_input: dict[str | int, list[int]] = {}  # by key; items without one are embedded each for itself
        for row, read in enumerate(batch):
            if row in problems or row in by_row or read.is_empty:
                continue
            is_new = read.pixels is not None and number in read.pixels
            if is_new or self._reads_cache:
                rows_of_input.setdefault(self._reader.key_of(read, number) or row, []).append(row)
        if not rows_of_input:
            return by_row

        first_rows = [rows[0] for rows in rows_of_input.values()]
        first_reads = [batch[row] for row in first_rows]
        embedding, reasons = self._embed(number, first_reads)
        kept_rows = {}
        for number_in_batch, (key, rows) in enumerate(rows_of_input.items()):
            if number_in_batch in reasons:
                for row in rows:
                    problems[row] = ImageReadError(batch[row].item.name, reasons[number_in_batch])
                continue
            by_row |= dict.fromkeys(rows, embedding[[number_in_batch]])  # a copy: a slice would keep its whole batch
            if isinstance(key, str):
                kept_rows[key] = number_in_batch
        if self._cache is not None and kept_rows:
            self._cache.tally.made += len(kept_rows)
            self._cache.add(number, kept_rows, embedding)
        return by_row

    def _forget_known(self, number: int, read: ReadItem) -> None:
        """Drop the input of a content that was embedded after it was read."""
        if self._cache is None or read.pixels is None or number not in read.pixels:
            return
        key = self._reader.key_of(read, number)
        if key and self._cache.has(number, key):
            del read.pixels[number]

    def _from_cache(self, number: int, batch: Sequence[ReadItem]) -> dict[int, Embedding]:
        """The embeddings that the cache holds, by row."""
        if self._cache is None or not self._reads_cache:
            return {}
        rows_of_key: dict[str, list[int]] = {}
        for row, read in enumerate(batch):
            is_new = read.pixels is not None and number in read.pixels
            if read.error is None and not read.is_empty and not is_new:
                rows_of_key.setdefault(self._reader.key_of(read, number), []).append(row)
        if not rows_of_key:
            return {}
        by_row: dict[int, Embedding] = {}
        for key, embedding in self._cache.readable(number, list(rows_of_key)).items():
            by_row |= dict.fromkeys(rows_of_key[key], embedding[[0]])  # a copy: a slice would keep its whole shard
        return by_row

    def _input(self, number: int, read: ReadItem) -> Any:
        """What an encoder takes of an item; it is read again if a full disk made the cache forget it."""
        inputs = read.pixels or {}
        if number not in inputs:
            again = self._reader.read_parts(read.item, at_once=1)
            inputs = next(islice(again, read.part or 0, None)).pixels or {}
        return inputs[number]

    def _embed(self, number: int, reads: Sequence[ReadItem]) -> tuple[Embedding, dict[int, str]]:
        """An embedding, and why rows of it cannot be used: they are not finite, or zero."""
        encoder = self._encoders[number]
        inputs = [self._input(number, read) for read in reads]
        has_graph = self._keeps_graph and torch.is_grad_enabled() and any(read.requires_grad for read in reads)
        if has_graph:
            return encoder.embed_prepared(inputs, self._patches), {}
        with torch.no_grad():
            embedding = encoder.embed_prepared(inputs, self._patches)
        is_usable = embedding.finite()
        if encoder.may_see_nothing:
            is_usable |= embedding.cls.isnan().all(1)
        is_zero = (~embedding.cls.any(1)).tolist()
        maker = encoder.label if len(self._encoders) > 1 else ""
        reasons = {}
        for row, row_is_usable in enumerate(is_usable.tolist()):
            if not row_is_usable:
                reasons[row] = reason(encoder.dtype, maker)
            elif is_zero[row]:
                reasons[row] = f"its embedding by {encoder.label} is zero"
        if reasons and self._reader.on_error == "fail":
            rows = list(reasons)
            raise NonFiniteError(f"{shown([reads[row].name for row in rows])}: {reasons[rows[0]]}", rows)
        return embedding.cpu(), reasons
