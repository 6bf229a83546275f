"""The gate of all weights: tensors of safetensors files and of published `.pth` files, and models filled with them.

Whatever fills a model has passed here: it is stored as floats (`check_types`), fits the model exactly in names and
shapes (`check_state`, `pretrained.check_report`), and is finite as read and after every cast (`check_finite`,
`check_loaded`).

All functions raise CheckpointError, which names the file and the tensors.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.torch_version import TorchVersion

from idmetric.metric.embedding import is_finite
from idmetric.metric.errors import CheckpointError, check_file
from idmetric.metric.files import StrPath

SCALE = ".int8_scale"  # behind the name of a tensor

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_NAMES = ("float32", "bfloat16", "float16", "float64")  # of types in which models can be opened
_TABLES = re.compile(r"num_batches_tracked|.*_(ids|idxs?|index)")  # last parts of names: whole numbers, no weights


def read_tensors(path: StrPath) -> dict[str, Tensor]:
    """All tensors of a safetensors file, mapped: their values are not read, so not checked to be finite."""
    tensors = read_mapped(path)
    check_types(tensors, path)
    return tensors


def read_finite(path: StrPath, *, packed: bool = False) -> dict[str, Tensor]:
    """All tensors of a file of weights, safetensors or `.pth`; each is read, to check that it is finite.

    Args:
        packed: tensors may be `unpacked`, as in this package's own model folders.
    """
    if is_pickled(path):
        pass

        tensors = read_pickled(path)
    else:
        tensors = read_mapped(path)
    if packed:
        tensors = unpacked(tensors, path)
    check_types(tensors, path)
    check_finite(tensors, path)
    return tensors


def read_mapped(path: StrPath) -> dict[str, Tensor]:
    """All tensors of a safetensors file, mapped, of any type: for callers that `check_types` later."""
    check_file(path)
    try:
        Path(path).open("rb").close()  # safetensors calls a closed file missing
        return dict(load_file(path))
    except Exception as error:  # SafetensorError, OSError, and torch's for types that it lacks
        reason = str(error)
        if _begins(path, b"version https://git-lfs"):
            reason = (
                "it is the pointer of Git LFS, not the file: run `git lfs pull` in its folder, or download it again"
            )
        raise CheckpointError(f"cannot read weights {os.fspath(path)!r}: {reason}") from error


def unpacked(state: Mapping[str, Tensor], name: StrPath) -> dict[str, Tensor]:
    """Tensors of one byte a value in float32: int8, times the scale of each output, a tensor of the name + `SCALE`.

    Args:
        name: where they come from, for messages.

    Raises:
        CheckpointError: for a scale without its tensor, of a tensor that is not int8, or of another length.
    """
    tensors = {}
    faults = []
    for key, value in state.items():
        if key.endswith(SCALE):
            if key.removesuffix(SCALE) not in state:
                faults.append(f"{key[:80]} without its tensor")
            continue
        scale = state.get(key + SCALE)
        if scale is not None:
            is_int8 = value.dtype is torch.int8 and scale.dtype in _FLOATS
            if not is_int8 or value.ndim == 0 or scale.shape != value.shape[:1]:
                about_scale = f"{scale.dtype} {tuple(scale.shape)}"
                faults.append(f"{key[:80]}{SCALE} {about_scale} for {value.dtype} {tuple(value.shape)}")
                continue
            rest = [1] * (value.ndim - 1)
            value = value.float() * scale.float().view(-1, *rest)
        tensors[key] = value
    refuse({"wrong scale": faults}, name)
    return tensors


def is_pickled(path: StrPath) -> bool:
    """Whether a file begins as `torch.save` begins one, whatever its name."""
    check_file(path)  # to open a pipe would wait
    return _begins(path, b"PK\3\4", b"\x80\2")  # the second by torch before 1.6


def _begins(path: StrPath, *starts: bytes) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(64).startswith(starts)
    except OSError:
        return False  # whoever reads it names the reason


def check_types(tensors: Mapping[str, Tensor], name: StrPath) -> None:
    """Refuse weights that are not stored as floats, before renaming or merging casts them.

    Whole numbers (int64) are only counts of training steps and tables of positions, which are known by their names.

    Args:
        name: where they come from, for the message.
    """
    faults = []
    for key, tensor in tensors.items():
        types: tuple[torch.dtype, ...] = _FLOATS
        if is_table(key):
            types = (torch.int64,)
        if tensor.dtype not in types:
            faults.append(f"{key[:80]} {tensor.dtype}")
    refuse({"wrong type": faults}, name)


def check_finite(tensors: Mapping[str, Tensor], path: StrPath) -> None:
    """Refuse NaN and infinite weights, which make scores NaN. Reads all tensors: 0.2 s for a gigabyte.

    Args:
        path: where they come from, for the message.
    """
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise CheckpointError(
                f"{os.fspath(path)!r} holds damaged weights: {name[:80]} has values that are NaN or infinite; "
                "fetch or save the file again, or take the checkpoint before it if training diverged"
            )


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
    dtype = dtype_of(dtype)
    check_state(module, state, name)
    for key, parameter in module.state_dict().items():
        new_dtype = parameter.dtype
        if dtype is not None and parameter.is_floating_point():
            new_dtype = dtype
        stored = state[key]
        state[key] = stored.to(new_dtype, copy=True)
        check_loaded({key: state[key]}, {key: stored}, name)
    module.load_state_dict(state, assign=True)
    state.clear()


def check_loaded(loaded: Mapping[str, Tensor], stored: Mapping[str, Tensor], name: StrPath) -> None:
    """Refuse tensors that are not finite in the types in which they were loaded.

    Args:
        stored: the same in the types of their file, perhaps by other names.
        name: where they come from, for the message.
    """
    for key, tensor in loaded.items():
        if is_finite(tensor):
            continue
        check_finite(stored, name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        advice = "save it with smaller weights"
        if tensor.dtype is torch.float16:
            advice = "open it in float32 or bfloat16"
        raise CheckpointError(f"{key[:80]} of {os.fspath(name)!r} exceeds what {dtype} can hold: {advice}")


def check_state(module: torch.nn.Module, state: Mapping[str, Tensor], name: StrPath) -> None:
    """Check that tensors are exactly a module's, by name, shape and kind of number."""
    parameters = module.state_dict()
    faults: dict[str, list[str]] = {
        "missing": sorted(parameters.keys() - state.keys()),
        "unexpected": [key[:80] for key in sorted(state.keys() - parameters.keys())],
        "wrong shape": [],
        "wrong type": [],
    }
    for key in parameters.keys() & state.keys():
        tensor = state[key]
        parameter = parameters[key]
        if tensor.shape != parameter.shape:
            faults["wrong shape"].append(f"{key} {tuple(tensor.shape)} instead of {tuple(parameter.shape)}")
        types = _FLOATS if parameter.is_floating_point() else (parameter.dtype,)
        if tensor.dtype not in types:
            faults["wrong type"].append(f"{key} {tensor.dtype} instead of {parameter.dtype}")
    refuse(faults, name)


def is_table(key: str) -> bool:
    """Whether a tensor of that name holds whole numbers: counts of training steps, or a table of positions."""
    return bool(_TABLES.fullmatch(last_part(key)))


def last_part(key: str) -> str:
    """The name of a tensor in its module."""
    return key.rpartition(".")[2]


def refuse(faults: Mapping[str, list[str]], name: StrPath) -> None:
    """Raise a CheckpointError with the faults that have names of tensors, of weights from `name`."""
    messages = []
    for fault, keys in faults.items():
        if keys:
            messages.append(f"{fault} {', '.join(keys[:5])}" + " ..." * (len(keys) > 5))
    if messages:
        raise CheckpointError(f"weights of {os.fspath(name)!r} do not fit the model: {'; '.join(messages)}")


# Files of weights as `torch.save` writes them (`.pth`).

# the first torch whose weights_only runs no code of a file: CVE-2025-32434 before 2.6, CVE-2026-24747 before 2.10
SAFE_TORCH = "2.10"


def read_pickled(path: StrPath) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save(state_dict, path)` wrote, on the CPU; no code of the file is run.

    Raises:
        CheckpointError: with a torch before `SAFE_TORCH`, or if the file holds anything else.
    """
    if TorchVersion(torch.__version__) < SAFE_TORCH:
        raise CheckpointError(
            f"cannot read weights {os.fspath(path)!r}: torch {torch.__version__} may run code of a .pth or .bin file; "
            "convert the file to safetensors (safetensors.torch.save_file), or upgrade: pip install 'torch>=2.10'"
        )
    try:
        with open(path, "rb") as file:  # of a path, torch goes by the ending
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own message advises to run the file's code
        tensors = None
    except Exception as error:  # of many kinds, for damaged files
        raise CheckpointError(f"cannot read weights {os.fspath(path)!r}: {error}") from error

    is_table = isinstance(tensors, dict)
    if not is_table or not all(isinstance(key, str) and _has_values(value) for key, value in tensors.items()):
        raise CheckpointError(
            f"cannot read weights {os.fspath(path)!r}: it does not hold a table of tensors alone; write one by "
            "torch.save(model.state_dict(), path)"
        )
    return dict(tensors)


def _has_values(value: object) -> bool:
    """Whether this is a plain tensor, neither sparse nor one without memory (torch's device "meta")."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta
