"""Encoders of regions: a model of this package, or any function from images to vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from idmetric.match.regions import Picture
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.matrix import distance_matrix, needs_patches
from idmetric.metric.errors import RequestError
from idmetric.metric.images.read import to_image
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.subject import Subject

# N RGB images -> an array or tensor (N, D), or a list of N vectors (D,); NaN or None where it sees nothing, as no face
VectorFunction = Callable[[list[Image.Image]], Any]


class Encoder(Protocol):
    """What matching asks of an encoder.

    Attributes:
        distance: that it is compared by.
    """

    distance: str

    @property
    def signature(self) -> Mapping[str, str]:
        """Model, revision, distance and more, as `Embedder.signature` gives them."""

    def load(self, picture: Picture, cover: Tensor | None) -> Any:
        """Prepare one region; runs in a thread."""

    def embed(self, loaded: Sequence[Any]) -> Embedding:
        """Embed a batch of prepared regions."""

    def subject(self, name: str, references: Any) -> Subject:
        """Embed the references of a subject."""

    def check(self, subject: Subject) -> None:
        """Refuse a subject of another encoder: RequestError."""

    def distances(self, subject: Subject, embedding: Embedding) -> Tensor:
        """Distances (K, N) of a subject's references to N regions."""


class ModelEncoder:
    """A model of this package, by one of its distances."""

    def __init__(self, metric: Embedder, distance: str, batch_size: int) -> None:
        self.metric = metric
        self.distance = distance
        self.batch_size = batch_size
        self.signature = metric.signature(distance)
        self._needs_patches = needs_patches(distance)

    def load(self, picture: Picture, cover: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See `Encoder.load`."""
        return self.metric.preprocessor.load_image(picture, cover, "keep")

    def embed(self, loaded: Sequence[tuple[Tensor, Tensor | None]]) -> Embedding:
        """See `Encoder.embed`; the graph of pixels that require grad is kept."""
        pixels = [region_pixels for region_pixels, _ in loaded]
        masks = [cover for _, cover in loaded]
        has_masks = any(cover is not None for cover in masks)
        return self.metric.as_embedding(
            pixels, masks if has_masks else None, "keep", self._needs_patches, self.batch_size
        )

    def subject(self, name: str, references: Any) -> Subject:
        """See `Encoder.subject`."""
        return Subject.of(self.metric, references, name=name, distance=self.distance, batch_size=self.batch_size)

    def check(self, subject: Subject) -> None:
        """See `Encoder.check`."""
        subject.check(self.metric.model_id, self.distance)

    def distances(self, subject: Subject, embedding: Embedding) -> Tensor:
        """See `Encoder.distances`."""
        return self.metric.pairwise(subject.embedding.to(self.metric.device), embedding, self.distance)


class FunctionEncoder:
    """A function from RGB images to vectors, compared by 1 - cos; an image in which it sees nothing is not compared."""

    distance = "cls"

    def __init__(self, function: VectorFunction, name: str) -> None:
        self.function = function
        self.signature: dict[str, str] = {"model": name, "distance": self.distance}
        self._dimension = 1  # of the vectors; only a batch in which it sees nothing leaves it open

    def load(self, picture: Picture, cover: Tensor | None) -> Image.Image:
        """See `Encoder.load`. The function sees the region's pixels alone, not its mask."""
        return to_image(picture, None) if isinstance(picture, Tensor) else picture

    def embed(self, loaded: Sequence[Image.Image]) -> Embedding:
        """See `Encoder.embed`; rows of NaN where the function sees nothing."""
        vectors = self._vectors(self.function(list(loaded)))
        if vectors.ndim != 2 or len(vectors) != len(loaded):
            raise RequestError(
                f"the encoder {self.signature['model']} gave an array of shape {tuple(vectors.shape)} for "
                f"{len(loaded)} images: (N, D) is needed"
            )
        is_usable = vectors.isfinite().all(1) | vectors.isnan().all(1)
        if not bool(is_usable.all()):
            raise RequestError(
                f"the encoder {self.signature['model']} gave vectors that are partly NaN, or infinite: a row of NaN, "
                "or None, stands for an image in which it sees nothing"
            )
        return Embedding(vectors, model=self.signature["model"])

    def _vectors(self, result: Any) -> Tensor:
        """What the function gave, float32 on the CPU, where subjects of files are."""
        if not isinstance(result, list | tuple):
            return torch.as_tensor(result).float().cpu()
        rows: list[Tensor | None] = []
        dimension = self._dimension
        for vector in result:
            row = None
            if vector is not None:
                row = torch.as_tensor(vector).float().cpu()
                dimension = row.numel()
            rows.append(row)
        nothing = torch.full((dimension,), torch.nan)
        return torch.stack([nothing if row is None else row for row in rows])

    def subject(self, name: str, references: Any) -> Subject:
        """See `Encoder.subject`; RequestError names a reference in which the function sees nothing."""
        return Subject.of_vectors(self.embed, references, name=name, signature=self.signature)

    def check(self, subject: Subject) -> None:
        """See `Encoder.check`."""
        subject.check(self.signature["model"], self.distance)
        self._dimension = subject.embedding.cls.shape[1]

    def distances(self, subject: Subject, embedding: Embedding) -> Tensor:
        """See `Encoder.distances`."""
        distances = torch.full((len(subject), len(embedding)), torch.nan)
        is_seen = embedding.finite()
        if is_seen.any():
            seen = embedding[is_seen.nonzero()[:, 0]]
            distances[:, is_seen] = distance_matrix(subject.embedding, seen)
        return distances


def encoder_of(encoder: Embedder | VectorFunction, distance: str, batch_size: int) -> Encoder:
    """Wrap a model or a function."""
    if isinstance(encoder, Embedder):
        return ModelEncoder(encoder, distance, batch_size)
    if not callable(encoder):
        raise TypeError(f"an encoder is a model or a function from images to vectors, got {type(encoder).__name__}")
    return FunctionEncoder(encoder, getattr(encoder, "__name__", type(encoder).__name__))
