"""What is to be embedded, which part of it, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from idmetric.metric.images.kinds import ImageReadError, MaskId, Outside

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.metric.distance.embedding import Embedding
    from idmetric.metric.images.kinds import ImageLike
    from idmetric.metric.images.masks import MaskLike


@dataclass(frozen=True)
class Item:
    """An image, a text, or both; nothing is read yet.

    Attributes:
        name: as messages call it.
        image: as `Embedder.embed` takes it, or a function that gives it, called in a thread; None for a text alone.
        mask: of its subject, or a function that gives it.
        words: all text for models that read it, the instruction included; None: their default.
        problem: why it cannot be used, if that is known before it is read.
        source: what the caller made it of, for the caller alone.
    """

    name: str
    image: ImageLike | Callable[[], ImageLike] | None = None
    mask: MaskLike | Callable[[], MaskLike] | None = None
    words: str | None = None
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
    """An item that was embedded, or the reason why it cannot be used.

    Attributes:
        embeddings: one row from each encoder, on the CPU.
        keys: of each encoder's embedding in the cache; "" if it is not kept.
        problem: why it cannot be used; there are no embeddings then.
        head: what the `Head` returned; None if the bytes could not be read. wanted: what each `Want` returned.
    """

    item: Item
    embeddings: tuple[Embedding, ...] = ()
    keys: tuple[str, ...] = ()
    problem: ImageReadError | None = None
    head: Any = None
    wanted: tuple[Any, ...] = ()
