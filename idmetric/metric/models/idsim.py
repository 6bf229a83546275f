"""ID-Sim (Chae et al., "ID-Sim: An Identity-Focused Similarity Metric", CVPR 2026): architecture and loading.

A ViT's last-block tokens, before its final norm, pass two residual heads (one for the class token, one for the patch
tokens); each vector is centered and L2-normalized. The released models fine-tune DINOv3 or DINOv2 by LoRA, folded into
the weights here. The gated residual, the centering and the pre-norm features are the release's, not in the paper.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.config import MOST_SIDE
from idmetric.metric.checkpoints.errors import CheckpointError, understanding
from idmetric.metric.checkpoints.format import Checkpoint
from idmetric.metric.checkpoints.hub import Files, Hub
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.files.hints import did_you_mean
from idmetric.metric.files.settings import shown
from idmetric.metric.images.kinds import check_interpolation
from idmetric.metric.images.read import Preprocessing
from idmetric.metric.images.resize import resize_antialiased
from idmetric.metric.models import backbone as backbones
from idmetric.metric.models import tokens as token_features
from idmetric.metric.models.embedder import LATER, Embedder, opening
from idmetric.metric.models.released_idsim import read_idsim

TINY = Path(__file__).parent / "weights" / "tiny"
_DEFAULT = "dinov3_vitl16"


@dataclass(frozen=True)
class IDSimConfig:
    """Settings of an `IDSim`, saved in config.json. The defaults are those of the release.

    `mean` and `std` None means those of timm's backbone. `backbone_args` go to `timm.create_model`. `preprocessing`:
    see `IDSim`. The paper leaves open `features`, whether features are the last block's or the backbone's final ones
    (after its norm), `residual`, whether heads have a gated residual, and `center`, whether vectors are centered before
    they are normalized. `patch_stages` are feature maps of a convolutional backbone from which patches are taken
    (`token_features.stage_tokens`), with features="final"; () means those of the last map. `second` is a second
    backbone, with a head of its own, that sees images at `second_size`: the global feature then holds both models'
    features side by side, and its cosine is theirs, of which the second's counts `second_share`.
    """

    backbone: str = "vit_large_patch16_dinov3.lvd1689m"
    image_size: int = 448  # paper C.1
    hidden: int = 512  # width of the heads' hidden layer, paper C.1
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    backbone_args: dict[str, Any] = field(default_factory=dict)
    features: Literal["last-block", "final"] = "last-block"
    residual: bool = True
    center: bool = True
    preprocessing: Preprocessing = field(default="standard", metadata=LATER)
    patch_stages: tuple[int, ...] = field(default=(), metadata=LATER)
    second: str = field(default="", metadata=LATER)
    second_size: int = field(default=0, metadata=LATER)
    second_share: float = field(default=0.5, metadata=LATER)

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)
        if self.patch_stages and self.features != "final":
            raise ValueError(f"patch_stages = {shown(self.patch_stages)} needs features = 'final'")
        if self.second and not (0 < self.second_size <= MOST_SIDE and 0 < self.second_share < 1):
            raise ValueError(
                f"second = {shown(self.second)} needs a second_size of 1 to {MOST_SIDE} pixels, and a second_share "
                "between 0 and 1"
            )


class Head(nn.Module):
    """fc2(silu(fc1(layernorm(x)))) + sigmoid(beta) * x: the release's head, (..., D) to (..., D).

    Without `residual`, fc2(silu(fc1(layernorm(x)))): the "2-layer MLP" of the paper's section 4.1, taken literally.
    """

    def __init__(self, dim: int, hidden: int, residual: bool = True) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.beta_logit = nn.Parameter(torch.tensor(-4.0)) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis."""
        mixed: Tensor = self.fc2(F.silu(self.fc1(self.ln(x))))
        return mixed if self.beta_logit is None else mixed + torch.sigmoid(self.beta_logit) * x


def center_and_normalize(x: Tensor) -> Tensor:
    """Subtract each vector's own mean over its components, then scale to unit length (the release's normalization)."""
    return F.normalize(x - x.mean(-1, keepdim=True), dim=-1)


class IDSim(Embedder):
    """Identity similarity after ID-Sim.

    >>> metric = IDSim("tiny")  # doctest: +SKIP
    >>> metric("reference.jpg", ["a.png", "b.png"])  # distances, shape (2,)  # doctest: +SKIP

    Args:
        source: a released variant ("dinov3_vitl16" (default), "dinov3_vitb16", "dinov2_vitl14", "dinov2_vitb14", also
            with "_cls_patch" at the end, as the release names them), downloaded once; "tiny", the small model inside
            this package; a folder or Hub repository written by `save_pretrained` or by training; a folder with the
            release's four files, also one of the Hub cache; or an `IDSimConfig` for a new, untrained model.
        revision: commit of a Hub repository.
        device: default CUDA, else MPS, else CPU. dtype: default float32.
        background: RGB color (0-255) that shows through transparent images.
        preprocessing: "standard" turns photos by their EXIF orientation, composites transparency on `background` and
            scales 16-bit values; "release" does none of these, like the release, and takes no masks. Default: the
            saved setting, else "standard". Scores of the two never mix: the model's label names "release".
        variant: which release a folder of official files belongs to, if its name does not show it.
        backbone_weights: local file with the backbone, for a release without Hub access: safetensors in timm's format,
            or Meta's .pth.
        backbone_args: more arguments of `timm.create_model`, for a release.
        cache_dir, token, local_files_only: see `checkpoints.hub.Hub`; a cache that the release's own loader
            filled is read as well.
        id_sim_type: the release's name for `source`.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood. No other model is ever loaded instead.
    """

    model_type = "idsim"

    @opening()
    def __init__(
        self,
        source: str | os.PathLike[str] | IDSimConfig = _DEFAULT,
        *,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        background: tuple[int, int, int] = (255, 255, 255),
        preprocessing: Preprocessing | None = None,
        variant: str | None = None,
        backbone_weights: str | os.PathLike[str] | None = None,
        backbone_args: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
        id_sim_type: str | None = None,
    ) -> None:
        source = id_sim_type or source
        saved = None
        if isinstance(source, IDSimConfig):
            config, name = source, "untrained"
        else:
            source = released.source_name(source)
            name = released.short_name(source)
            if cache_dir is not None and (found := released.idsim_cache(cache_dir, name)) is not None:
                source, backbone_weights = found[0], backbone_weights or found[1]
            hub = Hub(revision, cache_dir, token, local_files_only)
            saved = _read(source, hub, variant, backbone_weights, backbone_args)
            config = checkpoint.parse(IDSimConfig, saved, self.model_type)
        if preprocessing is not None:
            config = replace(config, preprocessing=preprocessing)
        mean, std = config.mean, config.std
        if mean is None or std is None:
            cfg = backbones.pretrained_config(config.backbone)
            mean, std = mean or cfg.mean, std or cfg.std
        super().__init__(
            name=name,
            revision=saved.revision if saved else "",
            image_size=(config.image_size, config.image_size),
            mean=mean,
            std=std,
            interpolation=config.interpolation,
            background=background,
            preprocessing=config.preprocessing,
            files=saved.files if saved else None,
        )
        self.settings = config
        if saved is None:
            self._build(config, empty=False)
        else:
            with understanding(saved.name):
                self._build(config, empty=True)
        if saved is not None:
            load_state(self, saved.state, saved.name, dtype)
        self._finish(device, dtype)
        self._round_rope()

    def _build(self, config: IDSimConfig, empty: bool) -> None:
        """Lay the modules out; `empty` leaves the memory of the weights to those that are loaded."""
        trunk: Any = backbones.build(
            config.backbone, image_size=config.image_size, args=config.backbone_args, empty=empty
        )
        self.backbone = trunk
        with torch.device("meta") if empty else nullcontext():
            dim = int(trunk.num_features)
            self.mlp_cls = Head(dim, config.hidden, config.residual)
            stages = config.patch_stages
            patch_dim = token_features.stage_channels(trunk, stages) if stages else dim
            self.mlp_patch = Head(patch_dim, config.hidden, config.residual)
        if config.second:
            second: Any = backbones.build(config.second, image_size=config.second_size, empty=empty)
            self.second = second
            with torch.device("meta") if empty else nullcontext():
                self.mlp_second = Head(int(second.num_features), config.hidden, config.residual)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """See `Embedder.forward_features`; both kinds of feature have unit length."""
        features, patches, grid = self.trunk_features(x)
        return *self.heads(features, patches), grid

    def trunk_features(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """Backbone features (B, D), patch tokens (B, P, D'), and patch grid of normalized pixels (B, 3, H, W).

        With a second backbone, D is the sum of both.
        """
        if self.settings.patch_stages:
            found = token_features.stage_tokens(self.backbone, x, self.settings.patch_stages)
        elif self.settings.features == "last-block":
            found = token_features.last_tokens(self.backbone, x)
        else:
            found = token_features.final_tokens(self.backbone, x)
        if self.settings.second:
            features, patches, grid = found
            size = (self.settings.second_size,) * 2
            x = resize_antialiased(x, size, "bilinear")
            if x.device.type == "cpu":  # convolutions are faster so
                x = x.contiguous(memory_format=torch.channels_last)
            return torch.cat([features, token_features.final_tokens(self.second, x)[0]], -1), patches, grid
        return found

    def heads(self, features: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads on the backbone's features and patch tokens, scaled to unit length."""
        unit = center_and_normalize if self.settings.center else partial(F.normalize, dim=-1)
        own = features.shape[-1] if not self.settings.second else self.mlp_cls.fc2.out_features
        cls = unit(self.mlp_cls(features[..., :own]))
        if self.settings.second:
            share = self.settings.second_share
            second = unit(self.mlp_second(features[..., own:]))
            cls = torch.cat([(1 - share) ** 0.5 * cls, share**0.5 * second], -1)
        return cls, unit(self.mlp_patch(patches))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        self._round_rope()  # timm recomputes the periods when the dtype changes
        return moved

    def _round_rope(self) -> None:
        # Meta's DINOv3 keeps its rotary periods in bfloat16, timm in float32; the models were trained with Meta's
        rope = getattr(getattr(self, "backbone", None), "rope", None)
        periods = getattr(rope, "periods", None)
        if rope is not None and isinstance(periods, Tensor):
            rope.periods = periods.to(torch.bfloat16).to(periods.dtype)


def _read(
    source: str | os.PathLike[str],
    hub: Hub,
    variant: str | None,
    backbone_weights: str | os.PathLike[str] | None,
    backbone_args: Mapping[str, Any] | None,
) -> Checkpoint:
    name = os.fspath(source)
    if name == "tiny":
        return checkpoint.read(Files(TINY, hub))
    release, files = released.find(name, released.IDSIM), released.files_of(name, released.IDSIM, hub)
    if release is None and Path(name, released.ADAPTER_CONFIG).is_file():
        release = released.IDSIM.get(variant or released.idsim_variant(name) or "")
        if release is None:
            raise CheckpointError(
                f"{name!r} holds an ID-Sim adapter, but its name does not show for which backbone: pass variant=, one "
                f"of {', '.join(released.IDSIM)}"
            )
    if release is not None:
        return read_idsim(release, files, backbone_weights=backbone_weights, backbone_args=backbone_args)
    if "/" not in name and not Path(name).is_dir():
        raise CheckpointError(
            f"unknown model {name!r}: choose tiny, {', '.join(released.IDSIM)}, an existing folder, or owner/name on "
            f"the Hub{did_you_mean(name, ['tiny', *released.IDSIM])}"
        )
    return checkpoint.read(files)
