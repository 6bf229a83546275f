"""Reader of NearID's release and of SigLIP, as transformers stores them.

All functions raise CheckpointError, which names the file that is missing, unreachable or not understood.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint, file_of, revision_of
from idmetric.metric.checkpoints.released import NEARID, PROCESSOR
from idmetric.metric.checkpoints.weights import check_finite, read_tensors
from idmetric.metric.errors import CheckpointError, understanding

_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_NEARID_PREFIX = re.compile(r"(?:backbone\.)?(?:vision_model\.)?")
_NEARID_NAMES = {
    r"embeddings\.patch_embedding\.": "patch_embed.proj.",
    r"embeddings\.position_embedding\.weight": "pos_embed",
    r"encoder\.layers\.(\d+)\.layer_norm([12])\.": r"blocks.\1.norm\2.",
    r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.": r"blocks.\1.attn.\2.",
    r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.": r"blocks.\1.attn.proj.",
    r"encoder\.layers\.(\d+)\.mlp\.": r"blocks.\1.mlp.",
    r"post_layernorm\.": "norm.",
    r"head\.probe": "attn_pool.latent",
    r"head\.attention\.in_proj_": "attn_pool.in.",
    r"head\.attention\.out_proj\.": "attn_pool.proj.",
    r"head\.layernorm\.": "attn_pool.norm.",
    r"head\.mlp\.": "attn_pool.mlp.",
}


def read_nearid(folder: Path) -> Checkpoint:
    """Read a NearID model folder: as its authors published it, or in our own format.

    The published format is that of transformers' SigLIP (config.json with a `vision_config`, preprocessor_config.json,
    one safetensors file); none of its code is run.

    Returns:
        A checkpoint in our own format, `config` fitting `NearIDConfig`.
    """
    published = checkpoint.read_json(file_of(folder, checkpoint.CONFIG))
    if "vision_config" not in published:
        return checkpoint.read(folder)
    return read_tower(folder, published)


def read_tower(folder: Path, published: Mapping[str, Any]) -> Checkpoint:
    """The vision tower of transformers' format, described by NearID's config.json."""
    config_file = file_of(folder, checkpoint.CONFIG)
    processor_file = file_of(folder, PROCESSOR)
    weights = file_of(folder, checkpoint.WEIGHTS)
    with understanding(config_file):
        config = _nearid_config(published)
    with understanding(processor_file):
        config |= _nearid_processing(checkpoint.read_json(processor_file), config["image_size"])
    with understanding(weights):
        tensors = read_tensors(weights)  # mapped: tensors that are left out are not read
        tower = {key: value for key, value in tensors.items() if not key.startswith(("text_model.", "logit_"))}
        check_finite(tower, weights)
        state = {f"backbone.{key}": value for key, value in nearid_names(tower).items()}
    revision = revision_of(weights, processor_file, config_file)
    return Checkpoint(config, state, revision, folder)


def _nearid_config(published: Mapping[str, Any]) -> dict[str, Any]:
    vision = published["vision_config"]
    if published.get("model_type") != "nearid" or not isinstance(vision, dict):
        raise CheckpointError(f"it describes a model of type {published.get('model_type')!r}, not 'nearid'")

    def get(key: str, default: Any) -> Any:  # transformers leaves out what equals its own default
        return vision.get(key, default)

    activation = get("hidden_act", "gelu_pytorch_tanh")
    epsilon = get("layer_norm_eps", 1e-6)
    channels = get("num_channels", 3)
    if activation not in _ACTIVATIONS or epsilon != 1e-6 or channels != 3:
        raise CheckpointError(
            f"it asks for activation {activation!r}, epsilon {epsilon} and {channels} channels; supported are "
            f"{', '.join(_ACTIVATIONS)}, 1e-06 and 3"
        )
    width = get("hidden_size", 768)
    inner = get("intermediate_size", 3072)
    if published.get("embed_dim", width) != width:
        raise CheckpointError(f"it projects {width} features to {published['embed_dim']}: not supported")
    return {
        "model_type": "nearid",
        "format": checkpoint.FORMAT,
        "backbone": NEARID["nearid"].backbone,
        "image_size": get("image_size", 224),
        "backbone_args": {
            "patch_size": get("patch_size", 16),
            "embed_dim": width,
            "depth": get("num_hidden_layers", 12),
            "num_heads": get("num_attention_heads", 12),
            "mlp_ratio": (inner + 0.5) / width,  # timm truncates ratio * width
            "act_layer": _ACTIVATIONS[activation],
        },
    }


def _nearid_processing(processor: Mapping[str, Any], side: int) -> dict[str, Any]:
    """The interpolation and normalization of a preprocessor_config.json; its other settings must be the usual ones."""
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if not processor.get(step, True):
            raise CheckpointError(f"it leaves out a step of the preprocessing ({step}): not supported")
    size = processor.get("size", side)
    if size not in (side, {"height": side, "width": side}) or processor.get("do_center_crop"):
        raise CheckpointError(f"it resizes to {size} or crops; supported: squashing to {side} x {side}")
    if abs(processor.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-8:
        raise CheckpointError(f"it scales pixels by {processor['rescale_factor']}, not by 1/255: not supported")
    resample = processor.get("resample", 3)
    if resample not in _RESAMPLING:
        raise CheckpointError(f"it resizes with Pillow's filter {resample}; supported: {sorted(_RESAMPLING)}")
    return {
        "interpolation": _RESAMPLING[resample],
        "mean": processor.get("image_mean", [0.5, 0.5, 0.5]),
        "std": processor.get("image_std", [0.5, 0.5, 0.5]),
    }


def nearid_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of transformers' SigLIP vision model under timm's names."""
    renamed = {_timm_name(key): value for key, value in state.items()}

    # timm has one layer for query, key and value
    for query_name in [name for name in renamed if "attn.q." in name]:
        joint_name = query_name.replace("attn.q.", "attn.qkv.")
        names = [query_name.replace("attn.q.", f"attn.{letter}.") for letter in "qkv"]
        renamed[joint_name] = torch.cat([renamed.pop(name) for name in names])

    # its pooling has one for the query, one for key and value
    for kind in ("weight", "bias"):
        joint = renamed.pop(f"attn_pool.in.{kind}", None)
        if joint is not None:
            width = len(joint) // 3
            renamed[f"attn_pool.q.{kind}"] = joint[:width]
            renamed[f"attn_pool.kv.{kind}"] = joint[width:]

    if "pos_embed" in renamed:
        renamed["pos_embed"] = renamed["pos_embed"][None]
    return renamed


def _timm_name(key: str) -> str:
    """The name in timm of a tensor of transformers' SigLIP; query, key and value are still apart."""
    short = _NEARID_PREFIX.sub("", key, count=1)
    for pattern, replacement in _NEARID_NAMES.items():
        name, hits = re.subn(f"^{pattern}", replacement, short)
        if hits:
            return name
    raise CheckpointError(f"the checkpoint holds {key!r}: not a layer of a SigLIP vision model")
