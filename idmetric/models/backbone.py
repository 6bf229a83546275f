"""Any timm encoder: as the trunk of our models, and by itself as a frozen baseline."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.checkpoints import format as checkpoint
from idmetric.checkpoints.errors import CheckpointError
from idmetric.checkpoints.hub import Files, Hub, fetch
from idmetric.checkpoints.pth_file import is_pickled, load_pickled_tensors
from idmetric.checkpoints.revision import revision_of
from idmetric.checkpoints.weights import check_finite, check_state, init_empty_weights, load_state, read_finite
from idmetric.io.settings import shown
from idmetric.models import dinov3, efficientnet_lite
from idmetric.models.embedder import Embedder

Pool = Literal["auto", "cls", "avg", "head"]
_SPARE = 100  # parameters that two modules share are saved once
# bytes of buffers that a model may have beyond the size of its weights (in timm at most two thirds of it)
_TABLES = 2**25


def build(
    name: str,
    *,
    image_size: int | None = None,
    args: Mapping[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    empty: bool = False,
) -> nn.Module:
    """A timm model without classifier, with random weights or those of a file in timm's format.

    Args:
        name: timm's name, e.g. "vit_base_patch16_dinov3.lvd1689m".
        image_size: input side in pixels; needed by transformers with a position embedding of fixed size.
        args: more arguments of `timm.create_model`; JSON values only, for they are saved in config.json.
        weights: file with pretrained weights; timm resamples position embeddings to `image_size`.
        empty: leave the parameters without memory (see `init_empty_weights`), where the model can be built so.

    Raises:
        CheckpointError: if timm has no such model or cannot build it so.
    """
    options: dict[str, Any] = {"num_classes": 0, **(args or {})}
    if image_size is not None and pretrained_config(name).fixed_input_size:
        options["img_size"] = image_size
    if weights is not None:
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"file": os.fspath(weights)}}
    try:
        if empty:
            # some models compute with their parameters when they are built (Swin): those are built in full, below
            with contextlib.suppress(RuntimeError), init_empty_weights():
                model: nn.Module = timm.create_model(name, **options)
                if not any(buffer.is_meta for buffer in model.buffers()):
                    return model
        model = timm.create_model(name, **options)
    except CheckpointError:
        raise
    except Exception as error:  # timm's models raise many kinds on arguments that do not fit, failed assertions too
        raise _refused(name, options, error) from error
    if weights is not None:
        check_finite(model.state_dict(), weights)
    return model


def _refused(name: str, options: Mapping[str, Any], error: Exception) -> CheckpointError:
    reason = str(error) or type(error).__name__
    return CheckpointError(f"timm cannot build {name!r} with {shown(options)}: {reason}")


def check_fit(name: str, state: Mapping[str, Tensor], source: str, *, image_size: int, args: Mapping[str, Any]) -> None:
    """Check that a checkpoint's settings describe its weights, before memory is taken for a model of that size.

    The model is laid out without memory (torch's device "meta").

    Args:
        name, image_size, args: as for `build`.
        state: the checkpoint's tensors; names of the backbone's start with "backbone.".
        source: the checkpoint, for messages.

    Raises:
        CheckpointError: naming tensors that differ, or buffers much larger than the weights; if it cannot be laid out.
    """
    own = {key: value for key, value in state.items() if key.startswith("backbone.")}
    options: dict[str, Any] = {"num_classes": 0, **args}
    if pretrained_config(name).fixed_input_size:
        options["img_size"] = image_size
    size = sum(value.numel() * value.element_size() for value in own.values())
    with torch.device("meta"), init_empty_weights(len(own) + _SPARE, _TABLES + size):
        try:
            model = nn.ModuleDict({"backbone": timm.create_model(name, **options)})
        except CheckpointError as error:
            raise CheckpointError(f"the settings of {source!r} do not describe its weights: {error}") from error
        except Exception as error:  # a model that cannot be laid out is not built: its memory would have no bound
            raise _refused(name, options, error) from error
    check_state(model, own, source)


def is_timm(source: str) -> bool:
    """Whether this names a timm model; a local folder of that name comes first."""
    return bool(timm.is_model(source.split(".")[0])) and not os.path.isdir(source)


def pretrained_config(name: str) -> Any:
    """timm's record of a model's pretrained weights: input size, normalisation, Hub repository.

    Raises:
        CheckpointError: if timm has no such model.
    """
    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        close = ", ".join(timm.list_models(f"*{architecture[:12]}*")[:5])
        raise CheckpointError(f"timm has no model {name!r}" + (f"; it has {close}, ..." if close else ""))
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return config or timm.get_pretrained_cfg(architecture)


def pretrained_file(name: str, hub: Hub = Hub()) -> str:  # noqa: B008  # immutable
    """The pretrained weights of a timm model, downloaded once from its Hub repository.

    Raises:
        CheckpointError: if timm knows no Hub repository for it, or it cannot be fetched.
    """
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

    Raises:
        CheckpointError: if the file cannot be read, or its tensors do not fit the model.
    """
    return fitted(name, read_weights(weights), weights, args)


def fitted(
    name: str, state: dict[str, Tensor], weights: str | os.PathLike[str], args: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Tensors from `read_weights(weights)` under the names of a timm model; raises the same errors.

    DINOv3's query and value biases may be absent from the file, or from the model if they are zero.
    """
    model = build(name, args=args, empty=True)
    state = dinov3.fit_biases(state, model)
    module = sys.modules[timm.model_entrypoint(name.split(".")[0]).__module__]
    if rename := getattr(module, "checkpoint_filter_fn", None):  # names of the authors' files
        state = rename(state, model)
    check_state(model, state, os.fspath(weights))
    return dict(state)


def read_weights(weights: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors or .pth file; those of Meta's DINOv3 under timm's names.

    Raises:
        CheckpointError: if the file cannot be read, or holds the tensors under a prefix.
    """
    if is_pickled(weights):
        try:
            state = load_pickled_tensors(weights)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read weights {os.fspath(weights)!r}: {error}") from error
        check_finite(state, weights)
    else:
        state = read_finite(weights)
    if prefix := next((key.removesuffix("cls_token") for key in state if key.endswith(".cls_token")), ""):
        raise CheckpointError(
            f"{os.fspath(weights)!r} holds the backbone's tensors with the prefix {prefix!r}, as part of another "
            "model: save these tensors alone, without the prefix"
        )
    return dinov3.timm_names(state) if "storage_tokens" in state else state


def last_tokens(model: Any, x: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Output of the last block, before the final norm, as ID-Sim's release reads it.

    Args:
        model: a timm model; x: normalised pixels (B, 3, H, W).

    Returns:
        Global feature (B, D): the class token, or the mean of the feature map for encoders without one. Patch tokens
        (B, P, D) in row-major order, class and register tokens dropped. The patch grid (rows, columns).
    """
    if getattr(model, "num_prefix_tokens", 0):
        [(tokens, prefix)] = model.forward_intermediates(
            x, indices=1, norm=False, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        return prefix[:, 0], tokens, _token_grid(model, x)
    if x.device.type == "cpu":  # convolutions are faster so; to the others it is all the same
        x = x.contiguous(memory_format=torch.channels_last)
    [features] = model.forward_intermediates(x, indices=1, norm=False, output_fmt="NCHW", intermediates_only=True)
    rows, columns = features.shape[-2:]
    return features.mean((2, 3)), features.flatten(2).transpose(1, 2), (rows, columns)


def final_tokens(model: Any, x: Tensor, pool: Pool = "auto") -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Output of the whole encoder, final norm included, as baselines are usually scored.

    Args:
        model, x: as in `last_tokens`.
        pool: global feature: "cls" the class token, "avg" the mean of the patches, "head" timm's own pooling and
            pre-classifier (SigLIP's attention pooling; CLIP's projection when the model kept its head), "auto" the
            class token where there is one, else timm's.

    Returns:
        As `last_tokens`.
    """
    features = model.forward_features(x)
    if features.ndim == 4:
        if getattr(model, "output_fmt", "NCHW") == "NHWC":
            rows, columns = features.shape[1:3]
            tokens = features.flatten(1, 2)
        else:
            rows, columns = features.shape[2:]
            tokens = features.flatten(2).transpose(1, 2)
        grid, prefix = (rows, columns), 0
    else:
        prefix = int(getattr(model, "num_prefix_tokens", 0))
        tokens, grid = features[:, prefix:], _token_grid(model, x)
    has_class_token = prefix > 0 and getattr(model, "cls_token", None) is not None
    if pool == "cls" and not has_class_token:
        raise ValueError(f"{type(model).__name__} has no class token to pool: choose pool='avg' or 'head'")
    if pool == "cls" or (pool == "auto" and has_class_token):
        return features[:, 0], tokens, grid
    if pool == "avg":
        return tokens.mean(1), tokens, grid
    return model.forward_head(features, pre_logits=pool == "auto"), tokens, grid


def stage_tokens(model: Any, x: Tensor, stages: Sequence[int]) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Output of a whole convolutional encoder, with patch tokens from the feature maps of some of its stages.

    Deep maps know what an object is, earlier ones are finer. The maps are resized to the first stage's grid, and the
    centred, unit-length vectors of each place are joined.

    Args:
        model, x: as in `last_tokens`.
        stages: numbers of timm's feature stages (`model.feature_info`), the finest first.

    Returns:
        As `last_tokens`, with D of the patches as `stage_channels`.
    """
    if x.device.type == "cpu":
        x = x.contiguous(memory_format=torch.channels_last)
    final, maps = model.forward_intermediates(x, indices=list(stages), norm=False, output_fmt="NCHW")

    rows, columns = maps[0].shape[-2:]
    tokens = []
    for found in maps:
        resized = F.interpolate(found, (rows, columns), mode="bilinear", align_corners=False)
        vectors = resized.flatten(2).transpose(1, 2)
        tokens.append(F.normalize(vectors - vectors.mean(-1, keepdim=True), dim=-1))
    return model.forward_head(final, pre_logits=True), torch.cat(tokens, -1), (rows, columns)


def stage_channels(model: Any, stages: Sequence[int]) -> int:
    """Channels of the patch tokens of `stage_tokens`.

    Raises:
        CheckpointError: if the encoder has no such stages.
    """
    known = getattr(model, "feature_info", [])
    if getattr(model, "num_prefix_tokens", 0) or not all(0 <= stage < len(known) for stage in stages):
        raise CheckpointError(f"patch_stages = {list(stages)}: {type(model).__name__} has no such feature maps")
    return sum(int(known[stage]["num_chs"]) for stage in stages)


def _token_grid(model: Any, x: Tensor) -> tuple[int, int]:
    embed = model.patch_embed
    rows, columns = embed.dynamic_feat_size(x.shape[-2:]) if hasattr(embed, "dynamic_feat_size") else embed.grid_size
    return int(rows), int(columns)


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


class Backbone(Embedder):
    """A frozen timm encoder, e.g. `Backbone("vit_base_patch16_dinov3.lvd1689m")`, as a baseline.

    Args:
        source: timm's model name (weights from its Hub repository), "efficientnet-lite0", "-lite1" or "-lite2" (weights
            from an installed package, see `idmetric.models.efficientnet_lite`), a folder written by `save_pretrained`,
            or a Hub repository with such files.
        pretrained: False for random weights (needs a timm name).
        image_size: input side in pixels; default: the model's own.
        pool: which global feature `cls` compares, see `final_tokens`.
        revision: commit of the Hub repository.
        weights: local file with the timm model's weights, instead of the Hub's.
        backbone_args: more arguments of `timm.create_model`.
        device: default CUDA, else MPS, else CPU. dtype: default float32.
        background: colour under transparent images.
        cache_dir, token, local_files_only: see `idmetric.checkpoints.hub.Hub`.

    Raises:
        CheckpointError: if there is no such model or its weights cannot be read.
    """

    model_type = "backbone"

    @torch.inference_mode(False)  # otherwise a later backward pass could not use the weights
    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        pretrained: bool = True,
        image_size: int | None = None,
        pool: Pool = "auto",
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
        name = os.fspath(source)
        hub = Hub(revision, cache_dir, token, local_files_only)
        state, exact, files = None, "", None
        if is_timm(name):
            config = _timm_config(name, image_size, pool, dict(backbone_args or {}))
            if pretrained and weights is None:
                weights = pretrained_file(name, hub)
            if weights is not None:
                exact = revision_of(weights)
        elif name in efficientnet_lite.FILES:
            config = _timm_config(efficientnet_lite.timm_name(name), image_size, pool, dict(backbone_args or {}))
            if pretrained and weights is None:
                model = build(config.backbone, args=config.backbone_args, empty=True)
                state = {f"backbone.{key}": value for key, value in efficientnet_lite.read_state(name, model).items()}
                exact = revision_of(efficientnet_lite.weights_file(name))
        else:
            saved = checkpoint.read(Files(name, hub))
            config = checkpoint.parse(BackboneConfig, saved, self.model_type)
            name, exact, state, files = saved.name, saved.revision, saved.state, saved.files
        super().__init__(
            name=name,
            revision=exact,
            image_size=(config.image_size, config.image_size),
            mean=config.mean,
            std=config.std,
            interpolation=config.interpolation,
            background=background,
            files=files,
        )
        self.settings = config
        if state is not None:
            check_fit(config.backbone, state, name, image_size=config.image_size, args=config.backbone_args)
        self.backbone = build(
            config.backbone, image_size=config.image_size, args=config.backbone_args, weights=weights,
            empty=state is not None,
        )  # fmt: skip
        if state is not None:
            load_state(self, state, name, dtype)
        self._finish(device, dtype)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """See `Embedder.forward_features`."""
        return final_tokens(self.backbone, x, self.settings.pool)

    def config(self) -> dict[str, Any]:
        """See `Embedder.config`."""
        return asdict(self.settings)


def _timm_config(name: str, image_size: int | None, pool: Pool, args: dict[str, Any]) -> BackboneConfig:
    cfg = pretrained_config(name)
    if pool == "head" and cfg.num_classes:
        args.setdefault("num_classes", cfg.num_classes)
    return BackboneConfig(
        backbone=name,
        image_size=image_size or cfg.input_size[-1],
        mean=tuple(cfg.mean),
        std=tuple(cfg.std),
        interpolation=cfg.interpolation if cfg.interpolation in ("bilinear", "bicubic") else "bicubic",
        pool=pool,
        backbone_args=args,
    )
