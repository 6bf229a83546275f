"""What is to be embedded, which part of it, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from idmetric.metric.images.kinds import ImageReadError, MaskId, Outside, Picture

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from idmetric.metric.distance.embedding import Embedding
    from idmetric.metric.images.kinds import ImageLike
    from idmetric.metric.images.masks import MaskLike


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
