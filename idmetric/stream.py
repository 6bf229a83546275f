"""Items read ahead in threads, in batches.

    for batch in batches(paths, read, batch_size=32):
        ...

Reading gives an `Input` for each item: the pixels to embed, or none if the embedding is stored already or the image
cannot be used. The caller decides whether such an image is skipped or stops the run.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.embedding import Embedding, NonFiniteError, concatenate, reason, shown
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
from idmetric.store import Store, content_key, folder_name, is_masked, settings_digest

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from idmetric.metric.embedder import Embedder
    from idmetric.metric.embedding import Embedding
    from idmetric.metric.images import Color, ImageLike, MaskId, Outside
    from idmetric.metric.masks import MaskLike

torch: Any = LazyModule("torch")  # a command's --help does without


# The models of images that the stream reads for.


class PlainModel:
    """A model other than an `Embedder`, such as a baseline: images are seen on white, with all of their pixels."""

    background: Color = WHITE
    reads_words = False
    has_patches = False
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

    def about(self, outside: Outside | None = None, mask_id: MaskId | None = None) -> dict[str, str]:
        """See `Embedder.about`."""
        facts = {**self.signature(), "background": str(self.background), "outside": outside or "all"}
        if mask_id is not None:
            facts["mask_id"] = str(mask_id)
        return facts

    @property
    def decoding(self) -> Hashable:
        """See `Embedder.decoding`."""
        return self.background, "standard"

    def read_image(self, image: ImageLike) -> Image.Image:
        """See `Embedder.read_image`."""
        return read_image(image, background=self.background)

    def check_mask(self, mask: MaskLike) -> None:
        """All masks are taken."""

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None) -> Any:
        """See `Embedder.prepare`; pictures are RGB images, and None for a text alone of models that read words."""
        raise NotImplementedError


class PlainVectorModel(PlainModel):
    """A `PlainModel` that embeds images."""

    may_see_nothing = False

    def embed_prepared(self, batch: Sequence[Any], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`."""
        raise NotImplementedError


ImageModel: TypeAlias = "Embedder | PlainModel"  # images are prepared for it
VectorModel: TypeAlias = "Embedder | PlainVectorModel"  # which also embeds them


# What is to be embedded, which part of it, and what comes back.


@dataclass(frozen=True)
class Part:
    """A part of an image, cut out.

    Attributes:
        pixels: what is seen. cover: how much of each pixel its mask covers, (h, w); None without a mask.
        key: names it among the parts of its image in a cache; "": it is the whole image; None: it is not kept.
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
        parts: a function of the decoded picture, called in a thread: each part is embedded for itself, in place of the
            image. All encoders see parts of one picture, as the first of them decodes it.
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
    """Which part of each image encoders see.

    Attributes:
        masked: only the subject that masks select; images without a mask are seen whole.
        outside: what becomes of pixels outside the mask, see `Embedder.embed`.
        mask_id: the subject's label, if the masks hold several.
    """

    masked: bool = False
    outside: Outside = "black"
    mask_id: MaskId | None = None


# Called in a thread with an item and its decoded picture, RGB, before anything outside of the mask is painted over
Want = Callable[[Item, "Image.Image"], Any]


# Called in a thread with an item and the bytes of its image, before they are decoded
Head = Callable[[Item, bytes], Any]


@dataclass(frozen=True)
class Seen:
    """An item or a part of it that was embedded, or the reason why the item cannot be used.

    Attributes:
        part: the number of the part. An item of which no part was cut has none, and no embeddings.
        embeddings: one row from each encoder, on the CPU; on its device with a graph, if the pixels require grad.
        keys: of each encoder's embedding in the cache; "" if it is not kept.
        problem: why it cannot be used; there are no embeddings then.
        head: what the `Head` returned; None if the bytes could not be read. wanted: what each `Want` returned.
    """

    item: Item
    part: int | None = None
    embeddings: tuple[Embedding, ...] = ()
    keys: tuple[str, ...] = ()
    problem: ImageReadError | None = None
    head: Any = None
    wanted: tuple[Any, ...] = ()


Readable = TypeVar("Readable")
_KNOWN = 4  # a batch ends after so many times its size even if most of it is stored


@dataclass
class Input(Generic[Readable]):
    """An image on its way to the model.

    Attributes:
        item: what was to be read. key: of its content, if it may be stored.
        pixels: the model's input; None if there is nothing to embed.
        problem: why the image cannot be used.
    """

    item: Readable
    key: str = ""
    pixels: Any = None
    problem: str = ""


AnyInput = TypeVar("AnyInput", bound=Input[Any])


@dataclass(frozen=True)
class ContentSource:
    """The bytes of an image and of its subject's mask, which messages call by the names of their files.

    Attributes:
        key: of the content, see `keys.content_key`.
    """

    image: Named
    mask: Named | None
    key: str

    @classmethod
    def of(cls, image: Named, mask: Named | None = None) -> ContentSource:
        """A source of bytes that are read already."""
        key = content_key(image.getvalue(), None if mask is None else mask.getvalue())
        return cls(image, mask, key)

    @classmethod
    def read(cls, image: str | bytes | Named, mask: str | bytes | Named | None = None) -> ContentSource:
        """Read files; ImageReadError names one that cannot be read."""
        return cls.of(_named(image), None if mask is None else _named(mask))


def _named(source: str | bytes | Named) -> Named:
    if isinstance(source, Named):
        return source
    if isinstance(source, bytes):
        return Named(source, describe(source))
    return read_file(source)


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


def batches(
    items: Iterable[Readable],
    read: Callable[[Readable], AnyInput],
    *,
    batch_size: int,
    workers: int | None = None,
) -> Generator[list[AnyInput], None, None]:
    """Read items in threads (`workers`; 0: in turn), and yield them in order, `batch_size` images to embed at a time.

    At most three batches of pixels are in memory, see `grouped`.

    Raises:
        ValueError: for a batch size below 1. Whatever `read` raises.
    """
    with closing(in_order(read, items, threads=threads(workers), waiting=2 * batch_size)) as ahead:
        yield from grouped(ahead, batch_size)


def grouped(images: Iterable[AnyInput], batch_size: int) -> Generator[list[AnyInput], None, None]:
    """Batches with `batch_size` images to embed; a batch is emptied when the next one is wanted.

    If a stopped run is resumed, stored images do not change the batches of the remaining ones.

    Raises:
        ValueError: for a batch size below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    batch: list[AnyInput] = []
    fresh = 0
    for image in images:
        batch.append(image)
        fresh += image.pixels is not None
        del image  # held only by the batch
        most = _KNOWN * batch_size if fresh else batch_size
        if fresh == batch_size or len(batch) == most:
            yield batch
            batch.clear()
            fresh = 0
    if batch:
        yield batch


# Reads items and prepares them for encoders, in the threads of the stream.
#
# reader = Reader([metric], Look())
# reader.read(Item("a.jpg", "a.jpg")).pixels  # the input of each encoder

_TEXT = "text"  # key of an item without an image, before that of its words
OnError = Literal["fail", "skip"]


@dataclass
class Tally:
    """How many embeddings of images were asked of caches, and how many of them were made."""

    asked: int = 0
    made: int = 0

    def __str__(self) -> str:
        return f"embedded {self.made:,} of {self.asked:,} images"


_tally: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Count what caches that are opened in the block are asked for."""
    tally = Tally()
    token = _tally.set(tally)
    try:
        yield tally
    finally:
        _tally.reset(token)


class Cache:
    """Embeddings on disk by encoder; whole images and masked ones lie apart.

    Args:
        folder: made if it does not exist.
        patches: keep patch tokens as well.
        is_needed: embeddings are read from here, so that a full disk is an error; otherwise nothing more is kept then,
            with a warning.

    Raises:
        OutputError: if the folder cannot be made, or, where it is needed, written to.
    """

    def __init__(
        self,
        folder: Path,
        encoders: Sequence[VectorModel],
        look: Look,
        *,
        patches: bool = False,
        is_needed: bool = False,
    ) -> None:
        with writing(folder):  # before anything is embedded
            folder.mkdir(parents=True, exist_ok=True)
        self.tally = _tally.get() or Tally()
        self._is_needed = is_needed
        self._is_full = False
        self._stores: list[tuple[Store, Store]] = []  # of each encoder, for whole and for masked images
        for encoder in encoders:
            of_whole = folder / folder_name(encoder.about())
            of_masked = folder / folder_name(encoder.about(look.outside, look.mask_id))
            whole_store = Store(of_whole, patches, encoder.model_id)
            masked_store = Store(of_masked, patches, encoder.model_id)
            self._stores.append((whole_store, masked_store))

    @classmethod
    def of_store(cls, store: Store) -> Cache:
        """A cache of one encoder that has whole and masked images in one store."""
        cache = cls.__new__(cls)
        cache.tally = _tally.get() or Tally()
        cache._is_needed = True
        cache._is_full = False
        cache._stores = [(store, store)]
        return cache

    def has(self, encoder: int, key: str) -> bool:
        """Whether an encoder's embedding of this content is kept; encoders are numbered."""
        return key in self._stores[encoder][is_masked(key)]

    def add(self, encoder: int, row_of_key: Mapping[str, int], embedding: Embedding) -> None:
        """Keep rows of an embedding on the CPU, by their contents."""
        for masked, store in enumerate(self._stores[encoder]):
            rows = {key: row for key, row in row_of_key.items() if is_masked(key) == masked}
            if rows:
                self._write(store.add, list(rows), embedding[list(rows.values())])

    def readable(self, encoder: int, keys: Sequence[str]) -> dict[str, Embedding]:
        """The embeddings of those contents that are kept; errors as in `embedding`."""
        embeddings: dict[str, Embedding] = {}
        for masked, store in enumerate(self._stores[encoder]):
            if store.unsaved:
                self._write(store.save)
            embeddings |= store.readable([key for key in keys if is_masked(key) == masked])
        return embeddings

    def vectors(self, encoder: int, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D) of kept contents; raises as `embedding`."""
        whole, masked = self._stores[encoder]
        rows_of_masked = [row for row, key in enumerate(keys) if is_masked(key)]
        if not rows_of_masked:
            return whole.vectors(keys)
        rows_of_whole = [row for row, key in enumerate(keys) if not is_masked(key)]
        if not rows_of_whole:
            return masked.vectors(keys)
        of_whole = whole.vectors([keys[row] for row in rows_of_whole])
        vectors = np.empty((len(keys), of_whole.shape[1]), dtype=np.float32)
        vectors[rows_of_whole] = of_whole
        vectors[rows_of_masked] = masked.vectors([keys[row] for row in rows_of_masked])
        return vectors

    def embedding(self, encoder: int, keys: Sequence[str]) -> Embedding:
        """Embeddings of kept contents, with patches if they are kept.

        Raises:
            KeyError, ShardError, OSError: as `Store.embedding`.
        """
        parts = []
        order: list[int] = []
        for masked, store in enumerate(self._stores[encoder]):
            rows = [row for row, key in enumerate(keys) if is_masked(key) == masked]
            if rows:
                parts.append(store.embedding([keys[row] for row in rows]))
                order += rows
        return concatenate(parts)[torch.tensor(order).argsort()]

    def save(self) -> None:
        """Write everything that is not in a file yet."""
        for store in self._all():
            self._write(store.save)

    def _all(self) -> list[Store]:
        stores: list[Store] = []
        for of_encoder in self._stores:
            stores += of_encoder
        return stores

    def _write(self, write: Callable[..., None], *args: Any) -> None:
        if self._is_full:
            return
        try:
            write(*args)
        except OSError as error:
            if self._is_needed:
                raise
            self._is_full = True
            for store in self._all():
                store.drop()
            warnings.warn(f"the cache is not complete ({error}); the scores are", stacklevel=2)


@dataclass
class ReadItem(Input[Item]):
    """An item or a part that was read.

    Attributes:
        pixels: the inputs, by the numbers of the encoders that are to embed it, or None.
        is_empty: whether no part was cut out of the item, so that there is nothing to embed.
        requires_grad: whether a graph leads to the pixels. image_name: as errors call an image that was fetched late.
    """

    part: int | None = None
    is_empty: bool = False
    requires_grad: bool = False
    image_name: str = ""
    error: ImageReadError | None = None
    head: Any = None
    wanted: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """For messages."""
        if self.part is None:
            return self.item.name
        return f"region {self.part} of {self.item.name}"


class Reader:
    """Reads items and prepares them for encoders, in threads.

    Args:
        encoders: they are numbered.
        is_known: whether an encoder, by its number, needs no more of a content, by its key; None: contents get no keys.
        wants: see `embedded`.
    """

    def __init__(
        self,
        encoders: Sequence[ImageModel],
        look: Look,
        *,
        on_error: OnError = "fail",
        is_known: Callable[[int, str], bool] | None = None,
        wants: Sequence[Want] = (),
    ) -> None:
        self.encoders = encoders
        self.look = look
        self.on_error = on_error
        self.is_known = is_known
        self.head: Head | None = None
        self.wants = wants

    def read(self, item: Item) -> ReadItem:
        """Read an item without parts; ImageReadError with on_error="fail"."""
        read = ReadItem(item)
        try:
            self._read(item, read)
        except ImageReadError as error:
            return self._failed(item, error, read)
        return read

    def read_parts(self, item: Item, at_once: int) -> Iterator[ReadItem]:
        """Read an item, and prepare its parts: the first ones at once, the others when they are asked for.

        All of thousands would fill the memory.
        """
        if item.parts is None:
            return iter([self.read(item)])
        opened = ReadItem(item)
        parts = self._parts(item, opened)
        try:
            first = list(islice(parts, at_once))
        except ImageReadError as error:
            return iter([self._failed(item, error, opened)])
        return chain(first, self._remaining(parts, item, opened))

    def _remaining(self, parts: Iterator[ReadItem], item: Item, opened: ReadItem) -> Iterator[ReadItem]:
        try:
            yield from parts
        except ImageReadError as error:
            yield self._failed(item, error, opened)

    def _failed(self, item: Item, raised: ImageReadError, read: ReadItem) -> ReadItem:
        error = raised
        if read.image_name and raised.source == read.image_name:
            error = ImageReadError(item.name, raised.reason)
        if self.on_error == "fail":
            raise error from raised.__cause__
        return ReadItem(item, read.key, problem=str(error), error=error, head=read.head)

    def _read(self, item: Item, read: ReadItem) -> None:
        image, mask = self._opened(item, read)
        inputs = {}
        pictures: dict[Hashable, Picture] = {}
        for number, encoder in enumerate(self.encoders):
            if self._is_known(number, read):
                continue
            if image is None:
                inputs[number] = _words_prepared(encoder, item)
                continue
            picture = _decoded(encoder, image, pictures)
            read.requires_grad |= _requires_grad(picture)
            part, cover = self._part(encoder, picture, mask)
            inputs[number] = encoder.prepare(part, cover, item.words)
        read.pixels = inputs or None
        if self.wants and image is not None:
            if not pictures:
                _decoded(self.encoders[0], image, pictures)
            read.wanted = self._wanted(item, next(iter(pictures.values())))

    def _parts(self, item: Item, opened: ReadItem) -> Iterator[ReadItem]:
        """The parts of an image, in order; one that is empty if there are none."""
        image, _ = self._opened(item, opened)
        picture = _decoded(self.encoders[0], image, {})
        # kept are embeddings of the pixels that each encoder decodes by itself
        decodings = {encoder.decoding for encoder in self.encoders}
        if len(decodings) > 1:
            opened.key = ""
        wanted = self._wanted(item, picture)
        assert item.parts is not None
        number = -1
        for number, part in enumerate(item.parts(picture)):
            read = ReadItem(item, part=number, requires_grad=_requires_grad(picture), wanted=wanted)
            if opened.key and part.key is not None:
                read.key = opened.key
                if part.key:
                    read.key = f"{opened.key}-{part.key}"
            inputs = {}
            for encoder_number, encoder in enumerate(self.encoders):
                if not self._is_known(encoder_number, read):
                    inputs[encoder_number] = encoder.prepare(part.pixels, part.cover, item.words)
            read.pixels = inputs or None
            yield read
        if number < 0:
            yield ReadItem(item, is_empty=True, wanted=wanted)

    def _opened(self, item: Item, read: ReadItem) -> tuple[Any, Any]:
        """Image and mask of an item, and the key of their content, if it may be kept."""
        if item.problem is not None:
            raise item.problem
        image: Any = item.image() if callable(item.image) else item.image
        mask: Any = item.mask() if callable(item.mask) else item.mask
        if not isinstance(image, str | os.PathLike):
            read.image_name = describe(image)
        if image is None:
            read.key = _TEXT
        elif self.is_known is not None and _is_content(image, mask):
            source = ContentSource.read(image, mask)
            image, mask = source.image, source.mask
            read.key = source.key
            if self.head is not None:
                read.head = self.head(item, source.image.getvalue())
        return image, mask

    def _is_known(self, encoder: int, read: ReadItem) -> bool:
        if not read.key or self.is_known is None:
            return False
        return self.is_known(encoder, self.key_of(read, encoder))

    def _wanted(self, item: Item, picture: Picture) -> tuple[Any, ...]:
        if not self.wants:
            return ()
        image = image_of_pixels(picture) if is_tensor(picture) else picture
        return tuple([want(item, image) for want in self.wants])

    def _part(self, encoder: ImageModel, picture: Picture, mask: Any) -> tuple[Picture, Tensor | None]:
        """The part of a picture that an encoder sees, and how much of each pixel its mask covers."""
        if mask is None:
            return picture, None
        from idmetric.metric.masks import cut_out, labeled  # torch

        encoder.check_mask(mask)
        subject_mask = labeled(mask, self.look.mask_id)
        return cut_out(picture, subject_mask, self.look.outside, background=encoder.background)

    def key_of(self, read: ReadItem, encoder: int) -> str:
        """The key of an embedding, which depends on the words for encoders that read them; "" if it is not kept."""
        words = read.item.words
        if not read.key or words is None or not self.encoders[encoder].reads_words:
            return read.key
        return f"{read.key}-{settings_digest({'words': words})}"


def _requires_grad(picture: Picture) -> bool:
    return is_tensor(picture) and picture.requires_grad


def _words_prepared(encoder: ImageModel, item: Item) -> Any:
    try:
        return encoder.prepare(None, None, item.words)
    except ValueError as error:
        raise ImageReadError(item.name, str(error)) from error


def _decoded(encoder: ImageModel, image: Any, pictures: dict[Hashable, Picture]) -> Picture:
    """The decoded picture, shared by encoders that decode alike; float pixels stay as they are."""
    decoding = encoder.decoding
    if decoding not in pictures:
        if is_array(image) and is_float(image):
            with naming(image):
                pictures[decoding] = float_pixels(image, encoder.background)
        else:
            pictures[decoding] = encoder.read_image(image)
    return pictures[decoding]


def _is_content(image: Any, mask: Any) -> bool:
    """Whether an image and its mask have bytes that name their embedding: images in memory are not kept."""
    return isinstance(image, str | bytes | Named) and (mask is None or isinstance(mask, str | bytes | Named))


# The way from items to embeddings: threads read and prepare, the encoders embed batch by batch.
#
# for result in embedded(items, [metric]):
#     result.item.name, result.embeddings[0].cls


def embedded(
    items: Iterable[Item],
    encoders: Sequence[VectorModel],
    look: Look = Look(),  # immutable
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


def embedding_of(items: Iterable[Item], encoder: VectorModel, look: Look = Look(), **options: Any) -> Embedding:
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
