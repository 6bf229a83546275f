"""Embedding: features of a batch of images, kept so that each image is embedded once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from idmetric.distance.finite import NonFiniteError, finite_rows, reason, shown
from idmetric.images.kinds import is_tensor
from idmetric.io.output import writing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FORMAT = "idmetric-embedding/1"


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """The global and local features of B images: tensors, or NumPy arrays from an `OnnxModel` (see `tensors`).

    Args:
        cls: global feature of each image, shape (B, D).
        patches: local features, shape (B, P, D'), in row-major order of `grid`; None when they were not asked for.
        grid: rows and columns of the patch grid, P = rows * columns; None without patches.
        weights: how much each patch belongs to the subject, shape (B, P), values >= 0, each row with a positive
            sum; None means every patch counts the same. A subject mask sets them.
        model: which model made it (`Embedder.model_id`); embeddings of two models are never compared. Empty when
            unknown, and then not checked.
        names: of the images, for the reader alone; `Embedder.embed` sets the paths, empty for an image without one.

    Raises:
        ValueError: if the shapes do not fit together.
    """

    cls: Tensor
    patches: Tensor | None = None
    grid: tuple[int, int] | None = None
    weights: Tensor | None = None
    model: str = ""
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.cls.ndim != 2:
            raise ValueError(f"Embedding.cls must have shape (B, D), got {tuple(self.cls.shape)}")
        batch = self.cls.shape[0]
        if self.names is not None and len(self.names) != batch:
            raise ValueError(f"Embedding.names holds {len(self.names)} names for {batch} images")
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
        """One line: shapes instead of values, and the first names."""
        parts = [f"{len(self)} image{'s' * (len(self) != 1)}", f"cls {tuple(self.cls.shape)}"]
        if self.patches is not None:
            parts.append(f"patches {tuple(self.patches.shape)}{' weighted' * (self.weights is not None)}")
        parts += [
            f"{str(self.cls.dtype).removeprefix('torch.')} on {getattr(self.cls, 'device', 'cpu')}",
            f"model={self.model!r}",
        ]
        if self.names is not None:
            parts.append(f"names=[{', '.join(map(repr, self.names[:3]))}{', ...' * (len(self) > 3)}]")
        return f"Embedding({', '.join(parts)})"

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
            index = index % len(self)
            index = slice(index, index + 1)
        elif self._on_numpy and not isinstance(index, slice):
            index = np.asarray(index, dtype=np.int64)  # type: ignore[assignment]  # indexes an array
        elif not isinstance(index, slice) and not is_tensor(index):
            import torch

            index = torch.as_tensor(index, dtype=torch.long)
        picked = index
        found = replace(self, names=None)._map(
            lambda tensor: tensor[picked.to(tensor.device) if is_tensor(picked) else picked]
        )
        if self.names is None:
            return found
        if isinstance(picked, slice):
            return replace(found, names=self.names[picked])
        chosen = np.arange(len(self))[np.asarray(picked.cpu() if is_tensor(picked) else picked)]
        return replace(found, names=tuple(self.names[i] for i in chosen.tolist()))

    def __iter__(self) -> Iterator[Embedding]:
        return (self[i] for i in range(len(self)))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Embedding:
        """Move to a device or a floating dtype; arrays stay where they are."""
        if self._on_numpy:
            return self
        return self._map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def cpu(self) -> Embedding:
        """Move to the CPU."""
        return self.to("cpu")

    def detach(self) -> Embedding:
        """Cut from the autograd graph."""
        if self._on_numpy:
            return self
        return self._map(lambda tensor: tensor.detach())

    def tensors(self) -> Embedding:
        """The same of tensors, on the CPU where it is of NumPy arrays; needs torch."""
        if not self._on_numpy:
            return self
        import torch

        return self._map(lambda array: torch.from_numpy(array))

    @property
    def _on_numpy(self) -> bool:
        return isinstance(self.cls, np.ndarray)

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
        """Refuse features that are not finite.

        Args:
            names: of the images, for the message. dtype: of the model.

        Raises:
            NonFiniteError: naming the images, the dtype and how to fix it.
        """
        rows = np.flatnonzero(~np.asarray(self.finite().tolist())).tolist()
        if rows:
            raise NonFiniteError(f"{shown([names[k] for k in rows])}: {reason(dtype)}", rows, self)

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write to a safetensors file; `metadata` (strings) is kept with the tensors.

        Raises:
            OutputError: if it cannot be written.
        """
        from safetensors.torch import save_file

        found = self.tensors()
        tensors = {"cls": found.cls, "patches": found.patches, "weights": found.weights}
        header = {**(metadata or {}), **self.header}
        with writing(path):
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items() if v is not None}, path, header)

    @property
    def header(self) -> dict[str, str]:
        """The metadata that `save` adds to a file."""
        grid = "" if self.grid is None else f"{self.grid[0]}x{self.grid[1]}"
        names = {} if self.names is None else {"names": json.dumps(self.names)}
        return {"format": _FORMAT, "grid": grid, "model": self.model, **names}

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Embedding:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file is not an Embedding's.
            NonFiniteError: if it holds NaN or infinity.
        """
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise FileNotFoundError(f"no embedding file at {os.fspath(path)!r}")
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                header = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ValueError(f"{os.fspath(path)!r} is not a readable safetensors file: {error}") from error
        if header.get("format") != _FORMAT or "cls" not in tensors:
            raise ValueError(f"{os.fspath(path)!r} holds no {_FORMAT} embedding; write it with Embedding.save")
        try:
            found = cls.of(tensors, header)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)!r} holds no embedding: {error}") from error
        if bad := (~found.finite()).nonzero().flatten().tolist():
            raise NonFiniteError(
                f"{os.fspath(path)!r} holds features of {len(bad)} images that are NaN or infinite (the first is image "
                f"{bad[0]}): embed them again, in float32", bad,
            )  # fmt: skip
        return found

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Embedding:
        """An Embedding of the tensors and the metadata in a file that `save` wrote.

        Raises:
            ValueError: if they do not form an Embedding.
        """
        rows, _, columns = header.get("grid", "").partition("x")
        if rows and not re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", header["grid"]):
            raise ValueError(f"its grid is {header['grid'][:40]!r}, not ROWSxCOLUMNS")
        try:
            names = json.loads(header["names"]) if "names" in header else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"its names are not JSON: {error}") from error
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("its names are not a list of strings")
        return cls(
            names=None if names is None else tuple(names),
            cls=tensors["cls"],
            patches=tensors.get("patches"),
            grid=(int(rows), int(columns)) if rows else None,
            weights=tensors.get("weights"),
            model=header.get("model", ""),
        )


def same_model(a: str, b: str) -> bool:
    """Whether two values of `Embedding.model` name the same model; an unknown one ("") matches any."""
    return not a or not b or a == b


def concatenate(embeddings: Sequence[Embedding]) -> Embedding:
    """Join embeddings of one model along the batch.

    Where only some have subject weights, the others get uniform ones; where only some have names, empty ones.

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
    join: Any = np.concatenate if isinstance(first.cls, np.ndarray) else _concatenated
    patches = [e.patches for e in embeddings if e.patches is not None]
    weighted = any(e.weights is not None for e in embeddings)
    names = [name for e in embeddings for name in (e.names or [""] * len(e))]
    return replace(
        first,
        cls=join([e.cls for e in embeddings]),
        patches=join(patches) if patches else None,
        weights=join([_weights(e) for e in embeddings]) if weighted else None,
        names=tuple(names) if any(e.names is not None for e in embeddings) else None,
    )


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.cat(list(parts))


def _weights(embedding: Embedding) -> Tensor:
    if embedding.weights is not None:
        return embedding.weights
    assert embedding.patches is not None  # weights exist somewhere, hence patches everywhere
    return embedding.patches.new_ones(embedding.patches.shape[:2])
