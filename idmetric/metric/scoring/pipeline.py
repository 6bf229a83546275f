"""From images to embeddings: threads read ahead, and the model embeds batch by batch.

    def read(path: str) -> Input[str]:
        source = Source.read(path)
        return Input(path, source.key, *model.load_image(source.image))

    for batch in batches(paths, read, batch_size=32):
        reasons = keep(store, batch, lambda fresh: embed(model, fresh))

Reading gives an `Input` for each item: the pixels to embed, or none if the embedding is stored already or the image
cannot be used. The caller decides whether such an image is skipped or stops the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import NonFiniteError, reason
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.kinds import ImageReadError, describe
from idmetric.metric.images.opening import Named, read_file
from idmetric.metric.scoring.keys import content_key

if TYPE_CHECKING:
    from idmetric.metric.scoring.store import Store

Item = TypeVar("Item")
_KNOWN = 4  # a batch ends after so many times its size even if most of it is stored


@dataclass
class Input(Generic[Item]):
    """An image on its way to the model.

    Attributes:
        item: what was to be read. key: of its content, if it may be stored.
        pixels: the model's input; None if there is nothing to embed. mask: of the subject, as the model sees it.
        problem: why the image cannot be used.
    """

    item: Item
    key: str = ""
    pixels: Any = None
    mask: Any = None
    problem: str = ""


AnyInput = TypeVar("AnyInput", bound=Input[Any])


@dataclass(frozen=True)
class Source:
    """The bytes of an image and of its subject's mask, which messages call by the names of their files.

    Attributes:
        key: of the content, see `keys.content_key`.
    """

    image: Named
    mask: Named | None
    key: str

    @classmethod
    def of(cls, image: Named, mask: Named | None = None) -> Source:
        """A source of bytes that are read already."""
        key = content_key(image.getvalue(), None if mask is None else mask.getvalue())
        return cls(image, mask, key)

    @classmethod
    def read(cls, image: str | bytes, mask: str | bytes | None = None) -> Source:
        """Read files; ImageReadError names one that cannot be read."""
        return cls.of(_named(image), None if mask is None else _named(mask))


def _named(source: str | bytes) -> Named:
    return Named(source, describe(source)) if isinstance(source, bytes) else read_file(source)


def problem_of(error: ImageReadError, image: str) -> str:
    """Why an image of this name cannot be used; the reason names the mask, if the error is about it."""
    return error.reason if error.source == image else f"its mask {error.source}: {error.reason}"


def threads(workers: int | None) -> int:
    """Number of threads that read images: by default one for each core, at most 8."""
    return min(8, os.cpu_count() or 1) if workers is None else workers


def batches(
    items: Iterable[Item],
    read: Callable[[Item], AnyInput],
    *,
    batch_size: int,
    workers: int | None = None,
    group: Callable[[AnyInput], object] = lambda one: None,
) -> Generator[list[AnyInput], None, None]:
    """Read items in threads (`workers`; 0: in turn), and yield them in order, `batch_size` images to embed at a time.

    Images of different groups are in different batches. At most three batches of pixels are in memory, and a batch is
    emptied when the next one is wanted. If a stopped run is resumed, stored images do not change the batches of the
    remaining ones.

    Raises:
        ValueError: for a batch size below 1. Whatever `read` raises.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    batch: list[AnyInput] = []
    new = 0
    with closing(in_order(read, items, threads=threads(workers), waiting=2 * batch_size)) as ahead:
        for one in ahead:
            if batch and group(one) != group(batch[0]):
                yield batch
                batch.clear()
                new = 0
            batch.append(one)
            new += one.pixels is not None
            del one  # held only by the batch
            if new == batch_size or len(batch) == (_KNOWN if new else 1) * batch_size:
                yield batch
                batch.clear()
                new = 0
    if batch:
        yield batch


def embed(
    model: Any, inputs: Sequence[Input[Any]], patches: bool = False, *, zero: bool = False
) -> tuple[Embedding, dict[int, str]]:
    """Embed images with pixels, in one batch.

    Args:
        zero: an embedding of zeros can be used: its distances are 1.

    Returns:
        Their embedding, and the reason for each row that cannot be used: it is zero, or not finite.
    """
    return usable(
        lambda: model.embed(
            [one.pixels for one in inputs], batch_size=len(inputs),
            masks=None if all(one.mask is None for one in inputs) else [one.mask for one in inputs],
            outside="keep", patches=patches,  # reading has replaced what is outside
        ), model.dtype, zero=zero,
    )  # fmt: skip


def keep(
    store: Store, inputs: Sequence[AnyInput], embed: Callable[[list[AnyInput]], tuple[Embedding, dict[int, str]]]
) -> dict[str, str]:
    """Embed the images with pixels that the store lacks, each content once, and add them to it.

    Returns the reason for each key with an embedding that cannot be used.
    """
    fresh = {one.key: one for one in inputs if one.pixels is not None and one.key not in store}
    if not fresh:
        return {}
    found, bad = embed(list(fresh.values()))
    keys = list(fresh)
    if good := [k for k in range(len(keys)) if k not in bad]:
        store.add([keys[k] for k in good], found[good].cpu())
    return {keys[k]: why for k, why in bad.items()}


def usable(
    run: Callable[[], Embedding], dtype: Any, by: str = "", zero: bool = False
) -> tuple[Embedding, dict[int, str]]:
    """Return the embedding that `run` makes, and the reason for each row that cannot be used; `by` names the model."""
    try:
        found = run()
    except NonFiniteError as error:
        if error.embedding is None:
            raise
        found = error.embedding
    empty, infinite = (np.flatnonzero((~x).tolist()).tolist() for x in (found.cls.any(1), found.finite()))
    bad = {} if zero else dict.fromkeys(empty, f"its embedding{f' by {by}' if by else ''} is zero")
    return found, bad | dict.fromkeys(infinite, reason(dtype, by))
