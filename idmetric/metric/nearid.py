"""NearID (Cvejic et al., "NearID: Identity Representation Learning via Near-identity Distractors", arXiv 2604.01973).

A frozen SigLIP2 trunk under a trained attention-pooling (MAP) head.

The embedding is the head's output scaled to unit length; the distance is 1 - cosine. Patch tokens are those the head
pools, the trunk's last after its final norm: training left them as SigLIP2 made them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint
from idmetric.metric.checkpoints.nearid import read_nearid
from idmetric.metric.checkpoints.released import PROCESSOR, short_name, source_name
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.embedder import Embedder, opening
from idmetric.metric.errors import understanding
from idmetric.metric.files import StrPath
from idmetric.metric.images import WHITE, Color, Preprocessing
from idmetric.metric.load import tell_apart
from idmetric.metric.resampling import check_interpolation
from idmetric.metric.timm_models import build
from idmetric.metric.tokens import Features, final_tokens


@dataclass(frozen=True)
class NearIDConfig:
    """Settings of a `NearID`, saved in config.json. The defaults are the release's; `backbone_args` go to timm."""

    backbone: str = "vit_so400m_patch14_siglip_384"
    image_size: int = 384
    interpolation: str = "bilinear"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    # timm builds this trunk with the exact GELU, SigLIP2 was trained with its tanh approximation
    backbone_args: dict[str, Any] = field(default_factory=lambda: {"act_layer": "gelu_tanh"})
    preprocessing: Preprocessing = "standard"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)


class NearID(Embedder):
    """Identity similarity after NearID.

    >>> metric = NearID()  # doctest: +SKIP
    >>> metric("reference.jpg", ["a.png", "b.png"])  # distances, shape (2,)  # doctest: +SKIP

    Args:
        source: "nearid" (default), the published model, downloaded once; a folder or Hub repository in the published
            format, or as `save_pretrained` and training write it; or a `NearIDConfig` for a new, untrained model.
        revision, device, dtype, background, preprocessing, cache_dir, token, local_files_only: as for `IDSim`.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood. No other model is ever loaded instead.
    """

    model_type = "nearid"

    @opening()
    def __init__(
        self,
        source: StrPath | NearIDConfig = "nearid",
        *,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        background: Color = WHITE,
        preprocessing: Preprocessing | None = None,
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        saved: Checkpoint | None
        if isinstance(source, NearIDConfig):
            config, name = source, "untrained"
            saved = None
        else:
            name = short_name(source_name(source))
            folder = resolve(
                source,
                [*checkpoint.FILES, PROCESSOR],
                revision=revision,
                cache_dir=cache_dir,
                token=token,
                local_files_only=local_files_only,
            )
            saved = read_nearid(folder)
            config = checkpoint.parse(NearIDConfig, saved, self.model_type)
        if preprocessing is not None:
            config = replace(config, preprocessing=preprocessing)
        super().__init__(
            name=name,
            revision=saved.revision if saved else "",
            image_size=(config.image_size, config.image_size),
            mean=config.mean,
            std=config.std,
            interpolation=config.interpolation,
            background=background,
            preprocessing=config.preprocessing,
            folder=saved.folder if saved else None,
        )
        self.settings = config
        tell_apart(self)
        with understanding(saved.folder) if saved else nullcontext():
            self.backbone: Any = build(
                config.backbone, image_size=config.image_size, args=config.backbone_args, empty=saved is not None
            )
        if saved is not None:
            load_state(self, saved.state, saved.folder, dtype)
        self._finish(device, dtype)

    def forward_features(self, x: Tensor) -> Features:
        """See `Embedder.forward_features`; both kinds of feature have unit length."""
        pooled, tokens, grid = final_tokens(self.backbone, x)
        return F.normalize(pooled, dim=-1), F.normalize(tokens, dim=-1), grid
