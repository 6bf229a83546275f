"""ID-Sim (Chae et al., "ID-Sim: An Identity-Focused Similarity Metric", CVPR 2026): architecture and loading.

A ViT's last-block tokens, before its final norm, pass two residual heads (one for the class token, one for the patch
tokens); each vector is centered and L2-normalized. The released models fine-tune DINOv3 or DINOv2 by LoRA, folded into
the weights here. The gated residual, the centering and the pre-norm features are the release's, not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.embedder import Embedder, opening
from idmetric.metric.errors import CheckpointError, RequestError, understanding
from idmetric.metric.files import StrPath
from idmetric.metric.idsim_config import IDSimConfig
from idmetric.metric.images import WHITE, Color, Preprocessing
from idmetric.metric.timm_models import build, pretrained_config
from idmetric.metric.tiny import tiny
from idmetric.metric.tiny.tiny import TinyConfig
from idmetric.metric.tokens import Features, final_tokens, last_tokens

__all__ = ["Head", "IDSim", "IDSimConfig", "center_and_normalize"]


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
        if self.beta_logit is None:
            return mixed
        return mixed + torch.sigmoid(self.beta_logit) * x


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
        cache_dir, token, local_files_only: see `checkpoints.resolve`.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood. No other model is ever loaded instead.
    """

    model_type = "idsim"

    @opening()
    def __init__(
        self,
        source: StrPath | IDSimConfig = "dinov3_vitl16",
        *,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        background: Color = WHITE,
        preprocessing: Preprocessing | None = None,
        variant: str | None = None,
        backbone_weights: StrPath | None = None,
        backbone_args: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        saved: Checkpoint | None
        if isinstance(source, IDSimConfig):
            config, name = source, "untrained"
            saved = None
        else:
            if source == "tiny":
                if backbone_weights is not None:
                    raise RequestError("IDSim('tiny') holds all of its weights: leave out backbone_weights")
                if revision is not None:
                    raise CheckpointError(f"IDSim('tiny') is in the package, and has no revision {revision!r}")
                name, saved = "tiny", checkpoint.read(tiny.TINY)
            else:
                from idmetric.metric.idsim_release import read_checkpoint

                hub = {
                    "revision": revision,
                    "cache_dir": cache_dir,
                    "token": token,
                    "local_files_only": local_files_only,
                }
                name, saved = read_checkpoint(source, hub, variant, backbone_weights, backbone_args)
            config = checkpoint.parse(tiny.config_class(saved.config), saved, self.model_type)
        if preprocessing is not None:
            config = replace(config, preprocessing=preprocessing)

        super().__init__(
            name=name,
            revision=saved.revision if saved else "",
            image_size=(config.image_size, config.image_size),
            mean=config.mean or pretrained_config(config.backbone).mean,
            std=config.std or pretrained_config(config.backbone).std,
            interpolation=config.interpolation,
            background=background,
            preprocessing=config.preprocessing,
            folder=saved.folder if saved else None,
        )
        self.settings = config
        if self.is_folder:
            from idmetric.metric.load import tell_apart

            tell_apart(self)
        if saved is None:
            self._build(config, empty=False)
        else:
            with understanding(saved.folder):
                self._build(config, empty=True)
            load_state(self, saved.state, saved.folder, dtype)
        self._finish(device, dtype)
        self._round_rope()

    def _build(self, config: IDSimConfig, empty: bool) -> None:
        """Lay the modules out; `empty` allocates no memory for weights, which are loaded afterwards."""
        trunk: Any = build(config.backbone, image_size=config.image_size, args=config.backbone_args, empty=empty)
        make_head = partial(Head, hidden=config.hidden, residual=config.residual)
        self.backbone = trunk
        with torch.device("meta") if empty else nullcontext():
            self.mlp_cls = make_head(int(trunk.num_features))
            self.mlp_patch = make_head(int(trunk.num_features))
            if isinstance(config, TinyConfig):
                tiny.extend(self, config, make_head, empty=empty)

    def forward_features(self, x: Tensor) -> Features:
        """See `Embedder.forward_features`; both kinds of feature have unit length."""
        features, patches, grid = self.trunk_features(x)
        return *self.heads(features, patches), grid

    def trunk_features(self, x: Tensor) -> Features:
        """Backbone features (B, D), patch tokens (B, P, D'), and patch grid of normalized pixels (B, 3, H, W)."""
        config = self.settings
        if isinstance(config, TinyConfig):
            return tiny.trunk_features(self, config, x)
        read = last_tokens if config.features == "last-block" else final_tokens
        return read(self.backbone, x)

    def heads(self, features: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads on the backbone's features and patch tokens, scaled to unit length."""
        config = self.settings
        unit = center_and_normalize if config.center else partial(F.normalize, dim=-1)
        if isinstance(config, TinyConfig) and config.second:
            cls = tiny.global_feature(self, config, features, unit)
        else:
            cls = unit(self.mlp_cls(features))
        return cls, unit(self.mlp_patch(patches))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        moved: Self = super()._apply(fn, recurse)
        self._round_rope()  # timm recomputes the periods when the dtype changes
        return moved

    def _round_rope(self) -> None:
        # Meta's DINOv3 keeps its rotary periods in bfloat16, timm in float32; the models were trained with Meta's
        rope: Any = getattr(self.backbone, "rope", None)
        if isinstance(getattr(rope, "periods", None), Tensor):
            rope.periods = rope.periods.to(torch.bfloat16).to(rope.periods.dtype)
