"""What the stream asks of an encoder."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from idmetric.metric.distance.embedding import Embedding
    from idmetric.metric.images.kinds import Color, ImageLike, MaskId, Outside
    from idmetric.metric.images.masks import MaskLike


class StreamEncoder(Protocol):
    """A model of images: an `Embedder`, which describes these members, or a baseline.

    Attributes:
        background: behind transparent images. reads_words: whether words change an image's embedding.
    """

    background: Color
    reads_words: bool

    @property
    def label(self) -> str:
        """The name, for messages."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights, for messages."""

    @property
    def model_id(self) -> str:
        """`Embedding.model` of its embeddings."""

    def about(self, outside: Outside | None = None, mask_id: MaskId | None = None) -> dict[str, str]:
        """Everything that its embeddings depend on; asked for with a cache alone."""

    def decoding(self, whole: bool) -> Hashable:
        """Encoders with equal values share a decoded picture."""

    def read_image(self, image: ImageLike, *, whole: bool = True) -> Image.Image:
        """Decode an image."""

    def check_mask(self, mask: MaskLike) -> None:
        """Refuse masks, if it takes none: ImageReadError."""

    def prepare(self, picture: Image.Image | Tensor | None, cover: Tensor | None, words: str | None) -> Any:
        """Make an element of a batch, in a thread."""

    def embed_prepared(self, batch: Sequence[Any], patches: bool = True) -> Embedding:
        """Embed a batch, on the device."""
