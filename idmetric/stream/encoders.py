"""The models of images that the stream reads for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from idmetric.metric.images.kinds import WHITE
from idmetric.metric.images.read import read_image

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from idmetric.metric.distance.embedding import Embedding
    from idmetric.metric.images.kinds import Color, ImageLike, MaskId, Outside
    from idmetric.metric.images.masks import MaskLike
    from idmetric.metric.models.embedder import Embedder


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
