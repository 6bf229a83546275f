"""Weights that training starts from, how far the result may move away from them, and models that teach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.checkpoints.revision import revision_of
from idmetric.metric.models import efficientnet_lite
from idmetric.metric.models.idsim import IDSim
from idmetric.train.state import TrainError

PARTS = {
    "early": ("conv_stem", "bn1", *(f"blocks.{stage}" for stage in range(4))),
    "four": ("blocks.4",),
    "five": ("blocks.5",),
    "last": ("blocks.6", "conv_head", "bn2", "mlp_cls"),
    "patch": ("mlp_patch",),
}


def take_over(model: IDSim, source: str) -> str:
    """Give the model the weights of another of its layout, at any input sizes; returns the other's revision.

    Raises:
        TrainError: if its layout differs.
        idmetric.metric.checkpoints.errors.CheckpointError: if it cannot be opened.
    """
    other = IDSim(source, device="cpu")
    try:
        model.load_state_dict({k: v.float() for k, v in other.state_dict().items()})
    except RuntimeError as error:
        raise TrainError(f"{source}: its layers are not those of this run") from error
    return other.revision


def published_start(model: IDSim, backbone: str) -> str:
    """Start from a backbone's published weights, with heads that change no feature; returns their revision.

    A ResNet keeps its new weights, and the revision is "".

    Raises:
        idmetric.metric.checkpoints.errors.CheckpointError: if the package with the weights is not installed.
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


@torch.no_grad()
def mixed(trained: IDSim, shares: Mapping[str, float]) -> IDSim:
    """A model between a trained one and the ImageNet weights, whose heads change nothing; shares of each of `PARTS`."""
    model = deepcopy(trained)
    published_start(model, model.settings.backbone.removeprefix("tf_").replace("_", "-"))
    end = trained.state_dict()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            [part] = [part for part, of in PARTS.items() if name.removeprefix("backbone.").startswith(of)]
            value.lerp_(end[name], shares[part])
    return model


class Teachers:
    """Frozen models; their embeddings side by side, each of unit length, are those of one model.

    Args:
        sources: names or folders of models of the class IDSim.
        sizes: side in pixels at which each sees images.
        shares: how much each counts in the similarities; () = all alike.
    """

    def __init__(
        self, sources: Sequence[str], sizes: Sequence[int], shares: Sequence[float], device: torch.device | str
    ) -> None:
        self.models = [IDSim(source, device=device).requires_grad_(False) for source in sources]
        self.sizes, self.shares = sizes, shares or [1.0] * len(sizes)
        self.revisions = [model.revision for model in self.models]

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Embed images (N, 3, H, W) in [0, 1]: (N, D) of unit length, D being the sum of the models' dimensions.

        The inner product of two is the mean of the models' cosines, weighed by their shares.
        """
        found = []
        for model, size, share in zip(self.models, self.sizes, self.shares, strict=True):
            seen = F.interpolate(images, (size, size), mode="bilinear", antialias=True, align_corners=False)
            seen = seen.contiguous(memory_format=torch.channels_last)
            found.append(share**0.5 * F.normalize(model.embed_pixels(seen).cls.float(), dim=-1))
        return F.normalize(torch.cat(found, -1), dim=-1)
