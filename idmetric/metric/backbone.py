"""`Backbone`: any encoder that timm has, frozen, as a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.config import check_arguments, check_fields, check_view
from idmetric.metric.checkpoints.format import revision_of
from idmetric.metric.checkpoints.released import source_name
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.embedder import Embedder, opening
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath
from idmetric.metric.images import CROPS, WHITE, Color, Fit, Resize, check_interpolation
from idmetric.metric.load import known
from idmetric.metric.named import NAMED
from idmetric.metric.timm_models import (
    Features,
    Pool,
    build,
    final_tokens,
    fitted,
    is_timm,
    pretrained_config,
    pretrained_file,
    read_weights,
    resample_positions,
)
from idmetric.metric.tiny import efficientnet_lite

HUB = "hf-hub:"  # before a repository in timm's format, as timm writes it
_FILES = (checkpoint.CONFIG, checkpoint.WEIGHTS)  # of such a repository


@dataclass(frozen=True)
class BackboneConfig:
    """Settings of a `Backbone`, saved in config.json."""

    backbone: str
    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    pool: Pool = "auto"
    backbone_args: dict[str, Any] = field(default_factory=dict)
    resize: Resize = "squash"
    crop_pct: float = 1.0

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)
        Fit(self.resize, self.crop_pct)  # raises


class Backbone(Embedder):
    """A frozen timm encoder, e.g. `Backbone("vit_base_patch16_dinov3.lvd1689m")`, as a baseline.

    Args:
        source: timm's model name (weights from its Hub repository); "hf-hub:owner/name" for another repository in
            timm's format, with a revision after "@"; a published score of `idmetric.metric.named.NAMED`;
            "efficientnet-lite0", "-lite1" or "-lite2" (weights from an installed package, see
            `tiny.efficientnet_lite`); a folder written by `save_pretrained`, or a Hub repository with such files.
        pretrained: False for random weights (needs a timm name, or the name of a score).
        image_size: input side in pixels; default: the model's own.
        pool: which global feature `cls` compares, see `idmetric.metric.timm_models.final_tokens`.
        resize: "squash" (default) changes both sides to `image_size`; "crop" resizes the shorter side and cuts out the
            center, as torchvision's Resize and CenterCrop; "hub-crop" as transformers' image processors.
        crop_pct: with a crop, the share of the shorter side that is kept; default: that of the pretrained weights.
        interpolation: "bicubic" or "bilinear"; default: that of the pretrained weights.
        weights: local file with the timm model's weights, instead of the Hub's: safetensors, or a .pth file that holds
            a table of tensors alone.
        backbone_args: more arguments of `timm.create_model`.
        background: color under transparent images.
        revision, device, dtype, cache_dir, token, local_files_only: as for `IDSim`.

    Raises:
        CheckpointError: if the model does not exist or its weights cannot be read.
        ValueError: for settings that a published score has fixed, or arguments that would have timm read files.
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
        hub: dict[str, Any] = {
            "revision": revision,
            "cache_dir": cache_dir,
            "token": token,
            "local_files_only": local_files_only,
        }
        if name.startswith(HUB):
            name, _, commit = name.partition("@")
            hub["revision"] = commit or revision
        args = dict(backbone_args or {})
        check_arguments(args)
        options = {
            "image_size": image_size,
            "pool": None if pool == "auto" else pool,
            "resize": resize,
            "crop_pct": crop_pct,
            "interpolation": interpolation,
        }
        choices: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
        score = NAMED.get(name)
        if score is not None:
            if choices:
                raise ValueError(f"{name!r} sets {', '.join(options)} itself")
            choices = dict(score.options)
            args = {**score.backbone_args, **args}

        # the settings of the weights, and then the user's
        saved = None
        file = weights
        if score is not None or name in efficientnet_lite.FILES or name.startswith(HUB) or is_timm(name):
            record = _record_of(name, hub)
            if pretrained and weights is None:
                file = _weights_of(name, hub)
            with understanding(name):
                config = _config_of(record, choices)
        else:
            saved = checkpoint.read(resolve(name, checkpoint.FILES, **hub))
            config = checkpoint.parse(BackboneConfig, saved, self.model_type)
        config = replace(config, **choices, backbone_args={**config.backbone_args, **args})
        if config.resize not in CROPS:
            config = replace(config, crop_pct=1.0)
        weights_revision = ""
        if file is not None:
            weights_revision = revision_of(file)
        elif saved is not None:
            weights_revision = saved.revision

        super().__init__(
            name=name,
            revision=weights_revision,
            image_size=(config.image_size, config.image_size),
            mean=config.mean,
            std=config.std,
            interpolation=config.interpolation,
            background=background,
            fit=Fit(config.resize, config.crop_pct),
            folder=saved.folder if saved is not None else None,
        )
        self.settings = config
        self._has_other_filter = interpolation is not None and config.resize == "squash"
        if self.is_folder and (known(self.short_name) or is_timm(self.short_name)):
            self.short_name = f"./{self.short_name}"
        if score is not None and score.references != "none":
            self.named = score

        # the encoder, and its weights
        is_random = file is None and saved is None
        with understanding(name):
            trunk: Any = build(
                config.backbone, image_size=config.image_size, args=config.backbone_args, empty=not is_random
            )
        self.backbone = trunk
        if file is not None:
            if name in efficientnet_lite.FILES and weights is None:
                tensors = efficientnet_lite.read_state(name, trunk)
            else:
                tensors = read_weights(file)
            has_plain_positions = score is not None and score.plain_positions
            if has_plain_positions and "pos_embed" in tensors:  # otherwise timm resamples them
                tensors["pos_embed"] = resample_positions(tensors["pos_embed"], trunk.patch_embed.grid_size)
            load_state(trunk, fitted(tensors, trunk, config.backbone, file), file, dtype)
        elif saved is not None:
            load_state(self, saved.state, name, dtype)
        self._finish(device, dtype)

    def forward_features(self, x: Tensor) -> Features:
        """See `Embedder.forward_features`."""
        return final_tokens(self.backbone, x, self.settings.pool)

    @property
    def label(self) -> str:
        """See `Embedder.label`: with a filter or pooling that is not the model's own."""
        label = super().label
        if self._has_other_filter:
            label += f"[{self.interpolation}]"
        if self.settings.pool != "auto" and self.short_name not in NAMED:
            label += f"[{self.settings.pool}]"
        return label


def _architecture_of(name: str) -> str:
    """timm's name of the encoder of a published score or a package."""
    if name in NAMED:
        return NAMED[name].backbone
    if name in efficientnet_lite.FILES:
        return efficientnet_lite.timm_name(name)
    return name


def _record_of(name: str, hub: Mapping[str, Any]) -> dict[str, Any]:
    """timm's record of published weights, with the architecture: of timm itself, or a repository's config.json."""
    if name.startswith(HUB):
        folder = resolve(name.removeprefix(HUB), _FILES, is_on_hub=True, **hub)
        return checkpoint.read_json(checkpoint.file_of(folder, checkpoint.CONFIG))
    architecture = _architecture_of(name)
    return {**pretrained_config(architecture).to_dict(), "architecture": architecture}


def _weights_of(name: str, hub: Mapping[str, Any]) -> Path:
    """The file with published weights, fetched once."""
    if name in efficientnet_lite.FILES:
        return efficientnet_lite.weights_file(name)
    if not name.startswith(HUB):
        return pretrained_file(_architecture_of(name), hub)
    file = resolve(name.removeprefix(HUB), _FILES, is_on_hub=True, **hub) / checkpoint.WEIGHTS
    if not file.is_file():
        raise CheckpointError(
            f"{name!r} has no {checkpoint.WEIGHTS}, and pickled files of the Hub are not read: ask its owner for "
            "safetensors, or pass weights= a file that you trust"
        )
    return file


def _config_of(record: Mapping[str, Any], choices: Mapping[str, Any]) -> BackboneConfig:
    """The settings in timm's record of published weights, which may be anybody's; ValueError and the like for others.

    Args:
        choices: those of the user, by which the share of a crop counts, and whether timm's classifier is kept.
    """
    facts = {**record.get("pretrained_cfg", {}), **record}
    pretrained_config(facts["architecture"])  # raises for a model that timm lacks
    args = dict(facts.get("model_args") or {})
    check_arguments(args)
    if choices.get("pool") == "head" and facts.get("num_classes"):  # which may be a projection, such as CLIP's
        args.setdefault("num_classes", facts["num_classes"])
    interpolation = facts.get("interpolation")
    if interpolation not in ("bilinear", "bicubic"):
        interpolation = "bicubic"
    crop_pct = 1.0
    if choices.get("resize") in CROPS:
        crop_pct = facts.get("crop_pct") or 1.0
    config = BackboneConfig(
        backbone=facts["architecture"],
        image_size=tuple(facts["input_size"])[-1],
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        interpolation=interpolation,
        backbone_args=args,
        crop_pct=crop_pct,
    )
    check_fields(BackboneConfig, asdict(config))
    check_view(config.image_size, config.mean, config.std)
    return config
