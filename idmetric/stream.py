"""The way from items to embeddings: threads read and prepare, one model embeds batch by batch.

    for seen in embedded(items_of_images(images, masks), metric, store=open_store("kept", metric)):
        seen.item.name, seen.embedding.cls

Each file is opened once, and decoded once for the model and for what the caller takes of its picture. Content that a
store holds is not embedded again, and not decoded either, unless something is taken of it. Callers with several models
run one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from idmetric.metric.embedding import Embedding, concatenate, reason, shown
from idmetric.metric.errors import NonFiniteError
from idmetric.metric.files import in_order, writing
from idmetric.metric.images import (
    WHITE,
    ImageReadError,
    MaskId,
    Named,
    Outside,
    Picture,
    describe,
    float_pixels,
    image_of_pixels,
    is_array,
    is_float,
    is_tensor,
    naming,
    read_file,
    read_image,
)
from idmetric.metric.lazy import LazyModule
from idmetric.store import Store, content_key, folder_name, settings_digest

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from idmetric.metric.embedder import Embedder
    from idmetric.metric.images import Color, ImageLike
    from idmetric.metric.masks import MaskLike

torch: Any = LazyModule("torch")  # a command's --help does without

OnError = Literal["fail", "skip"]
_MOST_STORED = 4  # a batch ends after so many times its size, even if most of it is stored


# Models, items, and what comes back


class PlainModel:
    """A model other than an `Embedder`, such as a baseline: it sees images on white, with all of their pixels."""

    background: Color = WHITE
    reads_words = False
    has_patches = False
    may_see_nothing = False
    dtype: Any = "float32"

    def signature(self) -> dict[str, str]:
        """Everything that its results depend on; "model" is its name."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """See `Embedder.label`."""
        return self.signature()["model"]

    @property
    def model_id(self) -> str:
        """See `Embedder.model_id`."""
        return self.label

    def about(self) -> dict[str, str]:
        """See `Embedder.about`."""
        return {**self.signature(), "background": str(self.background)}

    def read_image(self, image: ImageLike) -> Image.Image:
        """See `Embedder.read_image`."""
        return read_image(image, background=self.background)

    def check_mask(self, mask: MaskLike) -> None:
        """All masks are taken."""

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None) -> Any:
        """See `Embedder.prepare`; pictures are RGB images, and None for a text alone of models that read words."""
        raise NotImplementedError

    def embed_prepared(self, batch: Sequence[Any], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`."""
        raise NotImplementedError


ImageModel: TypeAlias = "Embedder | PlainModel"


@dataclass(frozen=True)
class Part:
    """A part of an image, cut out.

    Attributes:
        pixels: what is seen. cover: how much of each pixel its mask covers, (h, w); None without a mask.
        key: names it among the parts of its image in a store; "": it is the whole image; None: it is not kept.
    """

    pixels: Picture
    cover: Tensor | None = None
    key: str | None = None


@dataclass(frozen=True)
class Item:
    """An image, a text, or both; nothing is read yet.

    Attributes:
        name: as messages call it.
        image: as `Embedder.embed` takes it, or a function that gives it, called in a thread; None for a text alone.
        mask: of its subject, or a function that gives it.
        words: all text for models that read it, the instruction included; None: their default.
        parts: a function of the decoded picture, called in a thread; each part is embedded in place of the image.
        problem: why it cannot be used, if that is known before it is read.
        source: what the caller made it of, for the caller alone.
    """

    name: str
    image: ImageLike | Callable[[], ImageLike] | None = None
    mask: MaskLike | Callable[[], MaskLike] | None = None
    words: str | None = None
    parts: Callable[[Picture], Iterable[Part]] | None = None
    problem: ImageReadError | None = None
    source: Any = None


@dataclass(frozen=True)
class Look:
    """Which part of each image a model sees.

    Attributes:
        masked: only the subject that masks select; images without a mask are seen whole.
        outside: what becomes of pixels outside the mask, see `Embedder.embed`.
        mask_id: the subject's label, if the masks hold several.
    """

    masked: bool = False
    outside: Outside = "black"
    mask_id: MaskId | None = None

    def __str__(self) -> str:
        """As keys of masked images name it."""
        return f"{self.outside} {self.mask_id}"


# Called in a thread with an item and its decoded picture, RGB, before anything outside of its mask is painted over
Also = Callable[[Item, "Image.Image"], Mapping[str, Any]]


@dataclass(frozen=True)
class Seen:
    """An item or a part of it that was embedded, or the reason why the item cannot be used.

    Attributes:
        part: the number of the part; an item of which no part was cut has none, and no embedding.
        key: of the embedding in the store; "" if it is not kept.
        pixels: the model's input, until it is embedded.
        embedding: one row, on the CPU; on the model's device with a graph, if the pixels require grad.
        also: what the caller's function took of the picture.
        problem: why the item cannot be used; there is no embedding then.
    """

    item: Item
    part: int | None = None
    key: str = ""
    pixels: Any = None
    embedding: Embedding | None = None
    also: Mapping[str, Any] = field(default_factory=dict)
    problem: ImageReadError | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the store holds its embedding, or will."""
        return bool(self.key) and self.problem is None

    @property
    def name(self) -> str:
        """For messages."""
        return self.item.name if self.part is None else f"region {self.part} of {self.item.name}"

    @property
    def row(self) -> Embedding:
        """The embedding of an item that was embedded."""
        assert self.embedding is not None
        return self.embedding


def items_of_images(images: Sequence[Any], masks: Sequence[Any]) -> list[Item]:
    """Images of any kind, and their masks or None, as items with their names."""
    return [Item(describe(image), image, mask) for image, mask in zip(images, masks, strict=True)]


def problem_of(error: ImageReadError, image: str) -> str:
    """Why an image of this name cannot be used; the reason names the mask, if the error is about it."""
    if error.source == image:
        return error.reason
    return f"its mask {error.source}: {error.reason}"


def threads(workers: int | None) -> int:
    """Number of threads that read images: by default one for each core, at most 8."""
    if workers is None:
        return min(8, os.cpu_count() or 1)
    return workers


def open_store(folder: Path, metric: ImageModel, *, patches: bool = False, is_needed: bool = False) -> Store:
    """The store of a model in a folder of embeddings; OutputError if the folder cannot be made."""
    with writing(folder):  # before anything is embedded
        folder.mkdir(parents=True, exist_ok=True)
    return Store(folder / folder_name(metric.about()), metric.model_id, patches=patches, is_needed=is_needed)


# From items to embeddings


def embedded(
    items: Iterable[Item],
    metric: ImageModel,
    look: Look = Look(),  # immutable
    *,
    store: Store | None = None,
    also: Also | None = None,
    patches: bool = False,
    batch_size: int = 32,
    workers: int | None = None,
    ahead: int | None = None,
    on_error: OnError = "fail",
    keeps_graph: bool = False,
) -> Generator[Seen, None, None]:
    """Embed items, and yield them, or their parts, in order.

    Args:
        look: which part of images with a mask the model sees.
        store: of this model; it is saved in the end, also if the run is stopped.
        also: takes what the caller needs of each picture, see `Seen.also`.
        patches: embeddings have patches, where the model has them.
        batch_size: images or parts per pass. workers: threads that read; default: one for each core, at most 8; 0: in
            turn.
        ahead: items that are read before they are embedded; default: two batches.
        on_error: raise for the first item that cannot be used, or yield it with its `problem`.
        keeps_graph: pixels that require grad are embedded with their graph, in the caller's grad mode. They are not
            checked to be finite, so as not to wait for the device.

    Raises:
        ValueError: for a batch size below 1. ImageReadError, NonFiniteError: with on_error="fail".
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    reader = Reader(metric, look, store, also)
    stream = reader.read_ahead(items, workers, ahead or 2 * batch_size, at_once=batch_size)
    try:
        with closing(stream):
            for batch in batches(stream, batch_size):
                stored = {} if store is None else store.readable([seen.key for seen in batch if seen.is_kept])
                for number, seen in enumerate(batch):
                    if seen.is_kept and seen.pixels is None and seen.key not in stored:  # damaged, or not written
                        batch[number] = seen = reader.read_again(seen)
                    if seen.problem is not None and on_error == "fail":
                        raise seen.problem
                yield from _embedded(batch, stored, metric, store, patches, on_error, keeps_graph)
    finally:
        if store is not None:
            store.save()


def embedding_of(items: Iterable[Item], metric: ImageModel, look: Look = Look(), **options: Any) -> Embedding:
    """The embedding of items, on the CPU; `options` of `embedded`, which raises for unusable items."""
    return concatenate([seen.row for seen in embedded(items, metric, look, **options)])


# Reading


@dataclass(frozen=True)
class Reader:
    """Reads items and prepares them for a model; arguments as of `embedded`."""

    metric: ImageModel
    look: Look = Look()
    store: Store | None = None
    also: Also | None = None

    def read_ahead(
        self, items: Iterable[Item], workers: int | None, ahead: int, at_once: int = 1
    ) -> Generator[Seen, None, None]:
        """Yield items, or their parts, in order, read in threads.

        Args:
            at_once: parts of an item that are prepared in a thread; the others are when they are asked for, as all of
                thousands would fill the memory.
        """

        def read(item: Item) -> Iterator[Seen]:
            parts = self.read(item)
            first = list(islice(parts, max(2, at_once)))  # an item without parts ends, and its picture goes
            return chain(first, parts)

        with closing(in_order(read, items, threads=threads(workers), waiting=ahead)) as read_items:
            yield from chain.from_iterable(read_items)

    def read_again(self, seen: Seen) -> Seen:
        """Read an item, or its part, that the store held when it was read, and does not hold any more."""
        again = next(islice(self.read(seen.item), seen.part or 0, None))
        return replace(again, also=seen.also)

    def read(self, item: Item) -> Generator[Seen, None, None]:
        """Yield an item, or its parts, with their pixels unless the store holds them; last a problem, if it has one."""
        content = ""
        image_name = item.name
        try:
            if item.problem is not None:
                raise item.problem
            image: Any = item.image() if callable(item.image) else item.image
            mask: Any = item.mask() if callable(item.mask) else item.mask
            if image is not None and not isinstance(image, str | os.PathLike):
                image_name = describe(image)
            if self.store is not None:
                image, mask, content = _with_key(image, mask, self.look)
            if item.parts is None:
                yield self._whole(item, image, mask, content)
            else:
                yield from self._parts(item, item.parts, image, content)
        except ImageReadError as error:
            is_of_image = error.source == image_name
            problem = ImageReadError(item.name, error.reason) if is_of_image else error
            yield Seen(item, key=content, problem=problem)

    def _whole(self, item: Item, image: Any, mask: Any, content: str) -> Seen:
        key = self._key(item, content)
        is_stored = self._is_stored(key)
        if image is None:
            with naming(item.name):
                return Seen(item, key=key, pixels=None if is_stored else self.metric.prepare(None, None, item.words))
        if is_stored and self.also is None:
            return Seen(item, key=key)

        picture = self._decoded(image)
        taken = self._taken(item, picture)
        if is_stored:
            return Seen(item, key=key, also=taken)
        cover = None
        if mask is not None:
            from idmetric.metric.masks import cut_out, labeled  # torch

            self.metric.check_mask(mask)
            subject_mask = labeled(mask, self.look.mask_id)
            picture, cover = cut_out(picture, subject_mask, self.look.outside, background=self.metric.background)
        return Seen(item, key=key, pixels=self.metric.prepare(picture, cover, item.words), also=taken)

    def _parts(self, item: Item, cut: Callable[[Picture], Iterable[Part]], image: Any, content: str) -> Iterator[Seen]:
        """The parts of an image, in order; the item alone if there are none."""
        picture = self._decoded(image)
        taken = self._taken(item, picture)
        number = -1
        for number, part in enumerate(cut(picture)):
            key = "" if part.key is None else self._key(item, content, part.key)
            pixels = None
            if not self._is_stored(key):
                pixels = self.metric.prepare(part.pixels, part.cover, item.words)
            yield Seen(item, number, key, pixels, also=taken)
        if number < 0:
            yield Seen(item, also=taken)

    def _decoded(self, image: Any) -> Picture:
        """The picture, RGB; float pixels stay as they are."""
        if is_array(image) and is_float(image):
            with naming(image):
                return float_pixels(image, self.metric.background)
        return self.metric.read_image(image)

    def _taken(self, item: Item, picture: Picture) -> Mapping[str, Any]:
        if self.also is None:
            return {}
        return self.also(item, image_of_pixels(picture) if is_tensor(picture) else picture)

    def _key(self, item: Item, content: str, part: str = "") -> str:
        """The key of an embedding, which depends on the words for models that read them; "" if it is not kept."""
        if not content:
            return ""
        key = f"{content}-{part}" if part else content
        if item.words is not None and self.metric.reads_words:
            key += f"-{settings_digest({'words': item.words})}"
        return key

    def _is_stored(self, key: str) -> bool:
        return self.store is not None and bool(key) and key in self.store


def _with_key(image: Any, mask: Any, look: Look) -> tuple[Any, Any, str]:
    """An image and its mask with their content's key, both read if they are files; "" for images in memory."""
    if image is None:
        return None, None, "text"
    files = (str, os.PathLike, bytes, Named)
    if not isinstance(image, files) or not isinstance(mask, (*files, type(None))):
        return image, mask, ""
    image = _bytes(image)
    if mask is None:
        return image, None, content_key(image.getvalue())
    mask = _bytes(mask)
    return image, mask, content_key(image.getvalue(), mask.getvalue(), str(look))


def _bytes(source: Any) -> Named:
    if isinstance(source, Named):
        return source
    return Named(source, describe(source)) if isinstance(source, bytes) else read_file(source)


# Embedding


def batches(stream: Iterable[Seen], batch_size: int) -> Iterator[list[Seen]]:
    """Batches with `batch_size` inputs of the model; a batch is emptied when the next one is asked for.

    Stored items before or between the others do not change their batches, so that a resumed run gives equal numbers.
    """
    batch: list[Seen] = []
    fresh = 0
    for seen in stream:
        batch.append(seen)
        fresh += seen.pixels is not None
        del seen  # held only by the batch
        most = _MOST_STORED * batch_size if fresh else batch_size
        if fresh == batch_size or len(batch) == most:
            yield batch
            batch.clear()
            fresh = 0
    if batch:
        yield batch


def _embedded(
    batch: Sequence[Seen],
    stored: Mapping[str, Embedding],
    metric: ImageModel,
    store: Store | None,
    patches: bool,
    on_error: OnError,
    keeps_graph: bool,
) -> Iterator[Seen]:
    """Yield a batch in order, with the embeddings that are stored or made now; equal contents are embedded once."""
    rows = dict(stored)
    fresh: dict[str, Seen] = {}  # by key, or by the place in the batch
    for number, seen in enumerate(batch):
        name = seen.key or str(number)
        if seen.problem is None and seen.pixels is not None and name not in rows:
            fresh.setdefault(name, seen)

    reasons: dict[str, str] = {}
    if fresh:
        embedding, reasons_of_rows = _embedding(list(fresh.values()), metric, patches, on_error, keeps_graph)
        kept = {}
        for row, (name, seen) in enumerate(fresh.items()):
            if row in reasons_of_rows:
                reasons[name] = reasons_of_rows[row]
                continue
            rows[name] = embedding[[row]]  # a copy: a slice would keep its whole batch
            if seen.key:
                kept[seen.key] = row
        if store is not None and kept:
            store.add(list(kept), embedding[list(kept.values())])

    for number, seen in enumerate(batch):
        name = seen.key or str(number)
        problem = seen.problem
        if problem is None and name in reasons:
            problem = ImageReadError(seen.item.name, reasons[name])
        row_embedding = rows.get(name) if problem is None else None
        yield replace(seen, pixels=None, embedding=row_embedding, problem=problem)


def _embedding(
    inputs: Sequence[Seen], metric: ImageModel, patches: bool, on_error: OnError, keeps_graph: bool
) -> tuple[Embedding, dict[int, str]]:
    """An embedding, and why rows of it cannot be used: they are not finite, or zero."""
    pixels = [seen.pixels for seen in inputs]
    if keeps_graph and torch.is_grad_enabled() and any(map(_requires_grad, pixels)):
        return metric.embed_prepared(pixels, patches), {}
    with torch.no_grad():
        embedding = metric.embed_prepared(pixels, patches).cpu()
    is_usable = embedding.finite()
    if metric.may_see_nothing:
        is_usable |= embedding.cls.isnan().all(1)
    reasons = {}
    for row, is_zero in enumerate((~embedding.cls.any(1)).tolist()):
        if not is_usable[row]:
            reasons[row] = reason(metric.dtype)
        elif is_zero:
            reasons[row] = f"its embedding by {metric.label} is zero"
    if reasons and on_error == "fail":
        names = shown([inputs[row].name for row in reasons])
        raise NonFiniteError(f"{names}: {next(iter(reasons.values()))}", list(reasons))
    return embedding, reasons


def _requires_grad(model_input: Any) -> bool:
    """Whether a graph leads to what `prepare` gave."""
    tensors = model_input if isinstance(model_input, tuple) else (model_input,)
    return any(is_tensor(tensor) and tensor.requires_grad for tensor in tensors)
