"""EfficientNet-Lite0 with ImageNet weights: as it is, and under attention pooling, as a trunk for NearID's recipe.

timm builds the latter as "efficientnet_lite0_map" once this module is imported. Its tokens are places of two feature
maps, as in `TinyConfig.patch_stages`. The pooling begins as the mean of the tokens, so the frozen model is a plain
baseline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from common import digest
from timm.layers import AttentionPoolLatent
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from idmetric import Backbone
from idmetric.metric.models import efficientnet_lite
from idmetric.metric.models.nearid import NearID, NearIDConfig
from idmetric.metric.models.tiny import stage_tokens

NAME = "efficientnet_lite0_map"
LITE = "efficientnet-lite0"
STAGES = (3, 4)
WIDTH = 112 + 320
SCALE = 12.0  # tokens are unit vectors, two of them side by side; layers expect components of about 1

default_cfgs = generate_default_cfgs({f"{NAME}.none": {"mean": (0.5,) * 3, "std": (0.5,) * 3}})


class Grid(nn.Module):
    """What `idmetric.metric.models.tokens` reads of a ViT's patch embedding: rows and columns of the tokens."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.grid_size = (side, side)


class LiteMap(nn.Module):
    """The parts of a timm model that the recipe needs: tokens, and a head that pools them."""

    def __init__(self, img_size: int = 128, heads: int = 8) -> None:
        super().__init__()
        self.trunk = timm.create_model(efficientnet_lite.timm_name(LITE), num_classes=0)
        self.patch_embed = Grid(-(-img_size // 16))
        self.attn_pool = AttentionPoolLatent(WIDTH, num_heads=heads, mlp_ratio=1.0)
        self.fc_norm = self.head_drop = self.head = nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        """Tokens (B, T, 432) of pixels (B, 3, H, W)."""
        return SCALE * stage_tokens(self.trunk, x, STAGES)[1]

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """The pooled tokens (B, 432)."""
        pooled: Tensor = self.attn_pool(tokens)
        return pooled


@register_model  # type: ignore[untyped-decorator]  # timm has no types for it
def efficientnet_lite0_map(pretrained: bool = False, num_classes: int = 0, **kwargs: Any) -> LiteMap:
    """For `timm.create_model`; weights come from `encoder`."""
    return LiteMap(**{name: value for name, value in kwargs.items() if name in ("img_size", "heads")})


def imagenet(folder: Path, side: int) -> Path:
    """The folder of the plain encoder at a side of pictures, made if it is not there: `Backbone(folder)` opens it."""
    folder /= digest([LITE, side])
    if not (folder / "config.json").is_file():
        Backbone(LITE, image_size=side, device="cpu").save_pretrained(folder)
    return folder


def encoder(folder: Path, side: int) -> Path:
    """The folder of the model with ImageNet weights, made if it is not there: `NearID(folder)` opens it."""
    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        model = NearID(NearIDConfig(backbone=NAME, image_size=side, backbone_args={"img_size": side}), device="cpu")
        backbone: Any = model.backbone
        backbone.trunk.load_state_dict(efficientnet_lite.read_state(LITE, backbone.trunk))
        start_as_mean(backbone.attn_pool)
        model.save_pretrained(folder)
    return folder


@torch.no_grad()
def start_as_mean(pool: AttentionPoolLatent) -> None:
    """Let the pooling give the mean of its tokens: even attention, values as they are, and an MLP that adds nothing."""
    for part in (pool.latent, pool.q.bias, pool.kv.bias, pool.proj.bias, pool.mlp.fc2.weight, pool.mlp.fc2.bias):
        part.zero_()
    pool.kv.weight[WIDTH:] = torch.eye(WIDTH)
    pool.proj.weight.copy_(torch.eye(WIDTH))
