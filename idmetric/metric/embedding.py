"""The features of a batch of images, kept so that each image is embedded once, and checks of their numbers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.errors import NonFiniteError, RequestError
from idmetric.metric.files import StrPath, first_few, parse_json, replacing, save_sealed, seal_problem
from idmetric.metric.paths import is_embedding_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FORMAT = "idmetric-references/1"


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """The global and local features of B images.

    Args:
        cls: global feature of each image, shape (B, D).
        patches: local features, shape (B, P, D'), in row-major order of `grid`; None when they were not asked for.
        grid: rows and columns of the patch grid, P = rows * columns; None without patches.
        weights: how much each patch belongs to the subject, shape (B, P), values >= 0, each row with a positive
            sum; None means every patch counts the same. A subject mask sets them.
        model: which one made it (`Embedder.model_id`): two are never compared; empty when unknown, then not checked.
        names: of the images, such as their paths; None when unknown.

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
        batch = self.cls.shape[0]  # not len(), by which torch.export would fix the batch size
        if self.names is not None and len(self.names) != batch:
            raise ValueError(f"Embedding.names must name {batch} images, got {len(self.names)}")
        if self.patches is None:
            return

        shape = tuple(self.patches.shape)
        grid = self.grid
        tokens = shape[1] if grid is None else math.prod(grid)
        if len(shape) != 3 or shape[:2] != (batch, tokens):
            raise ValueError(f"Embedding.patches must have shape {(batch, tokens)} and channels, got {shape}")
        if self.weights is not None and self.weights.shape != (batch, tokens):
            raise ValueError(f"Embedding.weights must have shape {(batch, tokens)}, got {tuple(self.weights.shape)}")

    def __len__(self) -> int:
        return self.cls.shape[0]

    def __repr__(self) -> str:
        shapes = []
        for name, tensor in self._tensors().items():
            shapes.append(f"{name} {tuple(tensor.shape)}")
        kind = f"{self.cls.dtype} on {self.cls.device}"
        return f"Embedding({', '.join(shapes)}, {kind}, model={self.model!r})"

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Embedding:
        """Select images; an integer gives an Embedding of one image."""
        import torch

        if isinstance(index, int):
            index = [range(len(self))[index]]
        if not isinstance(index, slice):
            index = torch.as_tensor(index).cpu()
        rows = torch.arange(len(self))[index]
        names = None if self.names is None else tuple(self.names[row] for row in rows.tolist())
        return replace(self._map(lambda tensor: tensor[rows.to(tensor.device)], names=None), names=names)

    def __iter__(self) -> Iterator[Embedding]:
        return map(self.__getitem__, range(len(self)))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Embedding:
        """Move to a device or a floating dtype."""
        return self._map(lambda tensor: tensor.to(device, dtype))

    def cpu(self) -> Embedding:
        """Move to the CPU."""
        return self.to("cpu")

    def detach(self) -> Embedding:
        """Cut from the autograd graph."""
        return self._map(lambda tensor: tensor.detach())

    def without_patches(self) -> Embedding:
        """The same global features alone."""
        return replace(self, patches=None, grid=None, weights=None)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"cls": self.cls, "patches": self.patches, "weights": self.weights}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def _map(self, change: Callable[[Tensor], Tensor], **changes: Any) -> Embedding:
        tensors: dict[str, Any] = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **tensors, **changes)

    # Checks

    def finite(self) -> Tensor:
        """Which images (B,) have only finite features, neither NaN nor infinity."""
        import torch

        of_tensors = []
        for tensor in self._tensors().values():
            of_tensors.append(tensor.detach().isfinite().flatten(1).all(1))
        return torch.stack(of_tensors).all(0)

    def check_finite(self, names: Sequence[str], dtype: torch.dtype) -> None:
        """Refuse features that are not finite: NonFiniteError, with the names of the images and the model's dtype."""
        rows = (~self.finite()).nonzero().flatten().tolist()
        if rows:
            bad_names = shown([names[row] for row in rows])
            raise NonFiniteError(f"{bad_names}: {reason(dtype)}", rows)

    def check_maker(self, model_id: str, patches: bool = False) -> None:
        """Refuse an Embedding of another model than the one with this `Embedder.model_id`: RequestError.

        Args:
            patches: also refuse one without patch tokens.
        """
        if not same_model(self.model, model_id):
            problem = f"the embedding was made by {self.model}, this metric is {model_id}"
            raise RequestError(f"{problem}: embed its images again")
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
        header = {
            "format": _FORMAT,
            "model": self.model,
            "grid": json.dumps(self.grid),
            "names": json.dumps(self.names),
        }
        on_cpu = self.detach().cpu()
        contiguous = on_cpu._map(lambda tensor: tensor.contiguous())
        with replacing(Path(path)) as temporary:
            save_sealed(contiguous._tensors(), temporary, header)

    @classmethod
    def load(cls, path: StrPath) -> Embedding:
        """Read a file that `save` wrote, to the CPU.

        Raises:
            RequestError: for a file that is missing, damaged or of another kind; the message names it.
        """
        from safetensors import SafetensorError, safe_open

        shown_path = os.fspath(path)
        try:
            problem = seal_problem(Path(path))
            if not problem:
                with safe_open(shown_path, framework="pt") as file:
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
                    return _of_file(tensors, file.metadata())
        except OSError as error:
            raise RequestError(f"cannot read the embedding {shown_path}: {error.strerror or error}") from error
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        raise RequestError(f"{shown_path} is not an intact embedding ({problem}): embed its images and save it again")


def _of_file(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Embedding:
    """An Embedding of the tensors and the metadata in a file; errors of Python for damaged ones."""
    names = parse_json(header["names"])
    grid = parse_json(header["grid"])
    embedding = Embedding(
        **tensors,
        grid=None if grid is None else tuple(grid),
        model=header["model"],
        names=None if names is None else tuple(names),
    )
    if header["format"] != _FORMAT or not embedding.model or not embedding.finite().all():
        raise ValueError("Embedding.save did not write it")
    return embedding


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


def same_model(a: str, b: str) -> bool:
    """Whether two values of `Embedding.model` name the same model; an unknown one ("") matches any."""
    return not a or not b or a == b


def concatenate(embeddings: Sequence[Embedding]) -> Embedding:
    """Join embeddings of one model along the batch.

    Where only some have subject weights, the others get uniform ones; where some have no names, none has.

    Raises:
        ValueError: if the list is empty, or models, grids or the presence of patches differ.
    """
    import torch

    if not embeddings:
        raise ValueError("nothing to concatenate: the list of embeddings is empty")
    head = embeddings[0]
    has_weights = any(part.weights is not None for part in embeddings)
    tensors: dict[str, list[Tensor]] = {}
    names: tuple[str, ...] | None = ()
    for part in embeddings:
        if (part.model, part.grid, part.patches is None) != (head.model, head.grid, head.patches is None):
            raise ValueError(f"embeddings differ in model or patch grid: {head} and {part}")
        if has_weights and part.weights is None and part.patches is not None:
            uniform = part.patches.new_ones(part.patches.shape[:2])
            part = replace(part, weights=uniform)
        for name, tensor in part._tensors().items():
            tensors.setdefault(name, []).append(tensor)
        names = None if names is None or part.names is None else names + part.names

    joined: dict[str, Any] = {name: torch.cat(parts) for name, parts in tensors.items()}
    return replace(head, **joined, names=names)


# Numbers that are not finite are refused where they enter: NaN would scramble a ranking, as it compares false with all


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


def check_distances(distances: Tensor, dtype: torch.dtype | None = None, names: Sequence[str] | None = None) -> None:
    """Refuse distances (B, ...) that are not finite: NonFiniteError, with the images' names (default: numbers)."""
    if is_finite(distances):
        return
    is_bad = ~distances.detach().isfinite()
    is_bad_row = is_bad.reshape(len(is_bad), -1).any(1)
    rows = is_bad_row.nonzero().flatten().tolist()
    labels: Sequence[object] = names or range(len(is_bad))
    bad_names = shown([str(labels[row]) for row in rows])
    raise NonFiniteError(f"the distances of {bad_names} are not finite (NaN or infinite): {_fix(dtype)}", rows)


def checked_distances(distances: Tensor, dtype: torch.dtype) -> Tensor:
    """The distances, checked unless they are part of a graph: there a check would wait for the device."""
    import torch

    if not distances.requires_grad and not torch.compiler.is_compiling():
        check_distances(distances, dtype)
    return distances


def reason(dtype: torch.dtype) -> str:
    """Why an image with such an embedding cannot be used, and how to fix it."""
    return f"its embedding in {str(dtype).removeprefix('torch.')} is not finite (NaN or infinite): {_fix(dtype)}"


def _fix(dtype: torch.dtype | None) -> str:
    if str(dtype) == "torch.float16":
        return "open the model in float32 or bfloat16 (--dtype float32, dtype=torch.float32), which do not overflow"
    return "open another checkpoint, as these weights are damaged or diverged"


def shown(names: Sequence[str]) -> str:
    """A list of names, cut to the first few."""
    return ", ".join(first_few(names, 3))
