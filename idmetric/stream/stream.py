"""The way from items to embeddings: threads read and prepare, the encoders embed batch by batch.

for seen in embedded(items, [metric]):
    seen.item.name, seen.embeddings[0].cls
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import NonFiniteError, reason, shown
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.images.masks import labeled
from idmetric.metric.images.regions import cut_out
from idmetric.metric.scoring.keys import settings_digest
from idmetric.metric.scoring.pipeline import Input, Source, batches, problem_of
from idmetric.stream.cache import Cache
from idmetric.stream.encoders import StreamEncoder
from idmetric.stream.item import Item, Part, Seen, Want

_TEXT = "text"  # key of an item without an image, before that of its words


@dataclass
class Prepared(Input[Item]):
    """An item that was read. `pixels`: the inputs, by the numbers of the encoders that are to embed it, or None."""

    wanted: tuple[Any, ...] = ()


def embedded(
    items: Iterable[Item],
    encoders: Sequence[StreamEncoder],
    part: Part = Part(),  # noqa: B008  # immutable
    *,
    cache: Cache | None = None,
    patches: bool = False,
    batch_size: int = 32,
    workers: int | None = None,
    on_error: Literal["fail", "skip"] = "fail",
    wants: Sequence[Want] = (),
) -> Generator[Seen, None, None]:
    """Embed items with each encoder, and yield them in order.

    An item's file is opened once, and decoded once for all encoders that decode alike, and for `wants`. With a cache,
    content that it holds is not embedded, and not decoded either unless something is wanted of it.

    Args:
        part: which part of images with a mask the encoders see.
        cache: of these encoders and this part; the caller saves it.
        patches: embeddings have patches, where an encoder has them.
        batch_size: items per pass. workers: threads that read; default: one for each core, at most 8; 0: in turn.
        on_error: raise for the first item that cannot be used, or yield it with its `problem`.
        wants: functions of an item and its decoded picture, see `Seen.wanted`.

    Raises:
        ImageReadError, NonFiniteError: with on_error="fail".
    """
    reader = _Reader(encoders, part, cache, on_error, wants)
    with closing(batches(items, reader.read, batch_size=batch_size, workers=workers)) as ahead:
        for batch in ahead:
            yield from _embedded_batch(batch, reader, patches)


# Reading


class _Reader:
    """Reads items and prepares them for the encoders, in threads."""

    def __init__(
        self,
        encoders: Sequence[StreamEncoder],
        part: Part,
        cache: Cache | None,
        on_error: str,
        wants: Sequence[Want],
    ) -> None:
        self.encoders = encoders
        self.part = part
        self.cache = cache
        self.on_error = on_error
        self.wants = wants

    def read(self, item: Item) -> Prepared:
        """Read an item; ImageReadError with on_error="fail"."""
        try:
            return self._read(item)
        except ImageReadError as error:
            if self.on_error == "fail":
                raise
            return Prepared(item, problem=problem_of(error, item.name))

    def _read(self, item: Item) -> Prepared:
        if item.problem is not None:
            raise item.problem
        prepared = Prepared(item, _TEXT)
        image, mask = item.image, item.mask
        if image is not None and self.cache is not None and _is_content(image, mask):
            source = Source.read(image, mask)  # type: ignore[arg-type]  # paths or bytes
            image, mask = source.image, source.mask
            prepared.key = source.key
        elif image is not None:
            prepared.key = ""  # of an image that is not kept

        inputs = {}
        pictures: dict[Hashable, Image.Image] = {}
        for number, encoder in enumerate(self.encoders):
            if self._is_kept(prepared, number):
                continue
            if image is None:
                inputs[number] = encoder.prepare(None, None, item.words)
                continue
            picture = self._decoded(encoder, image, mask is not None, pictures)
            seen_picture, cover = self._seen_part(encoder, picture, mask, item)
            inputs[number] = encoder.prepare(seen_picture, cover, item.words)
        prepared.pixels = inputs or None
        if self.wants and image is not None:
            picture = self._decoded(self.encoders[0], image, mask is not None, pictures)
            prepared.wanted = tuple([want(item, picture) for want in self.wants])
        return prepared

    def _is_kept(self, prepared: Prepared, encoder: int) -> bool:
        if self.cache is None or not prepared.key:
            return False
        return self.cache.has(encoder, self.key_of(prepared, encoder))

    def key_of(self, prepared: Prepared, encoder: int) -> str:
        """The key of an embedding, which depends on the words for encoders that read them."""
        words = prepared.item.words
        if words is None or not self.encoders[encoder].reads_words:
            return prepared.key
        return f"{prepared.key}-{settings_digest({'words': words})}"

    def _decoded(
        self, encoder: StreamEncoder, image: Any, whole: bool, pictures: dict[Hashable, Image.Image]
    ) -> Image.Image:
        """The decoded picture, shared by encoders that decode alike; a mask belongs to all of its pixels (`whole`)."""
        decoding = encoder.decoding(whole)
        if decoding not in pictures:
            pictures[decoding] = encoder.read_image(image, whole=whole)
        return pictures[decoding]

    def _seen_part(
        self, encoder: StreamEncoder, picture: Image.Image, mask: Any, item: Item
    ) -> tuple[Image.Image | Tensor, Tensor | None]:
        """The picture as an encoder sees it, and the cover of its subject."""
        if mask is None:
            return picture, None
        encoder.check_mask(mask)
        subject_mask = labeled(mask, self.part.mask_id)
        return cut_out(picture, subject_mask, self.part.outside, background=encoder.background)


def _is_content(image: Any, mask: Any) -> bool:
    """Whether an image and its mask have bytes that name their embedding: images in memory are not kept."""
    return isinstance(image, str | bytes) and (mask is None or isinstance(mask, str | bytes))


# Embedding


def _embedded_batch(batch: Sequence[Prepared], reader: _Reader, patches: bool) -> Iterator[Seen]:
    """Embed one batch, and take from the cache what it holds."""
    problems = {row: prepared.problem for row, prepared in enumerate(batch) if prepared.problem}
    embeddings: list[dict[int, Embedding]] = []
    for number in range(len(reader.encoders)):
        of_encoder = _from_cache(batch, reader, number)
        rows = [row for row in range(len(batch)) if row not in of_encoder and row not in problems]
        if rows:
            inputs = [_input(batch[row], reader, number) for row in rows]
            names = [batch[row].item.name for row in rows]
            embedding, reasons = _embed(inputs, reader, number, patches, names)
            problems |= {rows[place]: text for place, text in reasons.items()}
            _keep([batch[row] for row in rows], embedding, reasons, reader, number)
            of_encoder |= {row: embedding[[place]] for place, row in enumerate(rows)}  # copies, not slices of the batch
        embeddings.append(of_encoder)

    for row, prepared in enumerate(batch):
        if row in problems:
            yield Seen(prepared.item, problem=problems[row])
            continue
        by_encoder = tuple([of_encoder.pop(row) for of_encoder in embeddings])
        yield Seen(prepared.item, by_encoder, wanted=prepared.wanted)


def _from_cache(batch: Sequence[Prepared], reader: _Reader, number: int) -> dict[int, Embedding]:
    """The embeddings that the cache holds, by row."""
    rows_of_key: dict[str, list[int]] = {}
    for row, prepared in enumerate(batch):
        is_prepared = prepared.pixels is not None and number in prepared.pixels
        if not prepared.problem and not is_prepared:
            rows_of_key.setdefault(reader.key_of(prepared, number), []).append(row)
    by_row: dict[int, Embedding] = {}
    if rows_of_key and reader.cache is not None:
        for key, embedding in reader.cache.readable(number, list(rows_of_key)).items():
            by_row |= dict.fromkeys(rows_of_key[key], embedding[[0]])  # a copy: a slice would keep its whole batch
    return by_row


def _input(prepared: Prepared, reader: _Reader, number: int) -> Any:
    """What an encoder takes of an item; it is read again if its embedding in the cache is damaged or gone."""
    inputs = prepared.pixels or {}
    if number not in inputs:
        inputs = reader.read(prepared.item).pixels or {}
    return inputs[number]


def _embed(
    inputs: Sequence[Any], reader: _Reader, number: int, patches: bool, names: Sequence[str]
) -> tuple[Embedding, dict[int, str]]:
    """The embedding of inputs on the CPU, and why rows of it cannot be used: they are not finite, or zero."""
    encoder = reader.encoders[number]
    with torch.no_grad():
        embedding = encoder.embed_prepared(inputs, patches)
    is_finite = embedding.finite().tolist()
    is_zero = (~embedding.cls.any(1)).tolist()
    reasons = {}
    for row in range(len(embedding)):
        if not is_finite[row]:
            reasons[row] = reason(encoder.dtype)
        elif is_zero[row]:
            reasons[row] = "its embedding is zero"
    if reasons and reader.on_error == "fail":
        rows = list(reasons)
        raise NonFiniteError(f"{shown([names[row] for row in rows])}: {reasons[rows[0]]}", rows)
    return embedding.cpu(), reasons


def _keep(
    batch: Sequence[Prepared], embedding: Embedding, unusable: Collection[int], reader: _Reader, number: int
) -> None:
    """Add the usable rows of an embedding to the cache, each content once."""
    if reader.cache is None:
        return
    row_of_key = {}
    for row, prepared in enumerate(batch):
        if prepared.key and row not in unusable:
            row_of_key[reader.key_of(prepared, number)] = row
    reader.cache.add(number, row_of_key, embedding)
