"""Tensors of safetensors files and of published `.pth` files, and models that are filled with them.

All functions raise CheckpointError, which names the file and the tensors.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from idmetric.metric.checkpoints.errors import CheckpointError, check_file
from idmetric.metric.distance.finite import is_finite
from idmetric.metric.files import StrPath

SCALE = ".int8_scale"  # behind the name of a tensor


def read_tensors(path: StrPath) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    try:
        Path(path).open("rb").close()  # safetensors calls a closed file missing
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        reason = str(error)
        if _begins(path, b"version https://git-lfs"):
            reason = (
                "it is the pointer of Git LFS, not the file: run `git lfs pull` in its folder, or download it again"
            )
        raise CheckpointError(f"cannot read weights {os.fspath(path)!r}: {reason}") from error


def read_finite(path: StrPath) -> dict[str, Tensor]:
    """All tensors of a file of weights, safetensors or `.pth`; each is read, to check that it is finite."""
    tensors = read_pickled(path) if is_pickled(path) else read_tensors(path)
    check_finite(tensors, path)
    return unpacked(tensors)


def unpacked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of one byte a value in float32: int8, times the scale of each output, a tensor of the name + `SCALE`."""
    tensors = {}
    for name, value in state.items():
        if name.endswith(SCALE):
            continue
        scale = state.get(name + SCALE)
        if scale is not None:
            rest = [1] * (value.ndim - 1)
            value = value.float() * scale.view(-1, *rest)
        tensors[name] = value
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


def read_pickled(path: StrPath) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save(state_dict, path)` wrote, on the CPU; no code of the file is run."""
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


def load_state(
    module: torch.nn.Module,
    state: dict[str, Tensor],
    name: str,
    dtype: torch.dtype | None = None,
) -> None:
    """Load weights strictly into a module, as `dtype` or in the types of its own; `state` is emptied on the way.

    Each tensor is copied out of its file's mapping: aligned, and safe from changes of the file.
    """
    check_state(module, state, name)
    for key, parameter in module.state_dict().items():
        new_dtype = parameter.dtype
        if dtype is not None and parameter.is_floating_point():
            new_dtype = dtype
        old_dtype = state[key].dtype
        state[key] = state[key].to(new_dtype, copy=True)
        if new_dtype is torch.float16 and old_dtype is not new_dtype and not is_finite(state[key]):
            raise CheckpointError(f"{key} of {name!r} exceeds what float16 can hold: open it in float32 or bfloat16")
    module.load_state_dict(state, assign=True)
    state.clear()


def check_state(module: torch.nn.Module, state: Mapping[str, Tensor], name: str) -> None:
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
            fault = f"{key} {tuple(tensor.shape)} instead of {tuple(parameter.shape)}"
            faults["wrong shape"].append(fault)
        if tensor.is_floating_point() != parameter.is_floating_point():  # such as int8 without its scale
            faults["wrong type"].append(f"{key} {tensor.dtype} instead of {parameter.dtype}")
    _refuse(faults, name)


def check_report(report: Mapping[str, Any], name: str, unused: str | None = None) -> None:
    """Check that transformers found exactly a model's tensors in its files: the ones that it did not stay random.

    Args:
        report: from `from_pretrained(..., output_loading_info=True)`.
        unused: begins the names of tensors that may be missing.
    """
    missing = sorted(report["missing_keys"])
    if unused is not None:
        missing = [key for key in missing if not key.startswith(unused)]
    unexpected = [key[:80] for key in sorted(report["unexpected_keys"])]
    wrong_shapes = [str(fault) for fault in report["mismatched_keys"]]
    _refuse({"missing": missing, "unexpected": unexpected, "wrong shape": wrong_shapes}, name)


def _refuse(faults: Mapping[str, list[str]], name: str) -> None:
    messages = []
    for fault, keys in faults.items():
        if keys:
            messages.append(f"{fault} {', '.join(keys[:5])}" + " ..." * (len(keys) > 5))
    if messages:
        raise CheckpointError(f"weights of {name!r} do not fit the model: {'; '.join(messages)}")
