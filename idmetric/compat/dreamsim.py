"""The interface of the package `dreamsim` (Fu et al. 2023), with a metric of this package behind it.

from idmetric.compat.dreamsim import dreamsim

model, preprocess = dreamsim(dreamsim_type="tiny")
distance = model(preprocess(image), preprocess(other))  # (1, 3, H, W) in [0, 1] -> (1,)

Signatures, shapes and ranges are those of ssundaram21/dreamsim, dreamsim/model.py. The distances are those of the
metric: identity, where DreamSim follows people's judgment of layout and content together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from idmetric.compat.opened import metric_of, refuse
from idmetric.metric.files.boundary import public
from idmetric.metric.models.embedder import Embedder

_TYPES = ("ensemble", "dino_vitb16", "clip_vitb32", "open_clip_vitb32", "dinov2_vitb14", "synclr_vitb16")


class PerceptualModel(nn.Module):
    """Distances and embeddings of image tensors (N, 3, H, W) in [0, 1], by the metric.

    Args:
        metric: an opened one, which moves with this module.
        normalize_embeds: embeddings have unit length.
    """

    def __init__(self, metric: Embedder, normalize_embeds: bool = True) -> None:
        super().__init__()
        self.metric = metric
        self.normalize_embeds = normalize_embeds

    @public
    def forward(self, img_a: Tensor, img_b: Tensor) -> Tensor:
        """Distances (N,); lower = more surely the same identity. Gradients reach images that require them."""
        distances: Tensor = self.metric(img_a, img_b)
        return distances

    @public
    def embed(self, img: Tensor) -> Tensor:
        """Global features (N, D), whose cosine distance is the metric's; gradients reach images that require them."""
        features = self.metric(img).cls
        if self.normalize_embeds:
            return F.normalize(features, dim=-1)
        return features


@public
def dreamsim(
    pretrained: bool = True,
    device: torch.device | str | None = None,
    cache_dir: str | None = None,
    normalize_embeds: bool = True,
    dreamsim_type: str | Embedder = "",
    use_patch_model: bool = False,
    **options: Any,
) -> tuple[PerceptualModel, Callable[[Image.Image], Tensor]]:
    """Open a metric behind DreamSim's interface.

    Args:
        device: default CUDA, else MPS, else the CPU; an opened metric stays where it is, or moves there.
        cache_dir: the folder of downloads; default: the Hub's.
        normalize_embeds: see `PerceptualModel`.
        dreamsim_type: the metric: a name of `idmetric.load`, or an opened metric.
        pretrained, use_patch_model: only DreamSim's defaults are taken; `metric(a, b, "patch")` compares patches.
        options: of `idmetric.load`; an opened metric takes none, and no cache_dir.

    Returns:
        The model, and a function from an image of any kind to pixels (1, 3, H, W) in [0, 1], at the metric's size.

    Raises:
        RequestError: without a metric's name, for a model of DreamSim, or an option that DreamSim alone has.
    """
    refuse("DreamSim", pretrained=(pretrained, True), use_patch_model=(use_patch_model, False))
    if cache_dir is not None:
        options["cache_dir"] = cache_dir
    metric = metric_of(dreamsim_type, "dreamsim_type", _TYPES, device=device, **options)

    def preprocess(pil_img: Any) -> Tensor:
        pixels, _ = metric.preprocessor.load_image(pil_img)
        return pixels[None]

    return PerceptualModel(metric, normalize_embeds), preprocess
