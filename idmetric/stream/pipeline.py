"""Items read ahead in threads, in batches.

    for batch in batches(paths, read, batch_size=32):
        ...

Reading gives an `Input` for each item: the pixels to embed, or none if the embedding is stored already or the image
cannot be used. The caller decides whether such an image is skipped or stops the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from idmetric.metric.files.threads import in_order
from idmetric.metric.images.kinds import ImageReadError, describe
from idmetric.metric.images.opening import Named, read_file
from idmetric.stream.keys import content_key

Item = TypeVar("Item")
_KNOWN = 4  # a batch ends after so many times its size even if most of it is stored


@dataclass
class Input(Generic[Item]):
    """An image on its way to the model.

    Attributes:
        item: what was to be read. key: of its content, if it may be stored.
        pixels: the model's input; None if there is nothing to embed.
        problem: why the image cannot be used.
    """

    item: Item
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
    items: Iterable[Item],
    read: Callable[[Item], AnyInput],
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
