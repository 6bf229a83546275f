"""What NearID starts from: a frozen SigLIP2 whose attention-pooling head alone will train (NearID, section 3.1)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import timm
import torch
from torch import nn

from idmetric import backbone as backbones
from idmetric import checkpoint, released
from idmetric.checkpoint import CheckpointError, Files, Hub
from idmetric.nearid import NearID, NearIDConfig

RANDOM = "random"
SMALL = NearIDConfig(
    image_size=48,
    backbone_args={
        "act_layer": "gelu_tanh", "patch_size": 12, "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0,
    },
)  # fmt: skip


def start(
    source: str,
    *,
    revision: str | None = None,
    weights: str | os.PathLike[str] = "",
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> NearID:
    """A NearID whose head is trained and whose trunk is not.

    Args:
        source: folder or Hub repository of a SigLIP or SigLIP2 as transformers stores it, of a NearID (to go on with
            it); a timm name of a ViT with attention pooling; or "random", a very small one.
        revision: commit of a Hub repository.
        weights: local file with a timm model's weights, instead of its Hub repository's.
        seed: of the random one.

    Raises:
        CheckpointError: if there is no such model, or its head is no attention pooling.
    """
    if weights and not timm.is_model(source.split(".")[0]):
        raise CheckpointError(f"--backbone-weights is for timm's models: {source!r} is none")
    if source == RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = NearID(SMALL, device=device)
    elif timm.is_model(source.split(".")[0]) and not os.path.isdir(source):
        model = _of_timm(source, Hub(revision), weights, device)
    elif source in released.NEARID:
        model = NearID(source, revision=revision, device=device)
    else:
        model = _of_files(source, Hub(revision), device)
    model.name = source
    only_the_head_trains(model)
    return model


def _of_files(source: str, hub: Hub, device: torch.device | str) -> NearID:
    files = Files(source, hub)
    if checkpoint.read_json(files[checkpoint.CONFIG]).get("model_type") == NearID.model_type:
        return NearID(source, revision=hub.revision, device=device)
    found = released.read_siglip(files)
    model = NearID(checkpoint.parse(NearIDConfig, found, NearID.model_type), device="cpu")
    checkpoint.load_state(model, found.state, found.name, torch.float32)
    model.revision = found.revision
    model.to(device)
    return model


def _of_timm(name: str, hub: Hub, weights: str | os.PathLike[str], device: torch.device | str) -> NearID:
    known = backbones.pretrained_config(name)
    config = NearIDConfig(
        name, known.input_size[-1], known.interpolation, tuple(known.mean), tuple(known.std), backbone_args={}
    )
    if "siglip" in name:  # timm builds them with the exact GELU; SigLIP was trained with its tanh approximation
        config = replace(config, backbone_args={"act_layer": "gelu_tanh"})
    file = weights or backbones.pretrained_file(name, hub)
    model = NearID(config, device="cpu")
    model.backbone = backbones.build(name, image_size=config.image_size, args=config.backbone_args, weights=file)
    model.revision = checkpoint.revision_of(file)
    model.requires_grad_(False).to(device)
    return model


def only_the_head_trains(model: NearID) -> None:
    """Freeze the trunk, in eval mode; leave gradients to what pools its tokens, in train mode.

    Raises:
        CheckpointError: if the model pools otherwise.
    """
    if getattr(model.backbone, "attn_pool", None) is None or getattr(model.backbone, "cls_token", None) is not None:
        raise CheckpointError(
            f"{model.name!r} has no attention pooling to train: choose a SigLIP, such as "
            "google/siglip2-so400m-patch14-384"
        )
    model.requires_grad_(False).eval()
    for module in head_of(model).values():
        module.requires_grad_(True).train()


def head_of(model: NearID) -> dict[str, nn.Module]:
    """The modules that make the embedding of the trunk's tokens, by name: attention pooling and what follows."""
    backbone: Any = model.backbone
    return {f"backbone.{name}": getattr(backbone, name) for name in ("attn_pool", "fc_norm", "head_drop", "head")}


def trunk_state(model: NearID) -> dict[str, torch.Tensor]:
    """The frozen tensors."""
    prefixes = tuple(f"{name}." for name in head_of(model))
    return {name: value for name, value in model.state_dict().items() if not name.startswith(prefixes)}
