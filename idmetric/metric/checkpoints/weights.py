"""The gate of all weights: tensors of safetensors and `.pth` files, and models filled with exactly these.

Whatever fills a model is stored as floats, fits the model in names and shapes, and is finite, both as stored and as
loaded. No code of a file is run. All functions raise CheckpointError, which names the file and the tensors.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.torch_version import TorchVersion

from idmetric.metric.embedding import is_finite
from idmetric.metric.errors import CheckpointError, check_file, understanding
from idmetric.metric.files import StrPath

SCALE = ".int8_scale"  # behind the name of a tensor

# the first torch whose weights_only runs no code of a file: CVE-2025-32434 before 2.6, CVE-2026-24747 before 2.10
SAFE_TORCH = "2.10"

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_NAMES = ("float32", "bfloat16", "float16", "float64")  # of types in which models can be opened
_TABLE = re.compile(r"(.*\.)?(num_batches_tracked|[^.]*_(ids|idxs?|index))")  # names of whole numbers, no weights


# Reading


def read_finite(path: StrPath, *, packed: bool = False) -> dict[str, Tensor]:
    """All tensors of a file of weights, safetensors or `.pth`; each is read, to check that it is finite.

    Args:
        packed: tensors may be `unpacked`, as in this package's own model folders.
    """
    tensors = read_mapped(path) if Path(path).suffix == ".safetensors" else read_pickled(path)
    if packed:
        tensors = unpacked(tensors)
    check_types(tensors, path)
    check_finite(tensors, path)
    return tensors


def read_tensors(path: StrPath) -> dict[str, Tensor]:
    """All tensors of a safetensors file, mapped: their values are not read, so not checked to be finite."""
    tensors = read_mapped(path)
    check_types(tensors, path)
    return tensors


def read_mapped(path: StrPath) -> dict[str, Tensor]:
    """All tensors of a safetensors file, mapped, of any type: for callers that `check_types` later."""
    check_file(path)
    with understanding(path):
        with open(path, "rb") as file:  # whose errors safetensors would call a missing file
            if file.read(30).startswith(b"version https://git-lfs"):
                raise ValueError("it is the pointer of Git LFS, not the file: run `git lfs pull` in its folder")
        return dict(load_file(path))


def read_pickled(path: StrPath) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save(state_dict, path)` wrote, on the CPU; no code of the file is run.

    Raises:
        CheckpointError: with a torch before `SAFE_TORCH`, or if the file holds anything else.
    """
    check_file(path)
    with understanding(path):
        if TorchVersion(torch.__version__) < SAFE_TORCH:
            raise CheckpointError(
                f"torch {torch.__version__} may run code of a .pth or .bin file: convert it to safetensors "
                "(safetensors.torch.save_file), or upgrade: pip install 'torch>=2.10'"
            )
        try:
            with open(path, "rb") as file:  # of a path, torch goes by the ending
                tensors = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:  # torch's own message advises to run the file's code
            tensors = None
        is_table = isinstance(tensors, dict) and all(isinstance(key, str) for key in tensors)
        if not is_table or not all(_is_plain(value) for value in tensors.values()):
            raise CheckpointError("it does not hold a table of tensors alone: torch.save(model.state_dict(), path)")
    return dict(tensors)


def _is_plain(value: object) -> bool:
    """Whether this is a tensor with values, neither sparse nor on torch's device "meta"."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta


def unpacked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with those of one byte a value in float32: int8, times the scale of each output.

    The scale of `name` is the tensor `name` + `SCALE`. One that does not fit stays, and so is refused later.
    """
    tensors = dict(state)
    for scale_name, scale in state.items():
        name = scale_name.removesuffix(SCALE)
        value = state.get(name)
        if value is None or value.dtype is not torch.int8 or not scale.is_floating_point():
            continue
        if value.ndim > 0 and scale.shape == value.shape[:1]:
            outputs = [-1] + [1] * (value.ndim - 1)
            tensors[name] = value.float() * scale.float().view(outputs)
            del tensors[scale_name]
    return tensors


def renamed(tensors: Mapping[str, Tensor], new_name: Callable[[str], str]) -> dict[str, Tensor]:
    """The tensors under new names; CheckpointError if two of them get one name, as either might be the right one."""
    old_names: dict[str, str] = {}
    result = {}
    for key, value in tensors.items():
        name = new_name(key)
        if name in result:
            raise CheckpointError(
                f"the file holds one tensor by two names, {old_names[name]!r} and {key!r}: save it again"
            )
        old_names[name] = key
        result[name] = value
    return result


# Checks


def check_types(tensors: Mapping[str, Tensor], name: StrPath) -> None:
    """Refuse weights that are not stored as floats, before renaming or merging casts them.

    Whole numbers (int64) are only counts of training steps and tables of positions, which are known by their names.

    Args:
        name: where they come from, for the message; so in all checks.
    """
    faults = []
    for key, tensor in tensors.items():
        types = (torch.int64,) if is_table(key) else _FLOATS
        if tensor.dtype not in types:
            faults.append(f"{key} {tensor.dtype}")
    refuse({"wrong type": faults}, name)


def is_table(key: str) -> bool:
    """Whether a tensor of that name holds whole numbers: counts of training steps, or a table of positions."""
    return bool(_TABLE.fullmatch(key))


def check_finite(tensors: Mapping[str, Tensor], name: StrPath) -> None:
    """Refuse NaN and infinite weights, which make scores NaN. Reads all tensors: 0.2 s for a gigabyte.

    A tensor that was cast may be finite as stored and exceed what its type can hold.
    """
    faults: dict[str, list[str]] = {}
    for key, tensor in tensors.items():
        if not is_finite(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            faults.setdefault(f"not finite in {dtype}", []).append(key)
    refuse(faults, name)


def check_state(module: torch.nn.Module, state: Mapping[str, Tensor], name: StrPath) -> None:
    """Check that tensors are exactly a module's, by name and shape."""
    parameters = module.state_dict()
    wrong_shape = []
    for key in sorted(parameters.keys() & state.keys()):
        if state[key].shape != parameters[key].shape:
            wrong_shape.append(f"{key} {tuple(state[key].shape)} instead of {tuple(parameters[key].shape)}")
    faults = {
        "missing": sorted(parameters.keys() - state.keys()),
        "unexpected": sorted(state.keys() - parameters.keys()),
        "wrong shape": wrong_shape,
    }
    refuse(faults, name)


def refuse(faults: Mapping[str, list[str]], name: StrPath) -> None:
    """Raise a CheckpointError if there are faults, each with its tensors, of weights from `name`."""
    messages = []
    for fault, tensors in faults.items():
        if tensors:
            shown = [tensor[:200] for tensor in tensors[:5]]
            messages.append(f"{fault} {', '.join(shown)}" + " ..." * (len(tensors) > 5))
    if messages:
        raise CheckpointError(f"weights of {os.fspath(name)!r} cannot be used: {'; '.join(messages)}")


# Filling


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A type of weights by its name, "bfloat16" as `torch.bfloat16`; ValueError for other texts."""
    if not isinstance(dtype, str):
        return dtype
    if dtype not in _NAMES:
        raise ValueError(f"unknown dtype {dtype!r}: choose {', '.join(_NAMES)}")
    return getattr(torch, dtype)  # type: ignore[no-any-return]


def load_state(
    module: torch.nn.Module,
    state: dict[str, Tensor],
    name: StrPath,
    dtype: torch.dtype | str | None = None,
) -> None:
    """Load weights strictly into a module, as `dtype` or in the types of its own; `state` is emptied on the way.

    Each tensor is copied out of its file's mapping: aligned, and safe from changes of the file.
    """
    check_state(module, state, name)
    chosen_dtype = dtype_of(dtype)
    for key, parameter in module.state_dict().items():
        new_dtype = parameter.dtype
        if chosen_dtype is not None and parameter.is_floating_point():
            new_dtype = chosen_dtype
        state[key] = state[key].to(new_dtype, copy=True)
        check_finite({key: state[key]}, name)
    module.load_state_dict(state, assign=True)
    state.clear()
