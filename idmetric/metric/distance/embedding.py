"""Embedding: features of a batch of images, kept so that each image is embedded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from idmetric.metric.distance.finite import NonFiniteError, finite_rows, reason, shown
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
        batch = self.cls.shape[0]
        if self.patches is None:
            if self.grid is not None or self.weights is not None:
                raise ValueError("Embedding.grid and Embedding.weights need patches")
            return
        if self.patches.ndim != 3 or self.patches.shape[0] != batch:
            raise ValueError(f"Embedding.patches must have shape ({batch}, P, D), got {tuple(self.patches.shape)}")
        tokens = self.patches.shape[1]
        if self.grid is not None and self.grid[0] * self.grid[1] != tokens:
            raise ValueError(f"Embedding.grid {self.grid} does not hold {tokens} patches")
        if self.weights is not None and self.weights.shape != (batch, tokens):
            raise ValueError(f"Embedding.weights must have shape ({batch}, {tokens}), got {tuple(self.weights.shape)}")

    def __len__(self) -> int:
        return self.cls.shape[0]

    def __repr__(self) -> str:
        """One line: shapes instead of values."""
        shapes = f"cls {tuple(self.cls.shape)}"
        if self.patches is not None:
            shapes += f", patches {tuple(self.patches.shape)}{' weighted' * (self.weights is not None)}"
        kind = f"{str(self.cls.dtype).removeprefix('torch.')} on {self.cls.device}"
        return f"Embedding({len(self)} image{'s' * (len(self) != 1)}, {shapes}, {kind}, model={self.model!r})"

    @overload
    def __getitem__(self, index: str) -> Tensor: ...

    @overload
    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Embedding: ...

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor | str) -> Embedding | Tensor:
        """Select images; an integer gives an Embedding of one image.

        "cls" and "patch" give the tensors (B, D) and (B, P, D') under the keys of the dict that the ID-Sim release's
        `embed` returns.
        """
        if isinstance(index, str):
            tensor = {"cls": self.cls, "patch": self.patches}.get(index)
            if tensor is None:
                missing = "it was made without patches: embed with patches=True" if index == "patch" else "no such key"
                raise KeyError(f"{index!r}: {missing}; an Embedding has ['cls'] = .cls and ['patch'] = .patches")
            return tensor
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"image {index} of an Embedding of {len(self)}")
            picked: Any = slice(index % len(self), index % len(self) + 1)
        else:
            picked = index if isinstance(index, slice) or is_tensor(index) else np.asarray(index, dtype=np.int64)
        return self._map(lambda tensor: tensor[picked.to(tensor.device) if is_tensor(picked) else picked])

    def __iter__(self) -> Iterator[Embedding]:
        return (self[i] for i in range(len(self)))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Embedding:
        """Move to a device or a floating dtype."""
        return self._map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def cpu(self) -> Embedding:
        """Move to the CPU."""
        return self.to("cpu")

    def detach(self) -> Embedding:
        """Cut from the autograd graph."""
        return self._map(lambda tensor: tensor.detach())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Embedding:
        return replace(
            self,
            cls=change(self.cls),
            patches=None if self.patches is None else change(self.patches),
            weights=None if self.weights is None else change(self.weights),
        )

    def finite(self) -> Tensor:
        """Which images (B,) have only finite features, neither NaN nor infinity."""
        return finite_rows(self.cls, self.patches, self.weights)

    def check_finite(self, names: Sequence[str], dtype: torch.dtype) -> None:
        """Refuse features that are not finite: NonFiniteError, with the names of the images and the model's dtype."""
        rows = np.flatnonzero(~np.asarray(self.finite().tolist())).tolist()
        if rows:
            raise NonFiniteError(f"{shown([names[k] for k in rows])}: {reason(dtype)}", rows, self)

    def check_maker(self, model_id: str) -> None:
        """Refuse an Embedding of another model than the one with this `Embedder.model_id`: ValueError."""
        if not same_model(self.model, model_id):
            raise ValueError(
                f"the embedding was made by {self.model}, this metric is {model_id}: embed its images again"
            )

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write to a safetensors file; `metadata` (strings) is kept with the tensors; OutputError if it fails."""
        with writing(path):
            Path(path).write_bytes(serialized(self, metadata))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Embedding:
        """An Embedding of the tensors and the metadata in a file that `save` wrote."""
        rows, _, columns = header.get("grid", "").partition("x")
        return cls(
            cls=tensors["cls"],
            patches=tensors.get("patches"),
            grid=(int(rows), int(columns)) if rows else None,
            weights=tensors.get("weights"),
            model=header.get("model", ""),
        )


def serialized(embedding: Embedding, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with an Embedding, and strings to keep with it."""
    from safetensors.torch import save

    tensors = {"cls": embedding.cls, "patches": embedding.patches, "weights": embedding.weights}
    grid = "" if embedding.grid is None else f"{embedding.grid[0]}x{embedding.grid[1]}"
    header = {**(metadata or {}), "format": _FORMAT, "grid": grid, "model": embedding.model}
    data: bytes = save({k: v.detach().cpu().contiguous() for k, v in tensors.items() if v is not None}, header)
    return data


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
    first = embeddings[0]
    for other in embeddings[1:]:
        alike = same_model(other.model, first.model) and bool(other.model) == bool(first.model)
        if not alike or (other.grid, other.patches is None) != (first.grid, first.patches is None):
            raise ValueError(
                f"embeddings differ in model or patch grid: {first.model or 'unknown'} {first.grid} and "
                f"{other.model or 'unknown'} {other.grid}"
            )
    import torch

    patches = [e.patches for e in embeddings if e.patches is not None]
    weights = None
    if any(e.weights is not None for e in embeddings):
        pairs = zip(embeddings, patches, strict=True)
        weights = torch.cat([x.new_ones(x.shape[:2]) if e.weights is None else e.weights for e, x in pairs])
    return replace(
        first,
        cls=torch.cat([e.cls for e in embeddings]),
        patches=torch.cat(patches) if patches else None,
        weights=weights,
    )
