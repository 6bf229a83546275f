"""The sources of a `Backbone`: published scores, installed packages, timm, Hub repositories, and saved models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.config import check, check_arguments, check_view
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.folder import Files
from idmetric.metric.checkpoints.revision import Hub, revision_of
from idmetric.metric.files import StrPath
from idmetric.metric.files.lazy import LazyModule
from idmetric.metric.images.fit import CROPS, Fit, Resize
from idmetric.metric.images.kinds import check_interpolation
from idmetric.metric.models import efficientnet_lite
from idmetric.metric.models.named import NAMED, NamedScore
from idmetric.metric.models.timm_encoders import build, is_timm, pretrained_config
from idmetric.metric.models.timm_weights import pretrained_file
from idmetric.metric.models.tokens import Pool

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
        files: the folder or repository of a saved model.
        score: the published score of that name.
    """

    name: str
    config: BackboneConfig
    revision: str = ""
    weights: StrPath | None = None
    state: dict[str, Tensor] | None = None
    files: Files | None = None
    score: NamedScore | None = None

    @property
    def is_strangers(self) -> bool:
        """Whether the settings come from a file, which may be anybody's."""
        return self.files is not None or self.name.startswith(HUB)


def resolve(name: str, choices: Choices, hub: Hub, *, pretrained: bool, weights: StrPath | None) -> EncoderSource:
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
        hub = replace(hub, revision=revision or hub.revision)
        files = Files(name.removeprefix(HUB), hub, published=True)
        config = _hub_config(name, files, choices)
        if needs_weights:
            weights = files.optional(checkpoint.WEIGHTS)
            if weights is None:
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


def _saved_model(name: str, choices: Choices, hub: Hub, weights: StrPath | None) -> EncoderSource:
    """A folder or repository in our own format; the user's choices go before the saved ones, except for the size."""
    saved = checkpoint.read(Files(name, hub))
    config = checkpoint.parse(BackboneConfig, saved, "backbone")
    for setting in ("resize", "crop_pct", "interpolation"):
        choice: Any = getattr(choices, setting)
        if choice is not None:
            config = replace(config, **{setting: choice})
    if weights is not None:
        revision = _revision(weights)
        return EncoderSource(saved.name, config, revision, weights, files=saved.files)
    return EncoderSource(saved.name, config, saved.revision, state=saved.state, files=saved.files)


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


def _hub_config(name: str, files: Files, choices: Choices) -> BackboneConfig:
    """The settings of a config.json in timm's format."""
    published = checkpoint.read_json(files[checkpoint.CONFIG])
    try:
        architecture = published["architecture"]
        if not timm.is_model(architecture):
            raise ValueError(f"timm has no model {architecture!r}")
        facts = {**published.get("pretrained_cfg", published)}
        facts["num_classes"] = published.get("num_classes", facts.get("num_classes"))
        args = published.get("model_args") or {}
        check_arguments(args)
        config = _config(architecture, facts, replace(choices, backbone_args={**args, **choices.backbone_args}))
        check(BackboneConfig, asdict(config))
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
