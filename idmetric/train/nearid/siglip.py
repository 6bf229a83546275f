"""The initial model of NearID: a frozen SigLIP2 with a trainable attention-pooling head (NearID, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.errors import CheckpointError
from idmetric.metric.nearid import FILES, NearID, NearIDConfig, read_tower
from idmetric.metric.timm_models import fitted, is_timm, pretrained_config, read_weights
from idmetric.train.nearid.config import NearIDTraining
from idmetric.train.options import weights_file


def start(config: NearIDTraining) -> NearID:
    """A NearID on the CPU with a trainable head and a frozen trunk; torch's global random state does not change."""
    source = config.backbone
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # of random weights
        if is_timm(source):
            model = _of_timm(config)
        elif config.image_size or config.backbone_args or config.backbone_weights:
            raise CheckpointError(
                f"{source} has its own settings and weights: --image-size, --backbone-args and --backbone-weights are "
                "for timm's names; name a folder as --backbone"
            )
        else:
            model = _of_files(source, config.revision)
    model.name = model.short_name = source
    only_the_head_trains(model)
    return model


def _of_files(source: str, revision: str | None) -> NearID:
    folder = resolve(source, FILES, revision=revision)
    published = checkpoint.read_json(checkpoint.file_of(folder, checkpoint.CONFIG))
    if published.get("model_type") == NearID.model_type:
        return NearID(source, revision=revision, device="cpu")
    siglip = _read_siglip(folder, published)
    model = NearID(checkpoint.parse(NearIDConfig, siglip, NearID.model_type), device="cpu")
    load_state(model, siglip.state, source, torch.float32)
    model.take_revision(siglip.revision)
    return model


def _of_timm(config: NearIDTraining) -> NearID:
    name = config.backbone
    pretrained = pretrained_config(name)
    args = config.backbone_args
    if "siglip" in name:  # timm builds them with the exact GELU; SigLIP was trained with its tanh approximation
        args = {"act_layer": "gelu_tanh", **args}
    settings = NearIDConfig(
        backbone=name,
        image_size=config.image_size or pretrained.input_size[-1],
        interpolation=pretrained.interpolation,
        mean=tuple(pretrained.mean),
        std=tuple(pretrained.std),
        backbone_args=args,
    )
    file = weights_file(name, config.backbone_weights, config.revision)
    model = NearID(settings, device="cpu")
    if file:
        trunk = fitted(read_weights(file), model.backbone, name, file)
        load_state(model.backbone, trunk, file)
        model.take_revision(checkpoint.revision_of(file))
    return model


def only_the_head_trains(model: NearID) -> None:
    """Freeze the trunk, in eval mode; let the attention pooling train, in train mode."""
    has_attention_pooling = getattr(model.backbone, "attn_pool", None) is not None
    if not has_attention_pooling or getattr(model.backbone, "cls_token", None) is not None:
        raise CheckpointError(
            f"{model.name!r} has no attention pooling to train: choose a SigLIP, such as "
            "google/siglip2-so400m-patch14-384"
        )
    model.requires_grad_(False).eval()
    for module in head_of(model).values():
        module.requires_grad_(True).train()


def head_of(model: NearID) -> dict[str, nn.Module]:
    """The modules from the trunk's tokens to the embedding, by name: attention pooling and the layers after it."""
    backbone: Any = model.backbone
    return {f"backbone.{name}": getattr(backbone, name) for name in ("attn_pool", "fc_norm", "head_drop", "head")}


def trunk_state(model: NearID) -> dict[str, torch.Tensor]:
    """The frozen tensors."""
    prefixes = tuple(f"{name}." for name in head_of(model))
    return {name: value for name, value in model.state_dict().items() if not name.startswith(prefixes)}


def _read_siglip(folder: Path, published: Mapping[str, Any]) -> checkpoint.Checkpoint:
    """Read SigLIP or SigLIP2 (of one resolution) as transformers stores it: NearID before its training.

    The tensors of the text tower are not read.

    Returns:
        As `read_tower`; the head is SigLIP's own.
    """
    model_type = published.get("model_type")
    if model_type == "siglip":
        vision = published.get("vision_config", {})
    elif model_type == "siglip_vision_model":
        vision = published
    else:
        raise CheckpointError(
            f"{str(folder)!r} holds a model of type {model_type!r}, not a SigLIP of one resolution ('siglip')"
        )
    return read_tower(folder, {"model_type": "nearid", "vision_config": vision})
