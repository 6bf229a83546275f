"""Any timm encoder: as the trunk of our models, and by itself as a frozen baseline.

Functions raise CheckpointError for what timm or a file does not have, or cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.config import check, check_arguments, check_view
from idmetric.metric.checkpoints.errors import CheckpointError, understanding
from idmetric.metric.checkpoints.hub import Files, Hub, fetch
from idmetric.metric.checkpoints.released import source_name
from idmetric.metric.checkpoints.revision import revision_of
from idmetric.metric.checkpoints.weights import check_state, load_state, read_finite
from idmetric.metric.files.lazy import LazyModule
from idmetric.metric.files.settings import shown
from idmetric.metric.images.fit import CROPS, Fit, Resize
from idmetric.metric.images.kinds import check_interpolation
from idmetric.metric.models import dinov3, efficientnet_lite, lite_trunk
from idmetric.metric.models.devices import opening
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.models.named import NAMED
from idmetric.metric.models.tokens import Pool, final_tokens, resample_positions

timm: Any = LazyModule("timm")  # it takes longer to import than torch, and `lite_trunk` does without

HUB = "hf-hub:"  # before a repository in timm's format, as timm writes it


def build(
    name: str,
    *,
    image_size: int | None = None,
    args: Mapping[str, Any] | None = None,
    empty: bool = False,
) -> nn.Module:
    """A timm model without classifier, with random weights.

    Args:
        name: timm's name, e.g. "vit_base_patch16_dinov3.lvd1689m".
        image_size: input side in pixels; needed by transformers with a position embedding of fixed size.
        args: more arguments of `timm.create_model`; JSON values only, for they are saved in config.json.
        empty: lay the model out without memory for its weights, which `load_state` fills, where timm can.
    """
    check_arguments(args or {})
    lite_name = name.removesuffix(lite_trunk.FOLDED)
    if lite_name in lite_trunk.SCALES and not args:
        with torch.device("meta"):
            lite = lite_trunk.LiteTrunk(name)
        if not empty:  # random weights as timm draws them
            state = timm.create_model(lite_name, num_classes=0).state_dict()
            lite.load_state_dict(state if name == lite_name else lite_trunk.fold(state, lite_name), assign=True)
        return lite
    options: dict[str, Any] = {"num_classes": 0, **(args or {})}
    if image_size is not None and pretrained_config(name).fixed_input_size:
        options["img_size"] = image_size
    try:
        if empty:
            with contextlib.suppress(RuntimeError):  # of models that compute with their parameters when they are built
                if (laid_out := _laid_out(name, options)) is not None:
                    return laid_out
        with torch.random.fork_rng(devices=[], enabled=empty):
            model: nn.Module = timm.create_model(name, **options)
    except Exception as error:  # timm's models raise many kinds on arguments that do not fit, failed assertions too
        reason = str(error) or type(error).__name__
        raise CheckpointError(f"timm cannot build {name!r} with {shown(options)}: {reason}") from error
    return model


def _laid_out(name: str, options: Mapping[str, Any]) -> nn.Module | None:
    """A timm model with tensors on torch's device "meta", except tables that files do not hold; None if timm cannot."""
    with torch.device("meta"):
        model: nn.Module = timm.create_model(name, **options)
    for module in model.modules():
        tables = [key for key in module._non_persistent_buffers_set if module._buffers[key] is not None]
        if any(isinstance(value, Tensor) for value in vars(module).values()):
            return None
        if tables and not hasattr(module, "init_non_persistent_buffers"):
            return None
        for key in tables:
            module._buffers[key] = torch.empty_like(module._buffers[key], device="cpu")  # type: ignore[arg-type]
        if tables:
            module.init_non_persistent_buffers()  # type: ignore[operator]  # timm's
        if any(module._buffers[key].is_meta for key in tables):  # type: ignore[union-attr]  # not None
            return None
    return model


def is_timm(source: str) -> bool:
    """Whether this names a timm model; a local folder of that name is written "./NAME"."""
    return bool(timm.is_model(source.split(".")[0]))


def pretrained_config(name: str) -> Any:
    """timm's record of a model's pretrained weights: input size, normalization, Hub repository."""
    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        close = ", ".join(timm.list_models(f"*{architecture[:12]}*")[:5])
        raise CheckpointError(f"timm has no model {name!r}" + (f"; it has {close}, ..." if close else ""))
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return config or timm.get_pretrained_cfg(architecture)


def pretrained_file(name: str, hub: Hub = Hub()) -> str:  # noqa: B008  # immutable
    """The pretrained weights of a timm model, downloaded once from its Hub repository."""
    config = pretrained_config(name)
    if not config.hf_hub_id:
        raise CheckpointError(f"timm knows no pretrained weights on the Hub for {name!r}")
    return str(fetch(config.hf_hub_id, checkpoint.WEIGHTS, hub))


def pretrained_state(
    name: str, weights: str | os.PathLike[str], args: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """The tensors of a file with a timm model's pretrained weights, under the names of that model, at its own size.

    They stay mapped to the file, without a copy; each is read once, to check that it is finite.

    Args:
        name: the model. args: more arguments of `timm.create_model`.
        weights: a safetensors file in timm's format, or a .pth file as the authors of DINOv2 and DINOv3 publish it.
    """
    return fitted(read_weights(weights), build(name, args=args, empty=True), name, weights)


def fitted(state: dict[str, Tensor], model: nn.Module, name: str, weights: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Tensors from `read_weights(weights)` as exactly those of a timm model, renamed and resampled by timm's filter.

    Only these may differ: tensors of a classifier that the model lacks are left out, DINOv3's query and value biases
    may be absent from the file, or from the model if they are zero, and so may BatchNorm's counts of training steps.

    Args:
        model: from `build`; its own tensors are not read.
        name: timm's name of the model.
        weights: the file, for messages.
    """
    architecture = name.split(".")[0]
    wanted = model.state_dict()
    if "dinov3" in architecture:
        state = dinov3.fit_biases(state, model)

    # the names of the authors' files, and the grid of the position embedding
    module = sys.modules[timm.model_entrypoint(architecture).__module__]
    rename = getattr(module, "checkpoint_filter_fn", None)
    if rename is not None:
        with understanding(weights):
            state = rename(state, model, **_resampling(architecture))

    # the classifier, which `build` leaves out: "head", or a layer in it ("head.fc")
    classifiers = pretrained_config(name).classifier or ()
    for classifier in [classifiers] if isinstance(classifiers, str) else classifiers:
        head = (classifier.rpartition(".")[0] or classifier) + "."
        state = {key: value for key, value in state.items() if key in wanted or not key.startswith(head)}

    # files of older versions of torch lack the counts, which no score depends on
    counts = {key: value for key, value in wanted.items() if key.endswith(".num_batches_tracked")}
    state = {**{key: torch.zeros(value.shape, dtype=value.dtype) for key, value in counts.items()}, **state}

    check_state(model, state, os.fspath(weights))
    return state


def _resampling(architecture: str) -> dict[str, Any]:
    """How timm resamples a position embedding, where it is not by its filter's defaults."""
    bilinear = {"interpolation": "bilinear", "antialias": False}
    if architecture.startswith("flexivit_"):
        return bilinear
    if re.match("vit_.*_radio_", architecture):
        return {**bilinear, "align_corners": architecture in ("vit_base_patch16_radio_v3", "vit_huge_patch16_radio_v3")}
    return {}


def read_weights(weights: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors or .pth file; those of Meta's DINOv3 under timm's names."""
    state = read_finite(weights)
    return dinov3.timm_names(state) if "storage_tokens" in state else state


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
        hub = Hub(revision, cache_dir, token, local_files_only)
        state, exact, files = None, "", None
        view, args = _View(image_size, resize, crop_pct, interpolation), dict(backbone_args or {})
        score, lite = NAMED.get(name), name in efficientnet_lite.FILES
        if score is not None:
            if pool != "auto" or view != _View():
                raise ValueError(f"{name!r} sets pool, image_size, resize, crop_pct and interpolation itself")
            if score.references == "frames" and type(self) is Backbone:
                raise ValueError(f"{name!r} reads frames in its own way: open it by idmetric.load({name!r})")
            view, pool = _View(score.image_size, score.fit.resize, score.fit.crop_pct, score.interpolation), score.pool
            args = {**score.backbone_args, **args}

        if score is not None or lite or is_timm(name):
            architecture = score.backbone if score is not None else efficientnet_lite.timm_name(name) if lite else name
            config = _config(architecture, pretrained_config(architecture).to_dict(), view, pool, args)
            if pretrained and weights is None and lite:
                exact = revision_of(efficientnet_lite.weights_file(name))
            elif pretrained and weights is None:
                weights = pretrained_file(architecture, hub)
        elif name.startswith(HUB):
            name, config, found = _hub_model(name, hub, view, pool, args)
            if pretrained and weights is None:
                weights = found
                if weights is None:
                    raise CheckpointError(
                        f"{name!r} has no {checkpoint.WEIGHTS}, and pickled files of the Hub are not read: ask its "
                        "owner for safetensors, or pass weights= a file that you trust"
                    )
        else:
            saved = checkpoint.read(Files(name, hub))
            config = checkpoint.parse(BackboneConfig, saved, self.model_type)
            given = {key: value for key, value in vars(view).items() if value is not None and key != "image_size"}
            config = replace(config, **given)  # the size is that of the weights
            name, exact, state, files = saved.name, saved.revision, saved.state, saved.files
        if weights is not None and not exact:
            exact = revision_of(weights)
        super().__init__(
            name=name,
            revision=exact,
            image_size=(config.image_size, config.image_size),
            mean=config.mean,
            std=config.std,
            interpolation=config.interpolation,
            background=background,
            fit=Fit(config.resize, config.crop_pct),
            files=files,
        )
        self.settings = config
        self._other_filter = interpolation is not None and config.resize == "squash"
        pretrained_lite = lite and pretrained and weights is None
        is_strangers = files is not None or name.startswith(HUB)
        with understanding(name) if is_strangers else contextlib.nullcontext():
            self.backbone = build(
                config.backbone,
                image_size=config.image_size,
                args=config.backbone_args,
                empty=state is not None or weights is not None or pretrained_lite,
            )
        if weights is not None:
            trunk = fitted(read_weights(weights), self.backbone, config.backbone, weights)
            if score is not None and score.plain_positions:
                table = pretrained_state(config.backbone, weights, config.backbone_args)["pos_embed"]
                grid: Any = self.backbone.patch_embed.grid_size  # type: ignore[union-attr]
                trunk["pos_embed"] = resample_positions(table, grid)
            load_state(self.backbone, trunk, os.fspath(weights), dtype)
        elif pretrained_lite:
            load_state(self.backbone, efficientnet_lite.read_state(name, self.backbone), name, dtype)
        elif state is not None:
            load_state(self, state, name, dtype)
        self.named = None if score is not None and score.references == "none" else score
        self._finish(device, dtype)

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
        found = super().config()
        if self.settings.resize not in CROPS:
            del found["crop_pct"]
        return found


@dataclass(frozen=True)
class _View:
    """How a user wants images to be seen; None: as the weights' own settings say."""

    image_size: int | None = None
    resize: Resize | None = None
    crop_pct: float | None = None
    interpolation: str | None = None


def _hub_model(
    name: str, hub: Hub, view: _View, pool: Pool, args: dict[str, Any]
) -> tuple[str, BackboneConfig, Path | None]:
    """A Hub repository in timm's format: its name without revision, the settings, and the file of weights, if any."""
    name, _, pinned = name.partition("@")
    if pinned:
        if hub.revision not in (None, pinned):
            raise CheckpointError(f"{name}@{pinned} names another revision than revision={hub.revision!r}")
        hub = replace(hub, revision=pinned)
    files = Files(name.removeprefix(HUB), hub, published=True)
    found = checkpoint.read_json(files[checkpoint.CONFIG])
    try:
        if not timm.is_model(found["architecture"]):
            raise ValueError(f"timm has no model {found['architecture']!r}")
        own, about = found.get("model_args") or {}, {**found.get("pretrained_cfg", found)}
        about["num_classes"] = found.get("num_classes", about.get("num_classes"))
        check_arguments(own)
        config = _config(found["architecture"], about, view, pool, {**own, **args})
        check(BackboneConfig, asdict(config))
        check_view(config.image_size, config.mean, config.std)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(f"the config of {name!r} does not describe a timm model: {error}") from error
    return name, config, files.optional(checkpoint.WEIGHTS)


def _config(backbone: str, about: Mapping[str, Any], view: _View, pool: Pool, args: dict[str, Any]) -> BackboneConfig:
    """The settings of pretrained weights, as timm describes them, and the view that the user wants."""
    if pool == "head" and about.get("num_classes"):
        args.setdefault("num_classes", about["num_classes"])
    own = about.get("interpolation")
    return BackboneConfig(
        backbone=backbone,
        image_size=view.image_size or tuple(about["input_size"])[-1],
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        interpolation=view.interpolation or (own if own in ("bilinear", "bicubic") else "bicubic"),
        pool=pool,
        backbone_args=args,
        resize=view.resize or "squash",
        crop_pct=(view.crop_pct or about.get("crop_pct", 1.0)) if view.resize in CROPS else 1.0,
    )
