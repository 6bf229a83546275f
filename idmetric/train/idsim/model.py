"""The initial model of ID-Sim: a pretrained ViT and two new heads (section 4.1, C.1)."""

from __future__ import annotations

import torch

from idmetric.checkpoints.released_idsim import resample_dinov2_positions
from idmetric.checkpoints.revision import revision_of
from idmetric.checkpoints.weights import load_state
from idmetric.models import backbone as backbones
from idmetric.models.idsim import IDSim, IDSimConfig


def untrained(settings: IDSimConfig, weights: str, seed: int) -> IDSim:
    """A model on the CPU with a backbone's weights and random heads.

    Args:
        weights: from `train.pretrained.weights_file`; "" leaves the backbone random as well.
        seed: of random weights; torch's global random state does not change.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = IDSim(settings, device="cpu")
    model.name = settings.backbone
    if weights:
        _load(model, settings, weights)
        model.take_revision(revision_of(weights))
    return model


def _load(model: IDSim, settings: IDSimConfig, weights: str) -> None:
    """Load weights at the model's image size; DINOv2's positions are resampled as by Meta, and as in the release."""
    name, args = settings.backbone, settings.backbone_args
    if "_dinov3" in name:  # no table of positions to resample; biases that the model lacks are refused
        state = backbones.pretrained_state(name, weights, args)
    else:
        state = backbones.build(name, image_size=settings.image_size, args=args, weights=weights).state_dict()
    if "patch14_dinov2" in name:
        patch = state["patch_embed.proj.weight"].shape[-1]
        table = backbones.pretrained_state(name, weights, args)["pos_embed"]
        state["pos_embed"] = resample_dinov2_positions(table, settings.image_size // patch)
    load_state(model.backbone, state, weights)
    model.requires_grad_(False)
