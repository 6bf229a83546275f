"""Weights of transformers' vision encoders under timm's names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# timm's name of a layer in a block -> that of transformers; of queries, keys and values separately
CLIP = {"attn.qkv": "self_attn.{}_proj", "attn.proj": "self_attn.out_proj", "norm1": "layer_norm1",
        "norm2": "layer_norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}  # fmt: skip
DINOV2 = {"attn.qkv": "attention.{}_proj", "attn.proj": "attention.o_proj", "norm1": "norm1", "norm2": "norm2",
          "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}  # fmt: skip


def renamed(theirs: Mapping[str, Tensor], layers: Mapping[str, str], start: str) -> dict[str, Tensor]:
    """Weights and biases of layers, and of the same ones in every block, whose names begin with `start`."""
    ours = {}
    names = {name: name.removeprefix(start).split(".")[0] for name in theirs if name.startswith(start)}
    for block in sorted(set(names.values())):
        for new, old in layers.items():
            parts = "qkv" if "{}" in old else "-"
            for kind in ("weight", "bias"):
                tensors = [theirs[f"{start}{block}.{old.format(part)}.{kind}"] for part in parts]
                ours[f"blocks.{block}.{new}.{kind}"] = torch.cat(tensors)
    return ours


def both(theirs: Mapping[str, Tensor], layers: Mapping[str, str]) -> dict[str, Tensor]:
    """Weight and bias, where they exist, of single layers."""
    pairs = [(f"{new}.{kind}", f"{old}.{kind}") for new, old in layers.items() for kind in ("weight", "bias")]
    return {new: theirs[old] for new, old in pairs if old in theirs}


def clip(model: torch.nn.Module) -> dict[str, Tensor]:
    """A `CLIPVisionModelWithProjection`; timm's head has a bias, which is 0."""
    theirs = {name.removeprefix("vision_model."): value for name, value in model.state_dict().items()}
    layers = {"patch_embed.proj": "embeddings.patch_embedding", "head": "visual_projection",
              "norm_pre": "pre_layrnorm", "norm": "post_layernorm"}  # fmt: skip
    ours = both(theirs, layers) | renamed(theirs, CLIP, "encoder.layers.")
    ours["cls_token"] = theirs["embeddings.class_embedding"].view(1, 1, -1)
    ours["pos_embed"] = theirs["embeddings.position_embedding.weight"][None]
    ours["head.bias"] = torch.zeros(len(ours["head.weight"]))
    return ours


def siglip(model: torch.nn.Module) -> dict[str, Tensor]:
    """A `SiglipVisionModel`, with its attention pooling."""
    theirs = {name.removeprefix("vision_model."): value for name, value in model.state_dict().items()}
    layers = {"patch_embed.proj": "embeddings.patch_embedding", "norm": "post_layernorm",
              "attn_pool.proj": "head.attention.out_proj", "attn_pool.norm": "head.layernorm",
              "attn_pool.mlp.fc1": "head.mlp.fc1", "attn_pool.mlp.fc2": "head.mlp.fc2"}  # fmt: skip
    ours = both(theirs, layers) | renamed(theirs, CLIP, "encoder.layers.")
    ours["pos_embed"] = theirs["embeddings.position_embedding.weight"][None]
    ours["attn_pool.latent"] = theirs["head.probe"]
    for kind in ("weight", "bias"):
        query, key, value = theirs[f"head.attention.in_proj_{kind}"].chunk(3)
        ours |= {f"attn_pool.q.{kind}": query, f"attn_pool.kv.{kind}": torch.cat([key, value])}
    return ours


def dinov2(model: torch.nn.Module) -> dict[str, Tensor]:
    """A `Dinov2Model`, without the token that masks patches in training."""
    theirs = model.state_dict()
    layers = {"patch_embed.proj": "embeddings.patch_embeddings.projection", "norm": "layernorm"}
    ours = both(theirs, layers) | renamed(theirs, DINOV2, "encoder.layer.")
    ours |= {"cls_token": theirs["embeddings.cls_token"], "pos_embed": theirs["embeddings.position_embeddings"]}
    for name, value in theirs.items():
        if name.endswith(".lambda1"):
            block, scale = name.split(".")[2:4]
            ours[f"blocks.{block}.{scale.replace('layer_scale', 'ls')}.gamma"] = value
    return ours
