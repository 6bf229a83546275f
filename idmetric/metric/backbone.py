"""The sources of a `Backbone`: published scores, installed packages, timm, Hub repositories, and saved models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.config import check_arguments, check_fields, check_view
from idmetric.metric.checkpoints.format import file_of, revision_of
from idmetric.metric.checkpoints.released import source_name
from idmetric.metric.checkpoints.resolve import resolve as folder_of
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.embedder import Embedder, opening
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath
from idmetric.metric.images import CROPS, WHITE, Color, Fit, Resize
from idmetric.metric.lazy import LazyModule
from idmetric.metric.load import tell_apart
from idmetric.metric.named import NAMED, NamedScore
from idmetric.metric.resampling import check_interpolation
from idmetric.metric.timm_models import (
    build,
    fitted,
    is_timm,
    pretrained_config,
    pretrained_file,
    pretrained_state,
    read_weights,
    resample_positions,
)
from idmetric.metric.tiny import efficientnet_lite
from idmetric.metric.tokens import Pool, final_tokens

# Global features and patch tokens of timm's encoders.


timm: Any = LazyModule("timm")

HUB = "hf-hub:"  # before a repository in timm's format, as timm writes it


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


@dataclass(frozen=True)
class Choices:
    """The arguments of a `Backbone` that change its settings; None: as the weights' own settings say."""

    image_size: int | None = None
    resize: Resize | None = None
    crop_pct: float | None = None
    interpolation: str | None = None
    pool: Pool = "auto"
    backbone_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EncoderSource:
    """What a name stands for: settings, and `weights` or `state` unless the weights are random.

    Attributes:
        name: without a revision.
        revision: which exact weights; "" for random ones.
        weights: a file with the encoder's weights in timm's format.
        state: the tensors of the whole model.
        folder: of a saved model.
        score: the published score of that name.
    """

    name: str
    config: BackboneConfig
    revision: str = ""
    weights: StrPath | None = None
    state: dict[str, Tensor] | None = None
    folder: Path | None = None
    score: NamedScore | None = None

    @property
    def is_strangers(self) -> bool:
        """Whether the settings come from a file, which may be anybody's."""
        return self.folder is not None or self.name.startswith(HUB)


def resolve(
    name: str, choices: Choices, hub: Mapping[str, Any], *, pretrained: bool, weights: StrPath | None
) -> EncoderSource:
    """Find what a name stands for, and download its weights; arguments as for `Backbone`.

    Raises:
        CheckpointError: if the model does not exist, or its files cannot be read.
        ValueError: for settings that a published score has fixed.
    """
    if not (name in NAMED or name in efficientnet_lite.FILES or is_timm(name) or name.startswith(HUB)):
        return _saved_model(name, choices, hub, weights)
    needs_weights = pretrained and weights is None

    if name.startswith(HUB):
        name, _, revision = name.partition("@")
        hub = {**hub, "revision": revision or hub["revision"]}
        folder = folder_of(name.removeprefix(HUB), [checkpoint.CONFIG, checkpoint.WEIGHTS], is_on_hub=True, **hub)
        config = _hub_config(name, folder, choices)
        if needs_weights:
            weights = folder / checkpoint.WEIGHTS
            if not weights.is_file():
                raise CheckpointError(
                    f"{name!r} has no {checkpoint.WEIGHTS}, and pickled files of the Hub are not read: ask its "
                    "owner for safetensors, or pass weights= a file that you trust"
                )
        return EncoderSource(name, config, _revision(weights), weights)

    if name in efficientnet_lite.FILES:
        config = _timm_config(efficientnet_lite.timm_name(name), choices)
        if needs_weights:
            trunk = efficientnet_lite.read_state(name, build(config.backbone, args=config.backbone_args, empty=True))
            state = {f"backbone.{key}": value for key, value in trunk.items()}
            return EncoderSource(name, config, revision_of(efficientnet_lite.weights_file(name)), state=state)
        return EncoderSource(name, config, _revision(weights), weights)

    score = NAMED.get(name)
    architecture = name
    if score is not None:
        architecture = score.backbone
        choices = _fixed_choices(name, score, choices)
    config = _timm_config(architecture, choices)
    if needs_weights:
        weights = pretrained_file(architecture, hub)
    return EncoderSource(name, config, _revision(weights), weights, score=score)


def _saved_model(name: str, choices: Choices, hub: Mapping[str, Any], weights: StrPath | None) -> EncoderSource:
    """A folder or repository in our own format; the user's choices go before the saved ones, except for the size."""
    saved = checkpoint.read(folder_of(name, checkpoint.FILES, **hub))
    config = checkpoint.parse(BackboneConfig, saved, "backbone")
    for setting in ("resize", "crop_pct", "interpolation"):
        choice: Any = getattr(choices, setting)
        if choice is not None:
            config = replace(config, **{setting: choice})
    if weights is not None:
        revision = _revision(weights)
        return EncoderSource(name, config, revision, weights, folder=saved.folder)
    return EncoderSource(name, config, saved.revision, state=saved.state, folder=saved.folder)


def _revision(weights: StrPath | None) -> str:
    if weights is None:
        return ""
    return revision_of(weights)


def _fixed_choices(name: str, score: NamedScore, choices: Choices) -> Choices:
    if replace(choices, backbone_args={}) != Choices():
        raise ValueError(f"{name!r} sets pool, image_size, resize, crop_pct and interpolation itself")
    return Choices(
        image_size=score.image_size,
        resize=score.fit.resize,
        crop_pct=score.fit.crop_pct,
        interpolation=score.interpolation,
        pool=score.pool,
        backbone_args={**score.backbone_args, **choices.backbone_args},
    )


def _hub_config(name: str, folder: Path, choices: Choices) -> BackboneConfig:
    """The settings of a config.json in timm's format."""
    published = checkpoint.read_json(file_of(folder, checkpoint.CONFIG))
    try:
        architecture = published["architecture"]
        if not timm.is_model(architecture):
            raise ValueError(f"timm has no model {architecture!r}")
        facts = {**published.get("pretrained_cfg", published)}
        facts["num_classes"] = published.get("num_classes", facts.get("num_classes"))
        args = published.get("model_args") or {}
        check_arguments(args)
        config = _config(architecture, facts, replace(choices, backbone_args={**args, **choices.backbone_args}))
        check_fields(BackboneConfig, asdict(config))
        check_view(config.image_size, config.mean, config.std)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(f"the config of {name!r} does not describe a timm model: {error}") from error
    return config


def _timm_config(architecture: str, choices: Choices) -> BackboneConfig:
    return _config(architecture, pretrained_config(architecture).to_dict(), choices)


def _config(architecture: str, facts: Mapping[str, Any], choices: Choices) -> BackboneConfig:
    """The settings of pretrained weights, as timm describes them in `facts`, and the user's choices."""
    args = dict(choices.backbone_args)
    if choices.pool == "head" and facts.get("num_classes"):
        args.setdefault("num_classes", facts["num_classes"])
    interpolation = choices.interpolation or facts.get("interpolation")
    if choices.interpolation is None and interpolation not in ("bilinear", "bicubic"):
        interpolation = "bicubic"
    crop_pct = 1.0
    if choices.resize in CROPS:
        crop_pct = choices.crop_pct or facts.get("crop_pct", 1.0)
    return BackboneConfig(
        backbone=architecture,
        image_size=choices.image_size or tuple(facts["input_size"])[-1],
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        interpolation=interpolation or "bicubic",
        pool=choices.pool,
        backbone_args=args,
        resize=choices.resize or "squash",
        crop_pct=crop_pct,
    )


# Any timm encoder, frozen, as a baseline.


class Backbone(Embedder):
    """A frozen timm encoder, e.g. `Backbone("vit_base_patch16_dinov3.lvd1689m")`, as a baseline.

    Args:
        source: timm's model name (weights from its Hub repository); "hf-hub:owner/name" for another repository in
            timm's format, with a revision after "@"; a published score of `idmetric.metric.named.NAMED`;
            "efficientnet-lite0", "-lite1" or "-lite2" (weights from an installed package, see
            `models.efficientnet_lite`); a folder written by `save_pretrained`, or a Hub repository with such
            files.
        pretrained: False for random weights (needs a timm name, or the name of a score).
        image_size: input side in pixels; default: the model's own.
        pool: which global feature `cls` compares, see `idmetric.metric.backbone.final_tokens`.
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
        hub = {
            "revision": revision,
            "cache_dir": cache_dir,
            "token": token,
            "local_files_only": local_files_only,
        }
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
            folder=opened.folder,
        )
        self.settings = config
        tell_apart(self)
        if self.is_folder and is_timm(self.short_name):
            self.short_name = f"./{self.short_name}"
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
            label += f"[{self.interpolation}]"
        if self.settings.pool != "auto" and self.short_name not in NAMED:
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
