"""The way from items to embeddings: threads read and prepare, one model embeds batch by batch.

    for result in embedded(items_of_images(images, masks), metric, store=open_store("kept", metric)):
        result.item.name, result.embedding.cls

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

    model_id = label

    def about(self) -> dict[str, str]:
        """See `Embedder.about`."""
        return self.signature()

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
        key: names it among the parts of its image in a store; "": it is the whole image.
    """

    pixels: Picture
    cover: Tensor | None = None
    key: str = ""


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
        masked: whether the caller gives items their masks; the stream cuts out every item that has one.
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
    def name(self) -> str:
        """For messages."""
        if self.part is None:
            return self.item.name
        return f"region {self.part} of {self.item.name}"

    @property
    def row(self) -> Embedding:
        """The embedding of an item that was embedded."""
        assert self.embedding is not None
        return self.embedding


def items_of_images(images: Sequence[Any], masks: Sequence[Any]) -> list[Item]:
    """Images of any kind, and their masks or None, as items with their names."""
    items = []
    for image, mask in zip(images, masks, strict=True):
        items.append(Item(describe(image), image, mask))
    return items


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
    model_folder = folder / folder_name(metric.about())
    return Store(model_folder, metric.model_id, patches=patches, is_needed=is_needed)


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
    results = reader.read_ahead(items, workers, ahead or 2 * batch_size, at_once=batch_size)
    try:
        with closing(results):
            while batch := list(islice(results, batch_size)):
                for result in batch:
                    if result.problem is not None and on_error == "fail":
                        raise result.problem
                yield from _embedded(batch, metric, store, patches, on_error, keeps_graph)
                batch.clear()  # before the next one is read
    finally:
        if store is not None:
            store.save()


def embedding_of(items: Iterable[Item], metric: ImageModel, look: Look = Look(), **options: Any) -> Embedding:
    """The embedding of items, on the CPU; `options` of `embedded`, which raises for unusable items."""
    results = embedded(items, metric, look, **options)
    return concatenate([result.row for result in results])


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
            results = self.read(item)
            prepared = list(islice(results, max(2, at_once)))  # an item without parts ends, and its picture goes
            return chain(prepared, results)

        read_items = in_order(read, items, threads=threads(workers), waiting=ahead)
        with closing(read_items):
            yield from chain.from_iterable(read_items)

    def read(self, item: Item) -> Generator[Seen, None, None]:
        """Yield an item, or its parts, with what the store holds, or prepared; last a problem, if it has one."""
        key = ""
        image_name = item.name
        try:
            if item.problem is not None:
                raise item.problem
            image: Any = item.image
            if callable(image):
                image = image()
            mask: Any = item.mask
            if callable(mask):
                mask = mask()
            if image is not None and not isinstance(image, str | os.PathLike):
                image_name = describe(image)
            if self.store is not None:
                image, mask, key = self._with_key(item, image, mask)

            embedding = None
            if item.parts is None:
                embedding = self._stored(key)
            needs_picture = image is not None and self.also is not None
            if embedding is not None and not needs_picture:
                yield Seen(item, key=key, embedding=embedding)
                return

            picture = None if image is None else self._decoded(image)
            taken: Mapping[str, Any] = {}
            if picture is not None and self.also is not None:
                rgb = image_of_pixels(picture) if is_tensor(picture) else picture
                taken = self.also(item, rgb)
            if picture is not None and item.parts is not None:
                parts = item.parts(picture)
                yield from self._parts(item, parts, key, taken)
            else:
                pixels = None
                if embedding is None:
                    pixels = self._prepared(item, picture, mask)
                yield Seen(item, None, key, pixels, embedding, taken)
        except ImageReadError as error:
            if error.source != image_name:
                yield Seen(item, key=key, problem=error)
            else:
                problem = ImageReadError(item.name, error.reason)
                yield Seen(item, key=key, problem=problem)

    def _with_key(self, item: Item, image: Any, mask: Any) -> tuple[Any, Any, str]:
        """An image and its mask, read if they are files, and their key in the store; "" for arrays and PIL images."""
        key = "text"
        if image is not None:
            image = _read(image)
            mask = _read(mask)
            if not isinstance(image, Named) or not isinstance(mask, Named | None):
                return image, mask, ""
            mask_bytes = None if mask is None else mask.getvalue()
            key = content_key(image.getvalue(), mask_bytes, str(self.look))
        if item.words is not None and self.metric.reads_words:
            key += "-" + settings_digest({"words": item.words})
        return image, mask, key

    def _stored(self, key: str) -> Embedding | None:
        if self.store is None:
            return None
        embeddings = self.store.readable([key])
        return embeddings.get(key)

    def _decoded(self, image: Any) -> Picture:
        """The picture, RGB; float pixels stay as they are."""
        if is_array(image) and is_float(image):
            with naming(image):
                return float_pixels(image, self.metric.background)
        return self.metric.read_image(image)

    def _prepared(self, item: Item, picture: Picture | None, mask: Any) -> Any:
        cover = None
        if picture is not None and mask is not None:
            from idmetric.metric.masks import cut_out, labeled  # torch

            self.metric.check_mask(mask)
            look = self.look
            mask = labeled(mask, look.mask_id)
            background = self.metric.background
            picture, cover = cut_out(picture, mask, look.outside, background=background)
        return self._input(item, picture, cover)

    def _input(self, item: Item, picture: Picture | None, cover: Any) -> Any:
        """What the model takes; errors name the item, as a cut-out has no name."""
        try:
            return self.metric.prepare(picture, cover, item.words)
        except ValueError as error:
            why = getattr(error, "reason", str(error))
            raise ImageReadError(item.name, why) from error

    def _parts(self, item: Item, parts: Iterable[Part], key: str, taken: Mapping[str, Any]) -> Iterator[Seen]:
        """The parts of an image, in order; the item alone if there are none."""
        number = -1
        for number, part in enumerate(parts):
            part_key = key
            if key and part.key:
                part_key = f"{key}-{part.key}"
            embedding = self._stored(part_key)
            pixels = None
            if embedding is None:
                pixels = self._input(item, part.pixels, part.cover)
            yield Seen(item, number, part_key, pixels, embedding, taken)
        if number < 0:
            yield Seen(item, also=taken)


def _read(source: Any) -> Any:
    """A file or bytes as `Named`; other images in memory stay as they are."""
    if isinstance(source, bytes):
        return Named(source, describe(source))
    is_path = isinstance(source, str | os.PathLike)
    return read_file(source) if is_path else source


# Embedding


def _embedded(
    batch: Sequence[Seen],
    metric: ImageModel,
    store: Store | None,
    patches: bool,
    on_error: OnError,
    keeps_graph: bool,
) -> Iterator[Seen]:
    """Yield a batch in order, with the embeddings of what is new; equal contents are embedded once."""
    named_batch = []
    fresh = {}
    for number, result in enumerate(batch):
        name = result.key or str(number)
        named_batch.append((name, result))
        if result.pixels is not None:
            fresh[name] = result
    rows: dict[str, Embedding] = {}
    if store is not None:
        store.counts["asked"] += sum(bool(result.key) and result.problem is None for result in batch)
        rows = store.readable(fresh)  # what an earlier batch had as well
    new = [name for name in fresh if name not in rows]
    reasons: dict[str, str] = {}
    if new:
        inputs = [fresh[name].pixels for name in new]
        embedding, reasons_of_rows = _embedding(inputs, metric, patches, keeps_graph)
        for number, name in enumerate(new):
            if number in reasons_of_rows:
                reasons[name] = reasons_of_rows[number]
                continue
            row = embedding[[number]]  # a copy: a slice would keep its whole batch
            rows[name] = row
            if store is not None and fresh[name].key:
                store.add([name], row.detach().cpu())

    bad_names = [result.name for name, result in named_batch if name in reasons]
    if bad_names and on_error == "fail":
        why = next(iter(reasons.values()))
        raise NonFiniteError(f"{shown(bad_names)}: {why}")
    for name, result in named_batch:
        if name in reasons:
            problem = ImageReadError(result.item.name, reasons[name])
            yield replace(result, pixels=None, problem=problem)
        else:
            row_or_stored = rows.get(name, result.embedding)
            yield replace(result, pixels=None, embedding=row_or_stored)


def _embedding(
    inputs: Sequence[Any], metric: ImageModel, patches: bool, keeps_graph: bool
) -> tuple[Embedding, dict[int, str]]:
    """The embedding of what `prepare` gave, and why rows of it cannot be used: they are not finite, or zero."""
    builds_graph = keeps_graph and torch.is_grad_enabled()
    if builds_graph and any(map(_requires_grad, inputs)):
        return metric.embed_prepared(inputs, patches), {}
    with torch.no_grad():
        embedding = metric.embed_prepared(inputs, patches).cpu()
    is_usable = embedding.finite()
    if metric.may_see_nothing:
        is_usable |= embedding.cls.isnan().all(1)
    is_zero = ~embedding.cls.any(1)
    reasons = {}
    for row in (~is_usable | is_zero).nonzero().flatten().tolist():
        if is_usable[row]:
            reasons[row] = f"its embedding by {metric.label} is zero"
        else:
            reasons[row] = reason(metric.dtype)
    return embedding, reasons


def _requires_grad(model_input: Any) -> bool:
    """Whether a graph leads to what `prepare` gave."""
    values = model_input if isinstance(model_input, tuple) else (model_input,)
    tensors = [value for value in values if is_tensor(value)]
    return any(tensor.requires_grad for tensor in tensors)
