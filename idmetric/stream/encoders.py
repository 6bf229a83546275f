"""What the stream asks of a model of images."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from idmetric.metric.images.kinds import WHITE
from idmetric.metric.images.read import read_image

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from idmetric.metric.distance.embedding import Embedding
    from idmetric.metric.images.kinds import Color, ImageLike, MaskId, Outside
    from idmetric.metric.images.masks import MaskLike


class ImageModel(Protocol):
    """A model of images that the stream prepares: an `Embedder`, which describes these members, or a baseline.

    Attributes:
        reads_words: whether words change an image's embedding. has_patches: whether embeddings may have patches.
    """

    reads_words: bool
    has_patches: bool

    @property
    def background(self) -> Color:
        """The color behind transparent images."""

    def signature(self) -> dict[str, str]:
        """Facts to report with a score."""

    @property
    def label(self) -> str:
        """The name, for messages."""

    @property
    def decoding(self) -> Hashable:
        """Encoders with equal values share a decoded picture."""

    def read_image(self, image: ImageLike) -> Image.Image:
        """Decode an image."""

    def check_mask(self, mask: MaskLike) -> None:
        """Refuse masks, if it takes none: ImageReadError."""

    def prepare(self, picture: Image.Image | Tensor | None, cover: Tensor | None, words: str | None) -> Any:
        """Make an element of a batch, in a thread."""


class VectorModel(ImageModel, Protocol):
    """A model that embeds images."""

    @property
    def dtype(self) -> Any:
        """Of its weights, for messages."""

    @property
    def model_id(self) -> str:
        """`Embedding.model` of its embeddings."""

    @property
    def may_see_nothing(self) -> bool:
        """Whether a row of NaN means that it sees nothing in an image, as a face encoder in a landscape."""

    def about(self, outside: Outside | None = None, mask_id: MaskId | None = None) -> dict[str, str]:
        """Everything that its embeddings depend on; asked for with a cache alone."""

    def embed_prepared(self, batch: Sequence[Any], patches: bool = True) -> Embedding:
        """Embed a batch, on the device."""


class PlainModel:
    """A model other than an `Embedder`, such as a baseline: images are seen on white, with all of their pixels."""

    background: Color = WHITE
    reads_words = False
    has_patches = False
    dtype = "float32"

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
