"""Reader of NearID's release and of SigLIP, as transformers stores them.

All functions raise CheckpointError, which names the file that is missing, unreachable or not understood.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.errors import CheckpointError, understanding
from idmetric.metric.checkpoints.format import Checkpoint
from idmetric.metric.checkpoints.hub import Files
from idmetric.metric.checkpoints.released import NEARID, PROCESSOR
from idmetric.metric.checkpoints.revision import revision_of
from idmetric.metric.checkpoints.weights import check_finite, read_tensors

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


def read_nearid(files: Files) -> Checkpoint:
    """Read a NearID model folder or Hub repository: as its authors published it, or in our own format.

    The published format is that of transformers' SigLIP (config.json with a `vision_config`, preprocessor_config.json,
    one safetensors file); none of its code is run.

    Returns:
        A checkpoint in our own format, `config` fitting `NearIDConfig`.
    """
    published = checkpoint.read_json(files[checkpoint.CONFIG])
    return _read(files, published) if "vision_config" in published else checkpoint.read(files)


def read_siglip(files: Files) -> Checkpoint:
    """Read SigLIP or SigLIP2 (of one resolution) as transformers stores it: NearID before its training.

    The tensors of the text tower are not read.

    Returns:
        As `read_nearid`; the head is SigLIP's own.
    """
    published = checkpoint.read_json(files[checkpoint.CONFIG])
    name, kind = str(files[checkpoint.CONFIG]), published.get("model_type")
    if kind not in ("siglip", "siglip_vision_model"):
        raise CheckpointError(f"{name!r} describes a model of type {kind!r}, not a SigLIP of one resolution ('siglip')")
    vision = published.get("vision_config", {}) if kind == "siglip" else published
    return _read(files, {"model_type": "nearid", "vision_config": vision})


def _read(files: Files, published: Mapping[str, Any]) -> Checkpoint:
    """The vision tower of transformers' format, described by NearID's config.json."""
    config_file, processor_file, weights = files[checkpoint.CONFIG], files[PROCESSOR], files[checkpoint.WEIGHTS]
    with understanding(config_file):
        config = _nearid_config(published)
    with understanding(processor_file):
        config |= _nearid_processing(checkpoint.read_json(processor_file), config["image_size"])
    with understanding(weights):
        tensors = read_tensors(weights)  # mapped: tensors that are left out are not read
        tower = {key: value for key, value in tensors.items() if not key.startswith(("text_model.", "logit_"))}
        check_finite(tower, weights)
        state = {f"backbone.{key}": value for key, value in nearid_names(tower).items()}
    return Checkpoint(config, state, files.name, revision_of(weights, processor_file, config_file), files)


def _nearid_config(published: Mapping[str, Any]) -> dict[str, Any]:
    vision = published["vision_config"]
    if published.get("model_type") != "nearid" or not isinstance(vision, dict):
        raise CheckpointError(f"it describes a model of type {published.get('model_type')!r}, not 'nearid'")

    def get(key: str, default: Any) -> Any:  # transformers leaves out what equals its own default
        return vision.get(key, default)

    activation, epsilon = get("hidden_act", "gelu_pytorch_tanh"), get("layer_norm_eps", 1e-6)
    if activation not in _ACTIVATIONS or epsilon != 1e-6 or get("num_channels", 3) != 3:
        raise CheckpointError(
            f"it asks for activation {activation!r}, epsilon {epsilon} and {get('num_channels', 3)} channels; "
            f"supported are {', '.join(_ACTIVATIONS)}, 1e-06 and 3"
        )
    width, inner = get("hidden_size", 768), get("intermediate_size", 3072)
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
    half = [0.5, 0.5, 0.5]
    mean, std = processor.get("image_mean", half), processor.get("image_std", half)
    if not all(isinstance(x, list) and len(x) == 3 for x in (mean, std)):
        raise CheckpointError(f"it has image_mean {mean} and image_std {std}; three numbers each are needed")
    return {"interpolation": _RESAMPLING[resample], "mean": mean, "std": std}


def nearid_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of transformers' SigLIP vision model under timm's names."""
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        short = _NEARID_PREFIX.sub("", key, count=1)
        for pattern, name in _NEARID_NAMES.items():
            renamed, hits = re.subn(f"^{pattern}", name, short)
            if hits:
                found[renamed] = value
                break
        else:
            raise CheckpointError(f"the checkpoint holds {key!r}: not a layer of a SigLIP vision model")
    for key in [key for key in found if re.search(r"attn\.q\.", key)]:
        parts = [found.pop(key.replace("attn.q.", f"attn.{x}."), None) for x in "qkv"]
        if any(part is None for part in parts):
            raise CheckpointError(f"the checkpoint lacks a part of {key.replace('attn.q.', 'attn.qkv.')}")
        found[key.replace("attn.q.", "attn.qkv.")] = torch.cat(parts)  # type: ignore[arg-type]  # checked above
    for kind in ("weight", "bias"):
        if (joint := found.pop(f"attn_pool.in.{kind}", None)) is not None:
            width = len(joint) // 3
            found[f"attn_pool.q.{kind}"], found[f"attn_pool.kv.{kind}"] = joint[:width], joint[width:]
    if "pos_embed" in found:
        found["pos_embed"] = found["pos_embed"][None]
    return found
