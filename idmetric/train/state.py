"""The state of a training run on disk: everything that a resumed run needs for the same result.

    out/checkpoints/step-000100/state.safetensors   trainable weights, buffers, the optimizer's tensors
    out/checkpoints/step-000100/state.json          the step, the optimizer's numbers, the loss scale, the best step

A checkpoint is written to a hidden folder, flushed, and renamed: it appears atomically. Random numbers
are not stored, because they follow from seed and step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from idmetric.io import json_file
from idmetric.io.output import replacing

FORMAT = 1
FOLDER = "checkpoints"
_TENSORS, _RECORD = "state.safetensors", "state.json"


class TrainError(RuntimeError):
    """Training cannot start or continue; the message says why, and how to fix it."""


def trained(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that training changes: parameters that require grad, and buffers of the state dict."""
    parameters = module.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in parameters if not parameter.requires_grad}
    return ((name, value) for name, value in module.state_dict(keep_vars=True).items() if name not in frozen)


def save(
    out: Path,
    step: int,
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    more: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of a step; an unfinished one leaves nothing behind.

    Args:
        step: optimizer steps done.
        more: further JSON values.

    Raises:
        TrainError: if it cannot be written, e.g. on a full disk; earlier checkpoints stay as they are.
    """
    tensors = {f"{part}/{name}": value for part, module in modules.items() for name, value in trained(module)}
    whole = optimizer.state_dict()
    numbers: dict[str, dict[str, Any]] = {}
    for index, state in whole["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = value
    groups = [{k: v for k, v in group.items() if k != "params"} for group in whole["param_groups"]]
    own = {"format": FORMAT, "step": step, "optimizer": {"state": numbers, "groups": groups}}
    record = {**own, "scaler": scaler.state_dict(), **more}

    target = out / FOLDER / f"step-{step:06d}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as hidden:
            temporary = Path(hidden, target.name)
            temporary.mkdir()
            save_file({name: copied(value) for name, value in tensors.items()}, temporary / _TENSORS)
            (temporary / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            for path in temporary.iterdir():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            if target.exists():
                _delete(target)
            temporary.rename(target)
    except (OSError, SafetensorError) as error:
        raise TrainError(
            f"cannot write the checkpoint {target}: {error}; earlier ones are intact: free space there, and run the "
            "same command again to resume"
        ) from error
    return target


def load(
    folder: Path,
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Restore exactly the state that `save` wrote.

    Raises:
        TrainError: if it cannot be read.
    """
    record, tensors = read_record(folder), _read_tensors(folder)
    if not {"optimizer", "scaler"} <= record.keys():
        raise _damaged(folder, ValueError("it does not hold the state of an optimizer"))
    load_weights(folder, modules)
    groups = optimizer.state_dict()["param_groups"]
    for group, values in zip(groups, record["optimizer"]["groups"], strict=True):
        group |= {k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in values.items()}
    states: dict[int, dict[str, Any]] = {int(k): dict(v) for k, v in record["optimizer"]["state"].items()}
    for key, value in _below(tensors, "optimizer").items():
        index, _, name = key.partition("/")
        states.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    _lay_out(optimizer)
    if scaler.is_enabled():
        scaler.load_state_dict(record["scaler"])


def load_weights(folder: Path, modules: Mapping[str, nn.Module]) -> None:
    """Restore the weights of a checkpoint without the optimizer's state, even if nothing requires grad any more."""
    tensors = _read_tensors(folder)
    with torch.no_grad():
        for part, module in modules.items():
            own = module.state_dict(keep_vars=True)
            for name, value in _below(tensors, part).items():
                own[name].copy_(value)


def folders(out: Path) -> dict[int, Path]:
    """Finished checkpoints by step, in order."""
    found = {}
    for path in (out / FOLDER).glob("step-*"):
        if (match := re.fullmatch(r"step-(\d{6,})", path.name)) and (path / _RECORD).is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def read_record(folder: Path) -> dict[str, Any]:
    """Read the state.json of a checkpoint.

    Raises:
        TrainError: if it cannot be read.
    """
    try:
        return dict(json_file.read(folder / _RECORD))
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error


def prune(out: Path, keep: int, best: int | None) -> None:
    """Delete unfinished checkpoints, and all but the last `keep` (0 = all stay) and that of the best step."""
    for path in (out / FOLDER).glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)
    found = folders(out)
    for step in list(found)[:-keep] if keep else []:
        if step != best:
            _delete(found[step])


def replace_text(path: Path, text: str) -> None:
    """Write a text file atomically; OutputError if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def copied(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU, for safetensors, which refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(folder / _TENSORS))
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, error) from error


def _damaged(folder: Path, error: Exception) -> TrainError:
    return TrainError(f"{folder} cannot be read: {error}; delete this folder to resume from the one before")


def _delete(folder: Path) -> None:
    """Delete a checkpoint atomically: it is renamed first, so half of it never counts as a checkpoint."""
    hidden = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer's tensors the memory layout of their parameters (channels_last), as before the checkpoint."""
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _below(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {k.removeprefix(f"{part}/"): v for k, v in tensors.items() if k.startswith(f"{part}/")}
