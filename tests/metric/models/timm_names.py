"""Weights of transformers' vision encoders under timm's names."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("weight", "bias")


def clip(model: torch.nn.Module) -> dict[str, Tensor]:
    """A `CLIPVisionModelWithProjection`; timm's head has a bias, which is 0."""
    theirs = {name.removeprefix("vision_model."): value for name, value in model.state_dict().items()}
    ours = {
        "cls_token": theirs["embeddings.class_embedding"].view(1, 1, -1),
        "pos_embed": theirs["embeddings.position_embedding.weight"][None],
        "patch_embed.proj.weight": theirs["embeddings.patch_embedding.weight"],
        "head.weight": theirs["visual_projection.weight"],
        "head.bias": torch.zeros(len(theirs["visual_projection.weight"])),
    }
    for kind in KINDS:
        ours[f"norm_pre.{kind}"] = theirs[f"pre_layrnorm.{kind}"]
        ours[f"norm.{kind}"] = theirs[f"post_layernorm.{kind}"]
    return ours | _siglip_blocks(theirs)


def siglip(model: torch.nn.Module) -> dict[str, Tensor]:
    """A `SiglipVisionModel`, with its attention pooling."""
    theirs = {name.removeprefix("vision_model."): value for name, value in model.state_dict().items()}
    ours = {
        "pos_embed": theirs["embeddings.position_embedding.weight"][None],
        "attn_pool.latent": theirs["head.probe"],
    }
    for kind in KINDS:
        ours[f"patch_embed.proj.{kind}"] = theirs[f"embeddings.patch_embedding.{kind}"]
        ours[f"norm.{kind}"] = theirs[f"post_layernorm.{kind}"]
        query, key, value = theirs[f"head.attention.in_proj_{kind}"].chunk(3)
        ours[f"attn_pool.q.{kind}"] = query
        ours[f"attn_pool.kv.{kind}"] = torch.cat([key, value])
        ours[f"attn_pool.proj.{kind}"] = theirs[f"head.attention.out_proj.{kind}"]
        ours[f"attn_pool.norm.{kind}"] = theirs[f"head.layernorm.{kind}"]
        ours[f"attn_pool.mlp.fc1.{kind}"] = theirs[f"head.mlp.fc1.{kind}"]
        ours[f"attn_pool.mlp.fc2.{kind}"] = theirs[f"head.mlp.fc2.{kind}"]
    return ours | _siglip_blocks(theirs)


def _siglip_blocks(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layers of CLIP and SigLIP, which have the same names."""
    ours = {}
    for layer in range(_layers(theirs, "encoder.layers.")):
        old, new = f"encoder.layers.{layer}", f"blocks.{layer}"
        for kind in KINDS:
            parts = [theirs[f"{old}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            ours[f"{new}.attn.qkv.{kind}"] = torch.cat(parts)
            ours[f"{new}.attn.proj.{kind}"] = theirs[f"{old}.self_attn.out_proj.{kind}"]
            ours[f"{new}.norm1.{kind}"] = theirs[f"{old}.layer_norm1.{kind}"]
            ours[f"{new}.norm2.{kind}"] = theirs[f"{old}.layer_norm2.{kind}"]
            ours[f"{new}.mlp.fc1.{kind}"] = theirs[f"{old}.mlp.fc1.{kind}"]
            ours[f"{new}.mlp.fc2.{kind}"] = theirs[f"{old}.mlp.fc2.{kind}"]
    return ours


def dinov2(model: torch.nn.Module) -> dict[str, Tensor]:
    """A `Dinov2Model`, without the token that masks patches in training."""
    theirs = {_of_today(name): value for name, value in model.state_dict().items()}
    ours = {
        "cls_token": theirs["embeddings.cls_token"],
        "pos_embed": theirs["embeddings.position_embeddings"],
    }
    for kind in KINDS:
        ours[f"patch_embed.proj.{kind}"] = theirs[f"embeddings.patch_embeddings.projection.{kind}"]
        ours[f"norm.{kind}"] = theirs[f"layernorm.{kind}"]
    for layer in range(_layers(theirs, "encoder.layer.")):
        old, new = f"encoder.layer.{layer}", f"blocks.{layer}"
        for number in (1, 2):
            ours[f"{new}.ls{number}.gamma"] = theirs[f"{old}.layer_scale{number}.lambda1"]
        for kind in KINDS:
            parts = [theirs[f"{old}.attention.{part}_proj.{kind}"] for part in "qkv"]
            ours[f"{new}.attn.qkv.{kind}"] = torch.cat(parts)
            ours[f"{new}.attn.proj.{kind}"] = theirs[f"{old}.attention.o_proj.{kind}"]
            for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                ours[f"{new}.{part}.{kind}"] = theirs[f"{old}.{part}.{kind}"]
    return ours


def _of_today(name: str) -> str:
    """A name of the first releases of transformers 5, as later ones have it."""
    for part in ("query", "key", "value"):
        name = name.replace(f"attention.attention.{part}", f"attention.{part[0]}_proj")
    return name.replace("attention.output.dense", "attention.o_proj")


def _layers(state: dict[str, Tensor], start: str) -> int:
    return len({name.removeprefix(start).partition(".")[0] for name in state if name.startswith(start)})
