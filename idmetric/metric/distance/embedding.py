"""Embedding: features of a batch of images, kept so that each image is embedded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.metric.distance.finite import NonFiniteError, finite_rows, reason, shown
from idmetric.metric.files import StrPath
from idmetric.metric.files.output import writing
from idmetric.metric.images.kinds import is_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FORMAT = "idmetric-embedding/1"


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """The global and local features of B images.

    Args:
        cls: global feature of each image, shape (B, D).
        patches: local features, shape (B, P, D'), in row-major order of `grid`; None when they were not asked for.
        grid: rows and columns of the patch grid, P = rows * columns; None without patches.
        weights: how much each patch belongs to the subject, shape (B, P), values >= 0, each row with a positive
            sum; None means every patch counts the same. A subject mask sets them.
        model: which model made it (`Embedder.model_id`); embeddings of two models are never compared. Empty when
            unknown, and then not checked.

    Raises:
        ValueError: if the shapes do not fit together.
    """

    cls: Tensor
    patches: Tensor | None = None
    grid: tuple[int, int] | None = None
    weights: Tensor | None = None
    model: str = ""

    def __post_init__(self) -> None:
        if self.cls.ndim != 2:
            raise ValueError(f"Embedding.cls must have shape (B, D), got {tuple(self.cls.shape)}")
        if self.patches is None:
            return

        batch = self.cls.shape[0]  # not len(), by which torch.export would fix the batch size
        shape = tuple(self.patches.shape)
        tokens = shape[1] if self.grid is None else math.prod(self.grid)
        if len(shape) != 3 or shape[:2] != (batch, tokens):
            raise ValueError(f"Embedding.patches must have shape {(batch, tokens)} and channels, got {shape}")
        if self.weights is not None and self.weights.shape != (batch, tokens):
            raise ValueError(f"Embedding.weights must have shape {(batch, tokens)}, got {tuple(self.weights.shape)}")

    def __len__(self) -> int:
        return self.cls.shape[0]

    def __repr__(self) -> str:
        """One line: shapes instead of values."""
        count = "1 image" if len(self) == 1 else f"{len(self)} images"
        shapes = f"cls {tuple(self.cls.shape)}"
        if self.patches is not None:
            shapes += f", patches {tuple(self.patches.shape)}"
        if self.weights is not None:
            shapes += " weighted"
        dtype = str(self.cls.dtype).removeprefix("torch.")
        storage = f"{dtype} on {self.cls.device}"
        return f"Embedding({count}, {shapes}, {storage}, model={self.model!r})"

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Embedding:
        """Select images; an integer gives an Embedding of one image."""
        rows: Any = index
        if isinstance(index, int):
            start = range(len(self))[index]
            rows = slice(start, start + 1)
        elif not is_tensor(index) and not isinstance(index, slice):
            rows = np.asarray(index, dtype=np.int64)

        def select(tensor: Tensor) -> Tensor:
            return tensor[rows.to(tensor.device) if is_tensor(rows) else rows]

        return self._map(select)

    def __iter__(self) -> Iterator[Embedding]:
        return (self[i] for i in range(len(self)))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Embedding:
        """Move to a device or a floating dtype."""
        return self._map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def without_patches(self) -> Embedding:
        """The same global features alone."""
        return Embedding(self.cls, model=self.model)

    def cpu(self) -> Embedding:
        """Move to the CPU."""
        return self.to("cpu")

    def detach(self) -> Embedding:
        """Cut from the autograd graph."""
        return self._map(lambda tensor: tensor.detach())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Embedding:
        changed: dict[str, Any] = {}
        for name, tensor in _tensors(self).items():
            changed[name] = change(tensor)
        return replace(self, **changed)

    def finite(self) -> Tensor:
        """Which images (B,) have only finite features, neither NaN nor infinity."""
        return finite_rows(self.cls, self.patches, self.weights)

    def check_finite(self, names: Sequence[str], dtype: torch.dtype) -> None:
        """Refuse features that are not finite: NonFiniteError, with the names of the images and the model's dtype."""
        rows = []
        for row, is_finite in enumerate(self.finite().tolist()):
            if not is_finite:
                rows.append(row)
        if rows:
            bad_names = shown([names[row] for row in rows])
            raise NonFiniteError(f"{bad_names}: {reason(dtype)}", rows)

    def check_maker(self, model_id: str) -> None:
        """Refuse an Embedding of another model than the one with this `Embedder.model_id`: ValueError."""
        if not same_model(self.model, model_id):
            raise ValueError(
                f"the embedding was made by {self.model}, this metric is {model_id}: embed its images again"
            )

    def save(self, path: StrPath, metadata: Mapping[str, str] | None = None) -> None:
        """Write to a safetensors file; `metadata` (strings) is kept with the tensors; OutputError if it fails."""
        with writing(path):
            Path(path).write_bytes(serialized(self, metadata))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Embedding:
        """An Embedding of the tensors and the metadata in a file that `save` wrote."""
        grid = None
        if header.get("grid"):
            rows, columns = header["grid"].split("x")
            grid = (int(rows), int(columns))
        return cls(
            cls=tensors["cls"],
            patches=tensors.get("patches"),
            grid=grid,
            weights=tensors.get("weights"),
            model=header.get("model", ""),
        )


def serialized(embedding: Embedding, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with an Embedding, and strings to keep with it."""
    from safetensors.torch import save

    grid = ""
    if embedding.grid is not None:
        rows, columns = embedding.grid
        grid = f"{rows}x{columns}"
    header = {**(metadata or {}), "format": _FORMAT, "grid": grid, "model": embedding.model}
    on_cpu = embedding.detach().cpu()
    tensors = {name: tensor.contiguous() for name, tensor in _tensors(on_cpu).items()}
    data: bytes = save(tensors, header)
    return data


def _tensors(embedding: Embedding) -> dict[str, Tensor]:
    """The tensors of an Embedding that are there, by their fields' names."""
    tensors = {"cls": embedding.cls, "patches": embedding.patches, "weights": embedding.weights}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def same_model(a: str, b: str) -> bool:
    """Whether two values of `Embedding.model` name the same model; an unknown one ("") matches any."""
    return not a or not b or a == b


def concatenate(embeddings: Sequence[Embedding]) -> Embedding:
    """Join embeddings of one model along the batch.

    Where only some have subject weights, the others get uniform ones.

    Raises:
        ValueError: if the list is empty, or models, grids or the presence of patches differ.
    """
    if not embeddings:
        raise ValueError("nothing to concatenate: the list of embeddings is empty")
    head = embeddings[0]
    for embedding in embeddings:
        if _kind(embedding) != _kind(head):
            raise ValueError(
                f"embeddings differ in model or patch grid: {head.model or 'unknown'} {head.grid} and "
                f"{embedding.model or 'unknown'} {embedding.grid}"
            )
    import torch

    cls = torch.cat([embedding.cls for embedding in embeddings])
    if head.patches is None:
        return replace(head, cls=cls)

    patches: list[Any] = [embedding.patches for embedding in embeddings]
    weights: Tensor | None = None
    if any(embedding.weights is not None for embedding in embeddings):
        image_weights = []
        for embedding, tokens in zip(embeddings, patches, strict=True):
            uniform = tokens.new_ones(tokens.shape[:2])
            image_weights.append(uniform if embedding.weights is None else embedding.weights)
        weights = torch.cat(image_weights)
    return replace(head, cls=cls, patches=torch.cat(patches), weights=weights)


def _kind(embedding: Embedding) -> tuple[Any, ...]:
    """What embeddings must have in common to be joined."""
    return embedding.model, embedding.grid, embedding.patches is None
