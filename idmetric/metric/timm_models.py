"""Published weights of timm's encoders, and DINOv3's tensors under timm's names instead of Meta's.

timm has each DINOv3 twice: without query and value biases, and with them as `..._qkvb`. Meta's code always has them,
and keeps the keys' biases at zero by a mask.

Functions raise CheckpointError for what timm or a file does not have, or cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.config import check_arguments
from idmetric.metric.checkpoints.weights import check_state, read_finite
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath, shown
from idmetric.metric.lazy import LazyModule

# timm's encoders, built without classifier; CheckpointError for what timm does not have.

timm: Any = LazyModule("timm")  # it takes longer to import than torch


def build(
    name: str,
    *,
    image_size: int | None = None,
    args: Mapping[str, Any] | None = None,
    empty: bool = False,
) -> nn.Module:
    """A timm model without classifier, with random weights.

    Args:
        name: timm's name, e.g. "vit_base_patch16_dinov3.lvd1689m".
        image_size: input side in pixels; needed by transformers with a position embedding of fixed size.
        args: more arguments of `timm.create_model`; JSON values only, for they are saved in config.json.
        empty: lay the model out without memory for its weights, which `load_state` fills, where timm can.
    """
    check_arguments(args or {})
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


def pretrained_file(name: str, hub: Mapping[str, Any]) -> Path:
    """The pretrained weights of a timm model, downloaded once from its Hub repository; `hub`: options of `resolve`."""
    from idmetric.metric.checkpoints.resolve import resolve

    config = pretrained_config(name)
    if not config.hf_hub_id:
        raise CheckpointError(f"timm knows no pretrained weights on the Hub for {name!r}")
    folder = resolve(config.hf_hub_id, [checkpoint.WEIGHTS], is_on_hub=True, **hub)
    return checkpoint.file_of(folder, checkpoint.WEIGHTS)


def pretrained_state(name: str, weights: StrPath, args: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """The tensors of a file with a timm model's pretrained weights, under the names of that model, at its own size.

    They stay mapped to the file, without a copy; each is read once, to check that it is finite.

    Args:
        name: the model. args: more arguments of `timm.create_model`.
        weights: a safetensors file in timm's format, or a .pth file as the authors of DINOv2 and DINOv3 publish it.
    """
    return fitted(read_weights(weights), build(name, args=args, empty=True), name, weights)


def fitted(state: Mapping[str, Tensor], model: nn.Module, name: str, weights: StrPath) -> dict[str, Tensor]:
    """Tensors from `read_weights(weights)` as exactly those of a timm model, renamed and resampled by timm's filter.

    Only these may differ: tensors of a classifier that the model lacks are left out, DINOv3's query and value biases
    may be absent from the file, or from the model if they are zero, and so may BatchNorm's counts of training steps.

    Args:
        model: from `build`; its own tensors are not read.
        name: timm's name of the model.
        weights: the file, for messages.
    """
    architecture = name.split(".")[0]
    expected = model.state_dict()
    tensors = dict(state)
    if "dinov3" in architecture:
        tensors = _fit_biases(tensors, model)

    # the names of the authors' files, and the grid of the position embedding
    module = sys.modules[timm.model_entrypoint(architecture).__module__]
    rename = getattr(module, "checkpoint_filter_fn", None)
    if rename is not None:
        with understanding(weights):
            tensors = dict(rename(tensors, model, **_resampling(architecture)))

    # the classifier, which `build` leaves out: "head", or a layer in it ("head.fc")
    classifiers = pretrained_config(name).classifier or ()
    for classifier in [classifiers] if isinstance(classifiers, str) else classifiers:
        head = classifier.rpartition(".")[0] or classifier
        for key in list(tensors):
            if key.startswith(f"{head}.") and key not in expected:
                del tensors[key]

    # files of older versions of torch lack the counts, which no score depends on
    for key, value in expected.items():
        if key.endswith(".num_batches_tracked"):
            tensors.setdefault(key, torch.zeros(value.shape, dtype=value.dtype))

    check_state(model, tensors, os.fspath(weights))
    return tensors


def _resampling(architecture: str) -> dict[str, Any]:
    """How timm resamples a position embedding, where it is not by its filter's defaults."""
    bilinear = {"interpolation": "bilinear", "antialias": False}
    if architecture.startswith("flexivit_"):
        return bilinear
    if re.match("vit_.*_radio_", architecture):
        aligned = ("vit_base_patch16_radio_v3", "vit_huge_patch16_radio_v3")
        return {**bilinear, "align_corners": architecture in aligned}
    return {}


def read_weights(weights: StrPath) -> dict[str, Tensor]:
    """The tensors of a safetensors or .pth file; those of Meta's DINOv3 under timm's names."""
    state = read_finite(weights)
    if "storage_tokens" in state:
        return dinov3_names(state)
    return state


def resample_positions(table: Tensor, grid: tuple[int, int], offset: float = 0.0) -> Tensor:
    """A ViT's position embedding (1, 1 + n * n, D) for a grid of patches, bicubic and without antialiasing.

    Args:
        offset: added to the grid's sides in the scale factors (side + offset) / n, as DINO's and DINOv2's own code
            does with 0.1.
    """
    n = round((table.shape[1] - 1) ** 0.5)
    if grid == (n, n):
        return table
    class_position = table[:, :1].float()
    positions = table[:, 1:].float()
    square = positions.mT.reshape(1, -1, n, n)
    if offset:
        scales = [(side + offset) / n for side in grid]
        resampled = F.interpolate(square, scale_factor=scales, mode="bicubic", align_corners=False)
    else:
        resampled = F.interpolate(square, grid, mode="bicubic", align_corners=False)
    patch_positions = resampled.flatten(2).mT
    return torch.cat([class_position, patch_positions], 1).to(table.dtype)


# DINOv3

_NAMES = {"ls1.gamma": "gamma_1", "ls2.gamma": "gamma_2", "storage_tokens": "reg_token"}


def dinov3_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of Meta's DINOv3, or of an adapter to it, under timm's names.

    Tensors that only pretraining uses, the rotary periods (computed by the model) and the keys' biases are left out.
    """
    renamed = {}
    for key, value in state.items():
        if key.endswith("qkv.bias"):
            prefix = key.removesuffix("qkv.bias")
            renamed[f"{prefix}q_bias"], _, renamed[f"{prefix}v_bias"] = value.chunk(3)
        elif key.endswith("qkv.bias_mask"):
            query, keys, values = value.chunk(3)
            if keys.any() or not (query == 1).all() or not (values == 1).all():
                raise CheckpointError(f"{key} hides other biases than the keys': not a mask of DINOv3's releases")
        elif key != "mask_token" and not key.startswith("rope"):
            for meta_name, timm_name in _NAMES.items():
                if key.endswith(meta_name):
                    key = key.removesuffix(meta_name) + timm_name
            renamed[key] = value
    return renamed


def with_biases(name: str, *states: Mapping[str, Tensor]) -> str:
    """A DINOv3's name in timm; the variant with biases if tensors under timm's names hold one that is not zero."""
    for state in states:
        if any(state[key].any() for key in _biases(state)):
            return name.replace("_dinov3.", "_dinov3_qkvb.")
    return name


def _fit_biases(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors with biases of zero where only the model has biases, and without where only the tensors have them."""
    fitted = dict(state)
    expected = model.state_dict()
    if not _biases(state):
        for key in _biases(expected):
            fitted[key] = torch.zeros(expected[key].shape)
    elif not _biases(expected):
        for key in _biases(state):
            if fitted.pop(key).any():
                raise CheckpointError(
                    f"{key} is not zero, and the model has no such bias: choose timm's _qkvb variant of it"
                )
    return fitted


def _biases(state: Mapping[str, Tensor]) -> list[str]:
    return [key for key in state if key.endswith(("attn.q_bias", "attn.v_bias"))]
