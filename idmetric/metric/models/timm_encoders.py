"""timm's encoders, built without classifier; CheckpointError for what timm does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from idmetric.metric.checkpoints.config import check_arguments
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.files.lazy import LazyModule
from idmetric.metric.files.typed import shown
from idmetric.metric.models import lite_trunk

timm: Any = LazyModule("timm")  # it takes longer to import than torch, and `lite_trunk` does without


def build(
    name: str,
    *,
    image_size: int | None = None,
    args: Mapping[str, Any] | None = None,
    empty: bool = False,
) -> nn.Module:
    """A timm model without classifier, with random weights.

    Args:
        name: timm's name, e.g. "vit_base_patch16_dinov3.lvd1689m", or one of `lite_trunk.SCALES`.
        image_size: input side in pixels; needed by transformers with a position embedding of fixed size.
        args: more arguments of `timm.create_model`; JSON values only, for they are saved in config.json.
        empty: lay the model out without memory for its weights, which `load_state` fills, where timm can.
    """
    check_arguments(args or {})
    if name in lite_trunk.SCALES:
        if args:
            raise CheckpointError(f"{name!r} takes no arguments, got {shown(dict(args))}")
        return _lite_trunk(name, empty)
    options: dict[str, Any] = {"num_classes": 0, **(args or {})}
    if image_size is not None and pretrained_config(name).fixed_input_size:
        options["img_size"] = image_size

    try:
        if empty:
            with contextlib.suppress(RuntimeError):  # of models that compute with their parameters when they are built
                laid_out = _without_memory(name, options)
                if laid_out is not None:
                    return laid_out
        with torch.random.fork_rng(devices=[], enabled=empty):
            model: nn.Module = timm.create_model(name, **options)
    except Exception as error:  # timm's models raise many kinds on arguments that do not fit, failed assertions too
        reason = str(error) or type(error).__name__
        raise CheckpointError(f"timm cannot build {name!r} with {shown(options)}: {reason}") from error
    return model


def _lite_trunk(name: str, empty: bool) -> nn.Module:
    with torch.device("meta"):
        trunk = lite_trunk.LiteTrunk(name)
    if not empty:  # random weights as timm draws them
        twin = timm.create_model(name.removesuffix(lite_trunk.FOLDED), num_classes=0)
        trunk.load_state_dict(lite_trunk.fold(twin), assign=True)
    return trunk


def _without_memory(name: str, options: Mapping[str, Any]) -> nn.Module | None:
    """A timm model with tensors on torch's device "meta", except tables that files do not hold; None if timm cannot."""
    with torch.device("meta"):
        model: nn.Module = timm.create_model(name, **options)
    for module in model.modules():
        if any(isinstance(value, Tensor) for value in vars(module).values()):
            return None
        tables = [key for key in module._non_persistent_buffers_set if module._buffers[key] is not None]
        if not tables:
            continue
        if not hasattr(module, "init_non_persistent_buffers"):
            return None
        for key in tables:
            module._buffers[key] = torch.empty_like(module._buffers[key], device="cpu")  # type: ignore[arg-type]
        module.init_non_persistent_buffers()  # type: ignore[operator]  # timm's
        if any(module._buffers[key].is_meta for key in tables):  # type: ignore[union-attr]  # not None
            return None
    return model


def is_timm(source: str) -> bool:
    """Whether this names a timm model; a local folder of that name is written "./NAME"."""
    return bool(timm.is_model(source.split(".")[0]))


def pretrained_config(name: str) -> Any:
    """timm's record of a model's pretrained weights: input size, normalization, Hub repository."""
    if not is_timm(name):
        raise CheckpointError(f"timm has no model {name!r}: timm.list_models() lists them")
    return timm.get_pretrained_cfg(name)
