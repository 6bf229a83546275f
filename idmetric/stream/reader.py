"""Reads items and prepares them for encoders, in the threads of the stream.

reader = Reader([metric], Look())
reader.read(Item("a.jpg", "a.jpg")).pixels  # the input of each encoder
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from torch import Tensor

from idmetric.metric.images.arrays import float_pixels, image_of_pixels, is_float
from idmetric.metric.images.kinds import ImageReadError, Picture, describe, is_array, naming
from idmetric.metric.images.masks import labeled
from idmetric.metric.images.opening import Named
from idmetric.metric.images.regions import cut_out
from idmetric.stream.encoders import ImageModel
from idmetric.stream.item import Head, Item, Look, Want
from idmetric.stream.keys import settings_digest
from idmetric.stream.pipeline import ContentSource, Input

_TEXT = "text"  # key of an item without an image, before that of its words
OnError = Literal["fail", "skip"]


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
        image = image_of_pixels(picture) if isinstance(picture, Tensor) else picture
        return tuple([want(item, image) for want in self.wants])

    def _part(self, encoder: ImageModel, picture: Picture, mask: Any) -> tuple[Picture, Tensor | None]:
        """The part of a picture that an encoder sees, and how much of each pixel its mask covers."""
        if mask is None:
            return picture, None
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
    return isinstance(picture, Tensor) and picture.requires_grad


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
