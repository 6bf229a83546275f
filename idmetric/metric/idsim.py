"""ID-Sim (Chae et al., "ID-Sim: An Identity-Focused Similarity Metric", CVPR 2026): architecture and loading.

A ViT's last-block tokens, before its final norm, pass two residual heads (one for the class token, one for the patch
tokens); each vector is centered and L2-normalized. The released models fine-tune DINOv3 or DINOv2 by LoRA, folded into
the weights here. The gated residual, the centering and the pre-norm features are the release's, not in the paper.

"tiny" has such heads over two small convolutional backbones: patch tokens are from several feature maps of the first;
the second sees the images at another size, and its global features, with a head of their own, stand beside the first's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.embedder import Embedder, opening
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath
from idmetric.metric.idsim_config import IDSimConfig
from idmetric.metric.images import WHITE, Color, Preprocessing, resize_antialiased
from idmetric.metric.tiny.trunk import LiteTrunk, joined_tokens

__all__ = ["TINY", "Head", "IDSim", "IDSimConfig", "center_and_normalize"]

TINY = Path(__file__).parent / "tiny"  # its model folder


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
        revision: commit of a Hub repository. device: default CUDA, else MPS, else CPU. dtype: default float32.
        background: RGB color (0-255) that shows through transparent images.
        preprocessing: "standard" turns photos by their EXIF orientation, composites transparency on `background` and
            scales 16-bit values; "release" does none of these, and takes no masks. Default: the saved setting, else
            "standard". Scores of the two never mix: the model's label names "release".
        variant: which release a folder of official files belongs to, if its name does not show it.
        backbone_weights: local file with a release's backbone: safetensors in timm's format, or Meta's .pth.
        backbone_args: more arguments of `timm.create_model`, for a release.
        cache_dir, token, local_files_only: see `idmetric.metric.checkpoints.resolve`.

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
        saved: Checkpoint | None = None
        if isinstance(source, IDSimConfig):
            name, config = "untrained", source
        else:
            if source == "tiny":
                if revision or backbone_weights:
                    raise CheckpointError("'tiny' is in the package: leave out revision and backbone_weights")
                name, saved = source, checkpoint.read(TINY)
            else:
                from idmetric.metric.idsim_release import read_checkpoint

                hub: dict[str, Any] = {
                    "revision": revision,
                    "cache_dir": cache_dir,
                    "token": token,
                    "local_files_only": local_files_only,
                }
                name, saved = read_checkpoint(source, hub, variant, backbone_weights, backbone_args)
            config = checkpoint.parse(IDSimConfig, saved, self.model_type)
        if preprocessing is not None:
            config = replace(config, preprocessing=preprocessing)
        mean, std = config.mean, config.std
        if mean is None or std is None:
            from idmetric.metric.timm_models import pretrained_config

            pretrained = pretrained_config(config.backbone)
            mean, std = mean or pretrained.mean, std or pretrained.std

        super().__init__(
            name=name,
            revision="" if saved is None else saved.revision,
            image_size=(config.image_size, config.image_size),
            mean=mean,
            std=std,
            interpolation=config.interpolation,
            background=background,
            preprocessing=config.preprocessing,
            folder=None if saved is None else saved.folder,
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

    def _build(self, config: IDSimConfig, empty: bool) -> None:
        """Lay the modules out with random weights; `empty` allocates no memory for weights, which are loaded then."""
        make_head = partial(Head, hidden=config.hidden, residual=config.residual)
        device = torch.device("meta") if empty else nullcontext()
        if config.second:
            with device:
                self.backbone: Any = LiteTrunk(config.backbone)
                self.second = LiteTrunk(config.second)
                self.mlp_second = make_head(self.second.num_features)
            patch_channels = sum(self.backbone.map_channels[number] for number in config.patch_stages)
        else:
            from idmetric.metric.timm_models import build, final_tokens, last_tokens

            self.backbone = build(config.backbone, image_size=config.image_size, args=config.backbone_args, empty=empty)
            self._read_tokens = last_tokens if config.features == "last-block" else final_tokens
            patch_channels = self.backbone.num_features
        with device:
            self.mlp_cls = make_head(self.backbone.num_features)
            self.mlp_patch = make_head(patch_channels)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """See `Embedder.forward_features`; both kinds of feature have unit length."""
        config = self.settings
        unit = center_and_normalize if config.center else partial(F.normalize, dim=-1)
        if config.second:
            features, maps = self.backbone.forward_features(x, config.patch_stages)
            patches, grid = joined_tokens(maps)
            resized = resize_antialiased(x, (config.second_size, config.second_size), "bilinear")
            first = unit(self.mlp_cls(features))
            second = unit(self.mlp_second(self.second(resized)))
            share = config.second_share
            cls = torch.cat([(1 - share) ** 0.5 * first, share**0.5 * second], -1)
        else:
            features, patches, grid = self._read_tokens(self.backbone, x)
            cls = unit(self.mlp_cls(features))
        return cls, unit(self.mlp_patch(patches)), grid

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        moved: Self = super()._apply(fn, recurse)
        # the models were trained with rotary periods as in Meta's DINOv3; timm computes others when the dtype changes
        rope: Any = getattr(self.backbone, "rope", None)
        if hasattr(rope, "periods"):
            rope.periods = rope.periods.to(torch.bfloat16).to(rope.periods.dtype)
        return moved
