"""Weights that training starts from, and how far the result may move away from them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from idmetric.checkpoints.revision import revision_of
from idmetric.models import efficientnet_lite
from idmetric.models.idsim import IDSim
from idmetric.train.state import TrainError


def take_over(model: IDSim, source: str) -> str:
    """Give the model the weights of another of its layout, at any input sizes; returns the other's revision.

    Additional blocks of the model, at the end of a stage, keep their weights: new ones pass their input on, as the
    scale of their last norm is 0 (Goyal et al. 2017, Sec. 5.1; timm starts so), and both models give the same features.

    Raises:
        TrainError: if its layout differs otherwise.
        idmetric.checkpoints.format.CheckpointError: if it cannot be opened.
    """
    other = IDSim(source, device="cpu")
    own, given = ({k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (model, other))
    extra = own.keys() - given.keys()
    starts = {f"backbone.layer{stage}.{block}." for stage, block in _blocks(own) - _blocks(given) if block}
    if not given.items() <= own.items() or any(not name.startswith(tuple(starts)) for name in extra):
        raise TrainError(f"--init {source}: its layers are not those of this run (--backbone, --channels, --layers)")
    model.load_state_dict({k: v.float() for k, v in other.state_dict().items()}, strict=False)
    return other.revision


def published_start(model: IDSim, backbone: str) -> str:
    """Start from a backbone's published weights, with heads that change no feature; returns their revision.

    A ResNet keeps its new weights, and the revision is "".

    Raises:
        idmetric.checkpoints.errors.CheckpointError: if the package with the weights is not installed.
    """
    if backbone not in efficientnet_lite.FILES:
        return ""
    trunk: Any = model.backbone
    trunk.load_state_dict(efficientnet_lite.read_state(backbone, trunk))
    for head in (model.mlp_cls, model.mlp_patch):
        assert head.beta_logit is not None
        nn.init.zeros_(head.fc2.weight)
        nn.init.zeros_(head.fc2.bias)
        nn.init.constant_(head.beta_logit, 4.0)  # passes 98 % of the features on
    return revision_of(efficientnet_lite.weights_file(backbone))


@torch.no_grad()
def blend(model: IDSim, initial: IDSim, part: float, patch_part: float | None = None) -> None:
    """Interpolate between a model's weights before and after training, in place.

    part * trained + (1 - part) * initial, which keeps more of what the initial weights know about other images
    (WiSE-FT, Wortsman et al. 2022, Eq. 1).

    Args:
        patch_part: the part for the head of the patch tokens; None: the same. Training makes patches global, until
            background matches background.
    """
    begun = initial.state_dict()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            share = part if patch_part is None or not name.startswith("mlp_patch.") else patch_part
            value.copy_(torch.lerp(begun[name].float(), value.float(), share))


def freeze_stages(model: IDSim, count: int) -> None:
    """Keep the weights of an EfficientNet-Lite's stem and first `count` stages, and save their backward pass."""
    trunk: Any = model.backbone
    parts = [trunk.conv_stem, trunk.bn1, *trunk.blocks[:count]] if count else []
    for part in parts:
        part.requires_grad_(False)


def freeze_statistics(model: nn.Module) -> None:
    """Let BatchNorm use its stored statistics, in training too; its weights still learn."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def _blocks(names: Iterable[str]) -> set[tuple[int, int]]:
    """Stage and number of each block among the names of weights."""
    found = (re.match(r"backbone\.layer(\d+)\.(\d+)\.", name) for name in names)
    return {(int(m[1]), int(m[2])) for m in found if m}
