"""The initial model of NearID: a frozen SigLIP2 with a trainable attention-pooling head (NearID, section 3.1)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from idmetric.checkpoints import format as checkpoint
from idmetric.checkpoints import released
from idmetric.checkpoints.errors import CheckpointError
from idmetric.checkpoints.hub import Files, Hub
from idmetric.checkpoints.released_nearid import read_siglip
from idmetric.checkpoints.revision import revision_of
from idmetric.checkpoints.weights import load_state
from idmetric.models import backbone as backbones
from idmetric.models.nearid import NearID, NearIDConfig
from idmetric.train.nearid.config import SIGLIP2
from idmetric.train.options import weights_file


def start(
    source: str = SIGLIP2,
    *,
    weights: str | os.PathLike[str] = "",
    revision: str | None = None,
    image_size: int | None = None,
    backbone_args: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> NearID:
    """A NearID with a trainable head and a frozen trunk.

    Args:
        source: folder or Hub repository of a SigLIP or SigLIP2 in the format of transformers, or of a NearID to train
            further; or a timm name of a ViT with attention pooling.
        weights: of a timm model, see `weights_file`; "" = those of the source.
        revision: commit of a Hub repository.
        image_size, backbone_args: of a timm model, as for `idmetric.models.backbone.build`.
        seed: of random weights; torch's global random state does not change.

    Raises:
        CheckpointError: if there is no such model, or it has no attention pooling.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if backbones.is_timm(source):
            model = _of_timm(source, os.fspath(weights), revision, image_size, dict(backbone_args or {}))
        elif image_size or backbone_args or weights:
            raise CheckpointError(
                f"{source} has its own settings and weights: --image-size, --backbone-args and --backbone-weights are "
                "for timm's names; name a folder as --backbone"
            )
        else:
            model = _of_files(source, revision)
    model.name = source
    only_the_head_trains(model)
    return model.to(device)


def _of_files(place: str, revision: str | None) -> NearID:
    if released.find(place, released.NEARID):
        return NearID(place, revision=revision, device="cpu")
    files = Files(place, Hub(revision))
    if checkpoint.read_json(files[checkpoint.CONFIG]).get("model_type") == NearID.model_type:
        return NearID(place, revision=revision, device="cpu")
    found = read_siglip(files)
    model = NearID(checkpoint.parse(NearIDConfig, found, NearID.model_type), device="cpu")
    load_state(model, found.state, found.name, torch.float32)
    model.take_revision(found.revision)
    return model


def _of_timm(
    name: str, weights: str, revision: str | None, image_size: int | None, backbone_args: dict[str, Any]
) -> NearID:
    known = backbones.pretrained_config(name)
    if "siglip" in name:  # timm builds them with the exact GELU; SigLIP was trained with its tanh approximation
        backbone_args = {"act_layer": "gelu_tanh", **backbone_args}
    config = NearIDConfig(
        name, image_size or known.input_size[-1], known.interpolation, tuple(known.mean), tuple(known.std),
        backbone_args=backbone_args,
    )  # fmt: skip
    file = weights_file(name, weights, revision)
    model = NearID(config, device="cpu")
    if file:
        model.backbone = backbones.build(name, image_size=config.image_size, args=config.backbone_args, weights=file)
        model.take_revision(revision_of(file))
    return model


def only_the_head_trains(model: NearID) -> None:
    """Freeze the trunk, in eval mode; let the attention pooling train, in train mode.

    Raises:
        CheckpointError: if the model has no attention pooling.
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
    """The modules from the trunk's tokens to the embedding, by name: attention pooling and the layers after it."""
    backbone: Any = model.backbone
    return {f"backbone.{name}": getattr(backbone, name) for name in ("attn_pool", "fc_norm", "head_drop", "head")}


def trunk_state(model: NearID) -> dict[str, torch.Tensor]:
    """The frozen tensors."""
    prefixes = tuple(f"{name}." for name in head_of(model))
    return {name: value for name, value in model.state_dict().items() if not name.startswith(prefixes)}
