"""Encoders of regions: a model of this package, or any function from images to vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from idmetric.matching.subjects import Subject
from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding
from idmetric.metric.errors import RequestError
from idmetric.metric.images import read_image
from idmetric.stream import ImageModel, PlainModel

# N RGB images -> an array or tensor (N, D), or a list of N vectors (D,); NaN or None where it sees nothing, as no face
VectorFunction = Callable[[list[Image.Image]], Any]


class Encoder(Protocol):
    """What matching asks of an encoder.

    Attributes:
        distance: that it is compared by.
    """

    distance: str

    @property
    def model(self) -> ImageModel:
        """What embeds regions, and references."""

    @property
    def signature(self) -> Mapping[str, str]:
        """Model, revision, distance and more, as `Embedder.signature` gives them."""

    def check(self, subject: Subject) -> None:
        """Refuse a subject of another encoder: RequestError."""

    def distances(self, subject: Subject, embedding: Embedding) -> Tensor:
        """Distances (K, N) of a subject's references to N regions."""


class ModelEncoder:
    """A model of this package, by one of its distances."""

    def __init__(self, metric: Embedder, distance: str) -> None:
        self.model = metric
        self.distance = distance
        self.signature = metric.signature(distance)

    def check(self, subject: Subject) -> None:
        """See `Encoder.check`."""
        _check(subject, self)

    def distances(self, subject: Subject, embedding: Embedding) -> Tensor:
        """See `Encoder.distances`."""
        device = self.model.device
        return self.model.pairwise(subject.embedding.to(device), embedding.to(device), self.distance)


class FunctionModel(PlainModel):
    """A function from RGB images to vectors, as a model; rows of NaN where it sees nothing."""

    may_see_nothing = True

    def __init__(self, function: VectorFunction, name: str) -> None:
        self._function = function
        self._name = name
        self.dimension = 1  # of the vectors; only a batch in which it sees nothing leaves it open

    def signature(self) -> dict[str, str]:
        """See `PlainModel.signature`."""
        return {"model": self._name, "distance": "cls"}

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None) -> Image.Image:
        """See `PlainModel.prepare`. The function sees the region's pixels alone, not its mask."""
        return read_image(picture) if isinstance(picture, Tensor) else picture

    def embed_prepared(self, batch: Sequence[Image.Image], patches: bool = True) -> Embedding:
        """See `PlainModel.embed_prepared`."""
        vectors = self._vectors(self._function(list(batch)))
        if vectors.ndim != 2 or len(vectors) != len(batch):
            raise RequestError(
                f"the encoder {self._name} gave an array of shape {tuple(vectors.shape)} for {len(batch)} images: "
                "(N, D) is needed"
            )
        is_usable = vectors.isfinite().all(1) | vectors.isnan().all(1)
        if not bool(is_usable.all()):
            raise RequestError(
                f"the encoder {self._name} gave vectors that are partly NaN, or infinite: a row of NaN, or None, "
                "stands for an image in which it sees nothing"
            )
        return Embedding(vectors, model=self._name)

    def _vectors(self, result: Any) -> Tensor:
        """What the function gave, float32 on the CPU, where subjects of files are."""
        if not isinstance(result, list | tuple):
            return torch.as_tensor(result).float().cpu()
        rows: list[Tensor | None] = []
        dimension = self.dimension
        for vector in result:
            row = None
            if vector is not None:
                row = torch.as_tensor(vector).float().cpu()
                dimension = row.numel()
            rows.append(row)
        nothing = torch.full((dimension,), torch.nan)
        return torch.stack([nothing if row is None else row for row in rows])


class FunctionEncoder:
    """A function from RGB images to vectors, compared by 1 - cos; an image in which it sees nothing is not compared."""

    distance = "cls"

    def __init__(self, function: VectorFunction, name: str) -> None:
        self.model = FunctionModel(function, name)
        self.signature = self.model.signature()

    def check(self, subject: Subject) -> None:
        """See `Encoder.check`. RequestError also names a reference in which the function sees nothing."""
        _check(subject, self)
        for photo, is_seen in zip(subject.references, subject.embedding.finite().tolist(), strict=True):
            if not is_seen:
                raise RequestError(
                    f"the encoder {subject.embedding.model} sees nothing, such as no face, in the reference {photo} of "
                    f"{subject.name}: leave it out, or cut it larger"
                )
        self.model.dimension = subject.embedding.cls.shape[1]

    def distances(self, subject: Subject, embedding: Embedding) -> Tensor:
        """See `Encoder.distances`."""
        distances = torch.full((len(subject), len(embedding)), torch.nan)
        is_seen = embedding.finite()
        if is_seen.any():
            seen_regions = embedding[is_seen.nonzero()[:, 0]]
            distances[:, is_seen] = distance_matrix(subject.embedding, seen_regions)
        return distances


def _check(subject: Subject, encoder: Encoder) -> None:
    """Refuse the embeddings of another model, or without the patches that the distance compares: RequestError."""
    try:
        subject.embedding.check_maker(encoder.model.model_id, needs_patches(encoder.distance))
    except RequestError as error:
        raise RequestError(f"the subject {subject.name}: {error}") from error


def encoder_of(encoder: Embedder | VectorFunction, distance: str) -> Encoder:
    """Wrap a model or a function."""
    if isinstance(encoder, Embedder):
        return ModelEncoder(encoder, distance)
    if not callable(encoder):
        raise TypeError(f"an encoder is a model or a function from images to vectors, got {type(encoder).__name__}")
    return FunctionEncoder(encoder, getattr(encoder, "__name__", type(encoder).__name__))
