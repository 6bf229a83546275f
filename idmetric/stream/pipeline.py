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
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import NonFiniteError
from idmetric.metric.distance.finite import reason as reason_of
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.kinds import ImageReadError, describe
from idmetric.metric.images.opening import Named, read_file
from idmetric.stream.keys import content_key

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from idmetric.metric.images.kinds import Outside
    from idmetric.stream.store import Store

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
    mask: Tensor | None = None
    problem: str = ""


AnyInput = TypeVar("AnyInput", bound=Input[Any])
Embedded = tuple[Embedding, dict[int, str]]  # and the reason for each row that cannot be used


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
    def read(cls, image: str | bytes | Named, mask: str | bytes | Named | None = None) -> Source:
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


class Model(Protocol):
    """What `embed` needs of an `Embedder`."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""

    def embed(
        self,
        images: list[Tensor],
        *,
        batch_size: int,
        masks: list[Tensor | None] | None,
        outside: Outside,
        patches: bool,
    ) -> Embedding:
        """See `Embedder.embed`."""


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

    At most three batches of pixels are in memory, and a batch is emptied when the next one is wanted. If a stopped run
    is resumed, stored images do not change the batches of the remaining ones.

    Raises:
        ValueError: for a batch size below 1. Whatever `read` raises.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    batch: list[AnyInput] = []
    fresh = 0
    with closing(in_order(read, items, threads=threads(workers), waiting=2 * batch_size)) as ahead:
        for image in ahead:
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


def embed(model: Model, inputs: Sequence[Input[Any]], patches: bool = False, *, zero: bool = False) -> Embedded:
    """Embed images with pixels, in one batch.

    Args:
        zero: an embedding of zeros can be used: its distances are 1.

    Returns:
        Their embedding, and the reason for each row that cannot be used: it is zero, or not finite.
    """
    pixels = [image.pixels for image in inputs]
    masks = [image.mask for image in inputs]
    has_masks = any(mask is not None for mask in masks)

    def run() -> Embedding:
        return model.embed(
            pixels,
            batch_size=len(pixels),
            masks=masks if has_masks else None,
            outside="keep",  # reading has replaced the pixels there
            patches=patches,
        )

    return usable(run, model.dtype, zero=zero)


def keep(store: Store, inputs: Sequence[AnyInput], embed: Callable[[list[AnyInput]], Embedded]) -> dict[str, str]:
    """Embed the images with pixels that the store lacks, each content once, and add them to it.

    Returns the reason for each key with an embedding that cannot be used.
    """
    fresh = {}
    for image in inputs:
        if image.pixels is not None and image.key not in store:
            fresh[image.key] = image
    if not fresh:
        return {}
    keys = list(fresh)
    embedding, reasons = embed(list(fresh.values()))
    rows = [row for row in range(len(keys)) if row not in reasons]
    if rows:
        embedded_keys = [keys[row] for row in rows]
        store.add(embedded_keys, embedding[rows].cpu())
    return {keys[row]: reason for row, reason in reasons.items()}


def usable(run: Callable[[], Embedding], dtype: torch.dtype | str, model: str = "", zero: bool = False) -> Embedded:
    """Return the embedding that `run` makes, and the reason for each row that cannot be used; `model` is its name."""
    try:
        embedding = run()
    except NonFiniteError as error:
        if error.embedding is None:
            raise
        embedding = error.embedding
    reasons = {}
    is_finite = embedding.finite().tolist()
    is_empty = (~embedding.cls.any(1)).tolist()
    by = f" by {model}" if model else ""
    for row in range(len(embedding)):
        if not is_finite[row]:
            reasons[row] = reason_of(dtype, model)
        elif is_empty[row] and not zero:
            reasons[row] = f"its embedding{by} is zero"
    return embedding, reasons
