"""timm's encoders without their classifiers: built, filled with published weights, and read as features.

timm has each DINOv3 twice: without query and value biases, and with them as `..._qkvb`. Meta's code always has them,
and keeps the keys' biases at zero by a mask.

Functions raise CheckpointError for what timm or a file does not have, or cannot be read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.config import check_arguments
from idmetric.metric.checkpoints.weights import check_state, read_finite, renamed
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath, shown
from idmetric.metric.lazy import LazyModule

Pool = Literal["auto", "cls", "avg", "head"]
Features = tuple[Tensor, Tensor, tuple[int, int]]  # global features (B, D), patch tokens (B, P, D'), grid of patches

_PATCHES = "patch_embed.proj.weight"

timm: Any = LazyModule("timm")  # it takes longer to import than torch


# Building


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

    model = None
    try:
        if empty:
            with suppress(RuntimeError):  # of models that compute with their parameters when they are built
                model = _laid_out(name, options)
        if model is None:
            with torch.random.fork_rng(devices=[], enabled=empty):
                model = timm.create_model(name, **options)
    except Exception as error:  # timm's models raise many kinds on arguments that do not fit, failed assertions too
        reason = str(error) or type(error).__name__
        raise CheckpointError(f"timm cannot build {name!r} with {shown(options)}: {reason}") from error
    return model


def _laid_out(name: str, options: Mapping[str, Any]) -> nn.Module | None:
    """A timm model with tensors on torch's device "meta", except tables that files do not hold; None if timm cannot."""
    with torch.device("meta"):
        model: nn.Module = timm.create_model(name, **options)
    computed: list[Any] = []
    for module in model.modules():
        if module._non_persistent_buffers_set and hasattr(module, "init_non_persistent_buffers"):
            module.to_empty(device="cpu", recurse=False)
            module.init_non_persistent_buffers()  # type: ignore[operator]  # timm's
        computed += [module._buffers[key] for key in module._non_persistent_buffers_set]
        computed += vars(module).values()
    for value in computed:
        if isinstance(value, Tensor) and value.is_meta:
            return None
    return model


# Published weights


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
    repo = pretrained_config(name).hf_hub_id
    if not repo:
        raise CheckpointError(f"timm knows no pretrained weights on the Hub for {name!r}")
    from idmetric.metric.checkpoints.resolve import resolve

    folder = resolve(repo, [checkpoint.WEIGHTS], is_on_hub=True, **hub)
    return checkpoint.file_of(folder, checkpoint.WEIGHTS)


def read_weights(weights: StrPath) -> dict[str, Tensor]:
    """The tensors of a safetensors or .pth file, mapped and finite; those of Meta's DINOv3 under timm's names."""
    state = read_finite(weights)
    if "storage_tokens" in state:
        return dinov3_names(state)
    return state


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
        if not _biases(tensors):
            for key in _biases(expected):
                tensors[key] = torch.zeros(expected[key].shape)
        for key in _biases(tensors):
            if key not in expected and not tensors[key].any():
                del tensors[key]

    # timm would resample the patch embedding, which makes another model
    patches, own_patches = tensors.get(_PATCHES), expected.get(_PATCHES)
    if patches is not None and own_patches is not None and not architecture.startswith("flexivit_"):
        size, own_size = tuple(patches.shape[2:]), tuple(own_patches.shape[2:])
        if patches.ndim == 4 and size != own_size:
            raise CheckpointError(f"weights of {os.fspath(weights)!r} have patches of {size} pixels, {name} {own_size}")

    # the names of the authors' files, and the grid of the position embedding
    module = sys.modules[timm.model_entrypoint(architecture).__module__]
    rename = getattr(module, "checkpoint_filter_fn", None)
    if rename is not None:
        with understanding(weights):
            tensors = dict(rename(tensors, model, **_resampling(architecture)))

    # the classifier, which `build` leaves out: "head", or a layer in it ("head.fc")
    classifiers = pretrained_config(name).classifier or ()
    if isinstance(classifiers, str):
        classifiers = (classifiers,)
    heads = tuple(f"{classifier.rpartition('.')[0] or classifier}." for classifier in classifiers)
    for key in list(tensors):
        if key not in expected and key.startswith(heads):
            del tensors[key]

    # files of older versions of torch lack the counts, which no score depends on
    for key, value in expected.items():
        if key.endswith(".num_batches_tracked"):
            tensors.setdefault(key, torch.zeros(value.shape, dtype=value.dtype))

    check_state(model, tensors, os.fspath(weights))
    return tensors


def _resampling(architecture: str) -> dict[str, Any]:
    """How timm resamples a position embedding, where it is not by its filter's defaults."""
    if architecture.startswith("flexivit_"):
        return {"interpolation": "bilinear", "antialias": False}
    if architecture.startswith("vit_") and "_radio_" in architecture:
        is_aligned = architecture in ("vit_base_patch16_radio_v3", "vit_huge_patch16_radio_v3")
        return {"interpolation": "bilinear", "antialias": False, "align_corners": is_aligned}
    return {}


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
    square = table[:, 1:].float().mT.reshape(1, -1, n, n)
    if offset:
        scales = [(side + offset) / n for side in grid]
        resampled = F.interpolate(square, scale_factor=scales, mode="bicubic")
    else:
        resampled = F.interpolate(square, grid, mode="bicubic")
    positions = torch.cat([class_position, resampled.flatten(2).mT], 1)
    return positions.to(table.dtype)


# DINOv3

_TIMM_NAMES = {"ls1.gamma": "gamma_1", "ls2.gamma": "gamma_2", "storage_tokens": "reg_token"}


def dinov3_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of Meta's DINOv3, or of an adapter to it, under timm's names.

    Tensors that only pretraining uses, the rotary periods (computed by the model) and the keys' biases are left out.
    """
    split = {}
    for key, value in state.items():
        if key.endswith("qkv.bias"):
            prefix = key.removesuffix("qkv.bias")
            if f"{prefix}q_bias" in state:
                raise CheckpointError(f"the file holds the biases of {key!r} twice: save it again")
            split[f"{prefix}q_bias"], _, split[f"{prefix}v_bias"] = value.chunk(3)
        elif key.endswith("qkv.bias_mask"):
            query, keys, values = value.chunk(3)
            if keys.any() or not (query == 1).all() or not (values == 1).all():
                raise CheckpointError(f"{key} hides other biases than the keys': not a mask of DINOv3's releases")
        elif key != "mask_token" and not key.startswith("rope"):
            split[key] = value
    return renamed(split, _timm_name)


def _timm_name(name: str) -> str:
    for meta_name, timm_name in _TIMM_NAMES.items():
        if name.endswith(meta_name):
            return name.removesuffix(meta_name) + timm_name
    return name


def with_biases(name: str, *states: Mapping[str, Tensor]) -> str:
    """A DINOv3's name in timm; the variant with biases if tensors under timm's names hold one that is not zero."""
    for state in states:
        if any(state[key].any() for key in _biases(state)):
            return name.replace("_dinov3.", "_dinov3_qkvb.")
    return name


def _biases(state: Mapping[str, Tensor]) -> list[str]:
    return [key for key in state if key.endswith(("attn.q_bias", "attn.v_bias"))]


# Features


def last_tokens(model: Any, x: Tensor) -> Features:
    """Output of the last block, before the final norm, as ID-Sim's release reads it.

    Args:
        model: a timm model; x: normalized pixels (B, 3, H, W).

    Returns:
        Global feature (B, D): the class token, or the mean of the feature map for encoders without one. Patch tokens
        (B, P, D) in row-major order, class and register tokens dropped. The patch grid (rows, columns).
    """
    if getattr(model, "num_prefix_tokens", 0):
        [(tokens, prefix)] = model.forward_intermediates(
            x, indices=1, norm=False, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        return prefix[:, 0], tokens, _token_grid(model, x)
    if x.device.type == "cpu":
        x = x.contiguous(memory_format=torch.channels_last)  # which makes convolutions on a CPU faster
    [features] = model.forward_intermediates(x, indices=1, norm=False, output_fmt="NCHW", intermediates_only=True)
    tokens = features.flatten(2).mT
    grid = tuple(features.shape[2:])
    return features.mean((2, 3)), tokens, grid


def final_tokens(model: Any, x: Tensor, pool: Pool = "auto") -> Features:
    """Output of the whole encoder, final norm included, as baselines are usually scored.

    Args:
        model, x: as in `last_tokens`.
        pool: global feature: "cls" the class token, "avg" the mean of the patches, "head" timm's own pooling and
            pre-classifier (SigLIP's attention pooling; CLIP's projection when the model kept its head), "auto" the
            class token where there is one, else timm's.

    Returns:
        As `last_tokens`.
    """
    features = model.forward_features(x)
    prefix_count = 0
    if features.ndim == 3:
        prefix_count = int(getattr(model, "num_prefix_tokens", 0))
        tokens, grid = features[:, prefix_count:], _token_grid(model, x)
    else:
        channels_last = features
        if getattr(model, "output_fmt", "NCHW") == "NCHW":
            channels_last = features.movedim(1, -1)
        tokens, grid = channels_last.flatten(1, 2), tuple(channels_last.shape[1:3])

    has_class_token = prefix_count > 0 and getattr(model, "cls_token", None) is not None
    if pool == "cls" and not has_class_token:
        raise ValueError(f"{type(model).__name__} has no class token to pool: choose pool='avg' or 'head'")
    if has_class_token and pool in ("cls", "auto"):
        return features[:, 0], tokens, grid
    if pool == "avg":
        return tokens.mean(1), tokens, grid
    return model.forward_head(features, pre_logits=pool == "auto"), tokens, grid


def _token_grid(model: Any, x: Tensor) -> tuple[int, int]:
    embed = model.patch_embed
    if hasattr(embed, "dynamic_feat_size"):
        return tuple(embed.dynamic_feat_size(x.shape[-2:]))
    return tuple(embed.grid_size)
