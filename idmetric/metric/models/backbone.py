"""Any timm encoder, frozen, as a baseline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints.errors import understanding
from idmetric.metric.checkpoints.hub import Hub
from idmetric.metric.checkpoints.released import source_name
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.images.fit import CROPS, Fit, Resize
from idmetric.metric.models import efficientnet_lite
from idmetric.metric.models.backbone_sources import Request, Source, View, resolve
from idmetric.metric.models.devices import opening
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.models.named import NAMED
from idmetric.metric.models.timm_encoders import build, fitted, is_timm, pretrained_state, read_weights
from idmetric.metric.models.tokens import Pool, final_tokens, resample_positions


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
        CheckpointError: if there is no such model or its weights cannot be read.
    """

    model_type = "backbone"

    @opening()
    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        pretrained: bool = True,
        image_size: int | None = None,
        pool: Pool = "auto",
        resize: Resize | None = None,
        crop_pct: float | None = None,
        interpolation: str | None = None,
        revision: str | None = None,
        weights: str | os.PathLike[str] | None = None,
        backbone_args: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        background: tuple[int, int, int] = (255, 255, 255),
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        name = source_name(source)
        if type(self) is Backbone and name in NAMED and NAMED[name].references == "frames":
            raise ValueError(f"{name!r} reads frames in its own way: open it by idmetric.load({name!r})")
        origin = resolve(
            Request(
                name=name,
                hub=Hub(revision, cache_dir, token, local_files_only),
                view=View(image_size, resize, crop_pct, interpolation),
                pool=pool,
                args=dict(backbone_args or {}),
                pretrained=pretrained,
                weights=weights,
            )
        )
        config = origin.config
        super().__init__(
            name=origin.name,
            revision=origin.revision,
            image_size=(config.image_size, config.image_size),
            mean=config.mean,
            std=config.std,
            interpolation=config.interpolation,
            background=background,
            fit=Fit(config.resize, config.crop_pct),
            files=origin.files,
        )
        self.settings = config
        self.named = None if origin.score is None or origin.score.references == "none" else origin.score
        self._other_filter = interpolation is not None and config.resize == "squash"
        with understanding(origin.name) if origin.is_strangers else nullcontext():
            self.backbone = build(
                config.backbone,
                image_size=config.image_size,
                args=config.backbone_args,
                empty=origin.has_weights,
            )
        self._load(origin, dtype)
        self._finish(device, dtype)

    def _load(self, source: Source, dtype: torch.dtype | None) -> None:
        """Fill the encoder with the weights of its source, if it has any."""
        if source.weights is not None:
            trunk = fitted(read_weights(source.weights), self.backbone, source.config.backbone, source.weights)
            if source.score is not None and source.score.plain_positions:
                trunk["pos_embed"] = self._plain_positions(source.weights)
            load_state(self.backbone, trunk, os.fspath(source.weights), dtype)
        elif source.in_package:
            trunk = efficientnet_lite.read_state(source.name, self.backbone)
            load_state(self.backbone, trunk, source.name, dtype)
        elif source.state is not None:
            load_state(self, source.state, source.name, dtype)

    def _plain_positions(self, weights: str | os.PathLike[str]) -> Tensor:
        """The position embedding in a file, resampled without antialiasing."""
        backbone: Any = self.backbone
        table = pretrained_state(self.settings.backbone, weights, self.settings.backbone_args)["pos_embed"]
        return resample_positions(table, backbone.patch_embed.grid_size)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
        """See `Embedder.forward_features`."""
        return final_tokens(self.backbone, x, self.settings.pool)

    @property
    def short_name(self) -> str:
        """See `Embedder.short_name`."""
        short = super().short_name
        is_folder = self._files is not None and self._files.local
        return f"./{short}" if is_folder and is_timm(short) else short

    @property
    def label(self) -> str:
        """See `Embedder.label`: with a filter or pooling that is not the model's own, and the color of padding."""
        own = self.settings.pool == "auto" or self.short_name in NAMED
        filtered = f"[{self.interpolation}]" if self._other_filter else ""
        pooled = "" if own else f"[{self.settings.pool}]"
        white = self.settings.resize != "pad" or tuple(self.background) == (255, 255, 255)
        return f"{super().label}{filtered}{pooled}{'' if white else f'[on {tuple(self.background)}]'}"

    def config(self) -> dict[str, Any]:
        """See `Embedder.config`."""
        config = super().config()
        if self.settings.resize not in CROPS:
            del config["crop_pct"]
        return config
