"""The sources of a `Backbone`: published scores, installed packages, timm, Hub repositories, and saved models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.config import check, check_arguments, check_view
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.hub import Files, Hub
from idmetric.metric.checkpoints.revision import revision_of
from idmetric.metric.files.lazy import LazyModule
from idmetric.metric.images.fit import CROPS, Fit, Resize
from idmetric.metric.images.kinds import check_interpolation
from idmetric.metric.models import efficientnet_lite
from idmetric.metric.models.named import NAMED, NamedScore
from idmetric.metric.models.timm_encoders import is_timm, pretrained_config, pretrained_file
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
class View:
    """How a user wants images to be seen; None: as the weights' own settings say."""

    image_size: int | None = None
    resize: Resize | None = None
    crop_pct: float | None = None
    interpolation: str | None = None


@dataclass(frozen=True)
class Request:
    """The arguments of a `Backbone` that decide what is loaded.

    Attributes:
        args: more arguments of `timm.create_model`.
        weights: the file that the user named instead of the source's own.
    """

    name: str
    hub: Hub
    view: View
    pool: Pool
    args: dict[str, Any]
    pretrained: bool
    weights: str | os.PathLike[str] | None

    @property
    def wants_pretrained(self) -> bool:
        """Whether the source's own weights are to be loaded."""
        return self.pretrained and self.weights is None


@dataclass(frozen=True)
class Source:
    """What a name stands for: settings, and at most one of `weights`, `state` and `in_package`.

    Attributes:
        name: without a revision.
        revision: which exact weights; "" for random ones.
        weights: a file with the encoder's weights in timm's format.
        state: the tensors of a saved model.
        in_package: whether the weights come with the installed package of `models.efficientnet_lite`.
        files: the folder or repository of a saved model.
        score: the published score of that name.
    """

    name: str
    config: BackboneConfig
    revision: str = ""
    weights: str | os.PathLike[str] | None = None
    state: dict[str, Tensor] | None = None
    in_package: bool = False
    files: Files | None = None
    score: NamedScore | None = None

    @property
    def has_weights(self) -> bool:
        """Whether weights will be loaded."""
        return self.weights is not None or self.state is not None or self.in_package

    @property
    def is_strangers(self) -> bool:
        """Whether the settings come from a file, which may be anybody's."""
        return self.files is not None or self.name.startswith(HUB)


def resolve(request: Request) -> Source:
    """Find what a name stands for, and download its weights.

    Raises:
        CheckpointError: if there is no such model, or its files cannot be read.
        ValueError: for settings that a published score has fixed.
    """
    if request.name in NAMED:
        return _published_score(request)
    if request.name in efficientnet_lite.FILES:
        return _installed_package(request)
    if is_timm(request.name):
        return _timm_model(request, request.name)
    if request.name.startswith(HUB):
        return _hub_repository(request)
    return _saved_model(request)


def _published_score(request: Request) -> Source:
    score = NAMED[request.name]
    if request.pool != "auto" or request.view != View():
        raise ValueError(f"{request.name!r} sets pool, image_size, resize, crop_pct and interpolation itself")
    view = View(score.image_size, score.fit.resize, score.fit.crop_pct, score.interpolation)
    args = {**score.backbone_args, **request.args}
    source = _timm_model(replace(request, view=view, pool=score.pool, args=args), score.backbone)
    return replace(source, score=score)


def _installed_package(request: Request) -> Source:
    config = _timm_config(request, efficientnet_lite.timm_name(request.name))
    if request.wants_pretrained:
        file = efficientnet_lite.weights_file(request.name)
        return Source(request.name, config, revision_of(file), in_package=True)
    return _with_weights(request.name, config, request.weights)


def _timm_model(request: Request, architecture: str) -> Source:
    config = _timm_config(request, architecture)
    weights = pretrained_file(architecture, request.hub) if request.wants_pretrained else request.weights
    return _with_weights(request.name, config, weights)


def _hub_repository(request: Request) -> Source:
    """A repository in timm's format, with a revision after "@" perhaps."""
    name, _, pinned = request.name.partition("@")
    hub = request.hub
    if pinned:
        if hub.revision not in (None, pinned):
            raise CheckpointError(f"{name}@{pinned} names another revision than revision={hub.revision!r}")
        hub = replace(hub, revision=pinned)
    files = Files(name.removeprefix(HUB), hub, published=True)
    config = _hub_config(request, name, checkpoint.read_json(files[checkpoint.CONFIG]))

    weights = request.weights
    if request.wants_pretrained:
        weights = files.optional(checkpoint.WEIGHTS)
        if weights is None:
            raise CheckpointError(
                f"{name!r} has no {checkpoint.WEIGHTS}, and pickled files of the Hub are not read: ask its "
                "owner for safetensors, or pass weights= a file that you trust"
            )
    return _with_weights(name, config, weights)


def _saved_model(request: Request) -> Source:
    """A folder or repository in our own format; the user's view goes before the saved one, except for the size."""
    saved = checkpoint.read(Files(request.name, request.hub))
    config = checkpoint.parse(BackboneConfig, saved, "backbone")
    chosen = {name: value for name, value in vars(request.view).items() if value is not None}
    chosen.pop("image_size", None)  # the size is that of the weights
    config = replace(config, **chosen)
    if request.weights is not None:
        return replace(_with_weights(saved.name, config, request.weights), files=saved.files)
    return Source(saved.name, config, saved.revision, state=saved.state, files=saved.files)


def _with_weights(name: str, config: BackboneConfig, weights: str | os.PathLike[str] | None) -> Source:
    revision = "" if weights is None else revision_of(weights)
    return Source(name, config, revision, weights)


def _timm_config(request: Request, architecture: str) -> BackboneConfig:
    return _config(request, architecture, pretrained_config(architecture).to_dict(), request.args)


def _hub_config(request: Request, name: str, published: dict[str, Any]) -> BackboneConfig:
    """The settings of a config.json in timm's format."""
    try:
        architecture = published["architecture"]
        if not timm.is_model(architecture):
            raise ValueError(f"timm has no model {architecture!r}")
        facts = {**published.get("pretrained_cfg", published)}
        facts["num_classes"] = published.get("num_classes", facts.get("num_classes"))
        args = published.get("model_args") or {}
        check_arguments(args)
        config = _config(request, architecture, facts, {**args, **request.args})
        check(BackboneConfig, asdict(config))
        check_view(config.image_size, config.mean, config.std)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(f"the config of {name!r} does not describe a timm model: {error}") from error
    return config


def _config(request: Request, architecture: str, facts: Mapping[str, Any], args: dict[str, Any]) -> BackboneConfig:
    """The settings of pretrained weights, as timm describes them in `facts`, and the view that the user wants."""
    view = request.view
    if request.pool == "head" and facts.get("num_classes"):
        args.setdefault("num_classes", facts["num_classes"])
    interpolation = facts.get("interpolation")
    if interpolation not in ("bilinear", "bicubic"):
        interpolation = "bicubic"
    return BackboneConfig(
        backbone=architecture,
        image_size=view.image_size or tuple(facts["input_size"])[-1],
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        interpolation=view.interpolation or interpolation,
        pool=request.pool,
        backbone_args=args,
        resize=view.resize or "squash",
        crop_pct=(view.crop_pct or facts.get("crop_pct", 1.0)) if view.resize in CROPS else 1.0,
    )
