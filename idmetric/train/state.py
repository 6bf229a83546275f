"""The checkpoints of a training run: everything that a resumed run needs for the same result.

    out/checkpoints/step-000100.safetensors   trainable weights, buffers, the optimizer's tensors, and as metadata the
                                              loss scale, the best step so far and a digest of the file

A checkpoint is written atomically. Random numbers are not stored, because they follow from seed and step; nor are the
optimizer's settings, which are the recipe's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from idmetric.metric.files import replacing, save_sealed, seal_problem
from idmetric.metric.paths import matching

_UNFINISHED = re.compile(r"\.step-\d{6,}\.safetensors\.[0-9a-f]{12}")  # as `replacing` calls it


FOLDER = "checkpoints"  # in the folder of a run


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoint files of a run by step, in order."""
    paths = {}
    for path in matching(run / FOLDER, "step-*.safetensors"):
        if match := re.fullmatch(r"step-(\d{6,})", path.stem):
            paths[int(match[1])] = path
    return dict(sorted(paths.items()))


class TrainError(RuntimeError):
    """Training cannot start or continue; the message says why, and how to fix it."""


def _trained(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Tensors that training changes: parameters that require grad, and buffers of the state dicts."""
    tensors = {}
    for part, module in modules.items():
        for name, value in module.state_dict(keep_vars=True).items():
            if value.requires_grad or not isinstance(value, nn.Parameter):
                tensors[f"{part}/{name}"] = value
    return tensors


def _restore(modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's weights and buffers into the modules."""
    for part, module in modules.items():
        weights = {}
        for name, value in tensors.items():
            if name.startswith(f"{part}/"):
                weights[name.removeprefix(f"{part}/")] = value
        module.load_state_dict(weights, strict=False)


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
    """
    tensors = _trained(modules)
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
    # safetensors refuses tensors that share memory
    copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    path = _path_of(out, step)
    record = json.dumps({"step": step, "scaler": scaler.state_dict(), **more})
    with replacing(path, parents=True) as temporary:
        save_sealed(copies, temporary, {"record": record})
    return path


def load(
    path: Path,
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> dict[str, Any]:
    """Restore exactly the state that `save` wrote, and return its further values."""
    tensors, record = _read(path)
    shapes = {name: value.shape for name, value in _trained(modules).items()}
    stored = {name: value.shape for name, value in tensors.items() if not name.startswith("optimizer/")}
    if stored != shapes:
        raise _damaged(path, "its tensors are not those that this run trains")
    _restore(modules, tensors)

    parameters: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    states: dict[int, dict[str, Tensor]] = {}
    for key in tensors.keys() - stored.keys():
        _, index, name = key.split("/")
        value = tensors[key]
        parameter = parameters[int(index)]
        if value.shape == parameter.shape:  # in the parameter's memory layout (channels_last), as before
            value = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
        states.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    if scaler.is_enabled():
        scaler.load_state_dict(record["scaler"])
    return record


def load_weights(path: Path, modules: Mapping[str, nn.Module]) -> None:
    """Restore the weights of a checkpoint without the optimizer's state, even if nothing requires grad any more."""
    _restore(modules, _read(path)[0])


def prune(out: Path, keep: int, best: int | None) -> None:
    """Delete unfinished checkpoints, and all but the last `keep` (0 = all stay) and that of the best step.

    Nothing is deleted in a folder of checkpoints that is a link, as it may be another run's.
    """
    if (out / FOLDER).is_symlink():
        return
    for path in (out / FOLDER).glob(".step-*"):
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)
    paths = checkpoints(out)
    for step in list(paths)[: -keep or 0]:  # [:0] is empty
        if step != best:
            paths[step].unlink()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        problem = seal_problem(path)
        if problem:
            raise _damaged(path, problem)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            record = dict(json.loads(file.metadata()["record"]))
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    if path != _path_of(path.parent.parent, record["step"]):
        raise _damaged(path, f"it is of step {record['step']}")
    return tensors, record


def _path_of(out: Path, step: int) -> Path:
    return out / FOLDER / f"step-{step:06d}.safetensors"


def _damaged(path: Path, why: str) -> TrainError:
    return TrainError(f"{path} cannot be read: {why}; delete this file to resume from the one before")
