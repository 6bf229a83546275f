"""Numbers that are not finite (NaN, infinity) are refused where they enter: in weights, embeddings and distances.

They would otherwise scramble a ranking silently, since NaN compares false with everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from idmetric.metric.files.typed import first_few

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
