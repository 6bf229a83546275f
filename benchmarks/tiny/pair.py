"""Two trained models as one, as the package has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.weights import SCALE
from idmetric.metric.models.idsim import IDSim
from idmetric.metric.models.lite_trunk import FOLDED, fold

LARGE = 20_000  # values


@torch.no_grad()
def write_pair(first: IDSim, second: IDSim, size: int, share: float, folder: Path) -> None:
    """Two models as one: the second's global feature, of images of `size`, beside the first's; all weights packed."""
    names = [model.settings.backbone for model in (first, second)]
    settings = replace(
        first.settings, backbone=names[0] + FOLDED, second=names[1] + FOLDED, second_size=size, second_share=share,
        mean=first.preprocessor.mean, std=first.preprocessor.std,
    )  # fmt: skip
    state = {}
    for prefix, model in (("backbone.", first), ("second.", second)):
        state |= {prefix + key: value for key, value in fold(model.backbone).items()}
    for head, module in (("cls", first.mlp_cls), ("patch", first.mlp_patch), ("second", second.mlp_cls)):
        state |= {f"mlp_{head}.{key}": value for key, value in module.state_dict().items()}
    checkpoint.write(folder, IDSim(settings, device="cpu").config() | {"model_type": "idsim"}, packed(state))


def packed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Large matrices and filters as int8 with a scale for each output (`unpacked` reads them); the rest in float16.

    Depthwise filters, which are small, lose more by int8 than all others together.
    """
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        if value.ndim < 2 or value.numel() < LARGE:
            found[name] = value.half()
        else:
            scale = (value.float().flatten(1).abs().amax(1) / 127).clamp(min=1e-8)
            found[name] = (value / scale.view(-1, *[1] * (value.ndim - 1))).round().to(torch.int8)
            found[name + SCALE] = scale
    return found
