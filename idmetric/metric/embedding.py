"""Numbers that are not finite (NaN, infinity) are refused where they enter: in weights, embeddings and distances.

They would otherwise scramble a ranking silently, since NaN compares false with everything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.metric.errors import RequestError
from idmetric.metric.files import (
    StrPath,
    first_few,
    parse_json,
    refuse_irregular,
    replacing,
    save_sealed,
    seal_problem,
)
from idmetric.metric.images import is_tensor
from idmetric.metric.paths import is_embedding_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class NonFiniteError(ValueError):
    """Embeddings or distances that are NaN or infinite; the message names the images and how to fix it.

    Attributes:
        rows: the images concerned, by their place in the batch.
    """

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = list(rows)


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite: one sum, without a copy; waits for the device."""
    import torch

    if not tensor.is_floating_point() or not tensor.numel():
        return True
    if tensor.element_size() == 1:  # PyTorch has no sums of float8
        tensor = tensor.float()
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    total = tensor.detach().sum(dtype=dtype)
    return bool(total.isfinite()) or bool(tensor.isfinite().all())  # a sum of large numbers may overflow


def finite_rows(*tensors: Tensor | None) -> Tensor:
    """Which rows (B,) are finite in all tensors (B, ...); None stands for a tensor that is not there."""
    import torch

    rows = []
    for tensor in tensors:
        if tensor is not None:
            values = tensor.detach().flatten(1)
            rows.append(values.isfinite().all(1))
    return torch.stack(rows).all(0)


def check_distances(distances: Tensor, dtype: torch.dtype | None = None, names: Sequence[str] | None = None) -> None:
    """Refuse distances (B, ...) that are not finite: NonFiniteError, with the images' names (default: numbers)."""
    if is_finite(distances):
        return
    is_bad = ~distances.detach().isfinite()
    is_bad_row = is_bad.reshape(len(is_bad), -1).any(1)
    rows = is_bad_row.nonzero().flatten().tolist()
    every_name = names or range(len(is_bad))
    names_of_rows = [str(every_name[row]) for row in rows]
    bad_names = shown(names_of_rows)
    raise NonFiniteError(f"the distances of {bad_names} are not finite (NaN or infinite): {_fix(dtype)}", rows)


def checked_distances(distances: Tensor, dtype: torch.dtype) -> Tensor:
    """The distances, checked unless they are part of a graph: there a check would wait for the device."""
    import torch

    if not distances.requires_grad and not torch.compiler.is_compiling():
        check_distances(distances, dtype)
    return distances


def reason(dtype: torch.dtype | str, by: str = "") -> str:
    """Why an image with such an embedding (by a model of that name) cannot be used, and how to fix it."""
    maker = f" by {by}" if by else ""
    dtype_name = str(dtype).removeprefix("torch.")
    return f"its embedding{maker} in {dtype_name} is not finite (NaN or infinite): {_fix(dtype)}"


def _fix(dtype: torch.dtype | str | None) -> str:
    if str(dtype).removeprefix("torch.") == "float16":
        return "open the model in float32 or bfloat16 (--dtype float32, dtype=torch.float32), which do not overflow"
    return "open another checkpoint, as these weights are damaged or diverged"


def shown(names: Sequence[str]) -> str:
    """A list of names, cut to the first few."""
    return ", ".join(first_few(names, 3))


# Embedding: features of a batch of images, kept so that each image is embedded once.

_FORMAT = "idmetric-embedding/1"
_FILE = "idmetric-references/1"  # of `Embedding.save`


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
        names: of the images, such as their paths, B; None when unknown.

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
        if self.names is not None and len(self.names) != len(self.cls):
            raise ValueError(f"Embedding.names must be of {len(self.cls)} images, got {len(self.names)}")
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

        names = self.names
        if names is not None:
            name_rows = rows.cpu().numpy() if is_tensor(rows) else rows
            names = tuple(np.array(names, dtype=object)[name_rows])
        return replace(self._map(select, names=None), names=names)

    def __iter__(self) -> Iterator[Embedding]:
        return (self[i] for i in range(len(self)))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Embedding:
        """Move to a device or a floating dtype."""
        return self._map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def without_patches(self) -> Embedding:
        """The same global features alone."""
        return Embedding(self.cls, model=self.model, names=self.names)

    def cpu(self) -> Embedding:
        """Move to the CPU."""
        return self.to("cpu")

    def detach(self) -> Embedding:
        """Cut from the autograd graph."""
        return self._map(lambda tensor: tensor.detach())

    def _map(self, change: Callable[[Tensor], Tensor], **changed: Any) -> Embedding:
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

    def check_maker(self, model_id: str, patches: bool = False) -> None:
        """Refuse an Embedding of another model than the one with this `Embedder.model_id`: RequestError.

        Args:
            patches: also refuse one without patch tokens.
        """
        if not same_model(self.model, model_id):
            raise RequestError(
                f"the embedding was made by {self.model}, this metric is {model_id}: embed its images again"
            )
        if patches and self.patches is None:
            raise RequestError("the embedding has no patches, which this distance compares: embed with patches=True")

    # Files

    def save(self, path: StrPath) -> None:
        """Write an .idm file (safetensors) with the model, the names and a digest of its bytes, atomically.

        Raises:
            RequestError: if the embedding does not name its model. OutputError: if the file cannot be written.
        """
        if not self.model:
            raise RequestError("the embedding does not name its model: set Embedding.model")
        header = {"format": _FILE, "model": self.model, "grid": _grid_text(self.grid), "names": json.dumps(self.names)}
        on_cpu = self.detach().cpu()
        tensors = {name: tensor.contiguous() for name, tensor in _tensors(on_cpu).items()}
        with replacing(Path(path)) as temporary:
            save_sealed(tensors, temporary, header)

    @classmethod
    def load(cls, path: StrPath) -> Embedding:
        """Read a file that `save` wrote, to the CPU.

        Raises:
            RequestError: for a file that is missing, damaged or of another kind; the message names it.
        """
        from safetensors import SafetensorError, safe_open

        shown = os.fspath(path)
        try:
            refuse_irregular(shown)
            with safe_open(shown, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            problem = seal_problem(Path(path)) if header.get("format") == _FILE else ""
            if header.get("format") == _FILE and not problem:
                return cls._of_file(tensors, header)
        except OSError as error:
            raise RequestError(f"cannot read the embedding {shown}: {error.strerror or error}") from error
        except (SafetensorError, KeyError, OverflowError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            raise RequestError(f"{shown} is a damaged embedding ({problem}): embed its images and save it again")
        raise RequestError(f"{shown} is not an embedding: Embedding.save writes them")

    @classmethod
    def _of_file(cls, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Embedding:
        """An Embedding of the tensors and the metadata in a file; errors of Python for damaged ones."""
        names = parse_json(header["names"])
        if names is not None:
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError("its names are not a list of texts")
            names = tuple(names)

        embedding = replace(cls.of(tensors, header), names=names)
        if not embedding.model:
            raise ValueError("it does not name its model")
        if not all(tensor.is_floating_point() and is_finite(tensor) for tensor in tensors.values()):
            raise ValueError("its numbers are not floating, or not finite")
        if not len(embedding) or not bool(embedding.cls.any(1).all()):
            raise ValueError("it has no images, or one of its features is zero")
        if embedding.weights is not None and bool((embedding.weights < 0).any()):
            raise ValueError("one of its weights is negative")
        return embedding

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

    grid = _grid_text(embedding.grid)
    header = {**(metadata or {}), "format": _FORMAT, "grid": grid, "model": embedding.model}
    on_cpu = embedding.detach().cpu()
    tensors = {name: tensor.contiguous() for name, tensor in _tensors(on_cpu).items()}
    data: bytes = save(tensors, header)
    return data


def _grid_text(grid: tuple[int, int] | None) -> str:
    return "" if grid is None else f"{grid[0]}x{grid[1]}"


def saved_embedding(references: Any) -> Embedding | None:
    """The Embedding that stands for references, read if it is an .idm file; None for images.

    Raises:
        RequestError: for a damaged file, or an Embedding among other references.
    """
    sources = references if isinstance(references, list | tuple) else [references]
    saved = [source for source in sources if isinstance(source, Embedding) or is_embedding_file(source)]
    if not saved:
        return None
    if len(sources) > 1:
        raise RequestError("an Embedding, or its file, stands for all references: give it alone, or give images")
    return saved[0] if isinstance(saved[0], Embedding) else Embedding.load(saved[0])


def _tensors(embedding: Embedding) -> dict[str, Tensor]:
    """The tensors of an Embedding that are there, by their fields' names."""
    tensors = {"cls": embedding.cls, "patches": embedding.patches, "weights": embedding.weights}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def same_model(a: str, b: str) -> bool:
    """Whether two values of `Embedding.model` name the same model; an unknown one ("") matches any."""
    return not a or not b or a == b


def concatenate(embeddings: Sequence[Embedding]) -> Embedding:
    """Join embeddings of one model along the batch.

    Where only some have subject weights, the others get uniform ones; where some have no names, none has.

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
    names: tuple[str, ...] | None = ()
    for embedding in embeddings:
        names = None if names is None or embedding.names is None else names + embedding.names
    if head.patches is None:
        return replace(head, cls=cls, names=names)

    patches: list[Any] = [embedding.patches for embedding in embeddings]
    weights: Tensor | None = None
    if any(embedding.weights is not None for embedding in embeddings):
        image_weights = []
        for embedding, tokens in zip(embeddings, patches, strict=True):
            uniform = tokens.new_ones(tokens.shape[:2])
            image_weights.append(uniform if embedding.weights is None else embedding.weights)
        weights = torch.cat(image_weights)
    return replace(head, cls=cls, patches=torch.cat(patches), weights=weights, names=names)


def _kind(embedding: Embedding) -> tuple[Any, ...]:
    """What embeddings must have in common to be joined."""
    return embedding.model, embedding.grid, embedding.patches is None
