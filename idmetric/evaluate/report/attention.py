"""Attention of a pooling head over the patches of an image (NearID, Fig. 3, left).

    [heat] = attention_maps(NearID(), "mug.jpg")  # (H, W), the image's size

NearID and SigLIP pool by attention: a learned probe asks all patches, and each gets a share of the answer. NearID's
figure does not say how it was drawn; here it is the softmax of the head's own queries and keys, averaged over its
heads. Its values and projection, which weigh what is read from a patch, are not part of the map.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from idmetric.matching.regions import size_of
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding
from idmetric.metric.heatmap import layout, pictures_of
from idmetric.metric.images import Picture
from idmetric.metric.masks import Images


def attention_maps(metric: Embedder, images: Images, *, head: int | None = None) -> list[Tensor]:
    """Map the attention of a model's pooling head over each image.

    Args:
        metric: a `NearID`, or a `Backbone` that pools by attention, such as SigLIP's.
        images: one image or several.
        head: number of one attention head, from 0; default: their mean.

    Returns:
        For each image (H, W) at its height and width: each patch's share of the attention, all shares of an image
        adding to 1, interpolated between the patches' centers.

    Raises:
        ImageReadError: naming the image that cannot be read.
        ValueError: for a model that does not pool by attention. IndexError: if it has no such head.
    """
    maps = []
    for picture, size in pictures_of(metric, images):
        shares, embedding = pooling_attention(metric, picture)
        where = layout(metric, *size_of(picture), embedding)
        values = shares.mean(0)
        if head is not None:
            values = shares[head]
        of_patches = values[-math.prod(where.grid) :]  # class and register tokens come first
        maps.append(where.spread(of_patches, size))
    return maps


@torch.no_grad()
def pooling_attention(metric: Embedder, picture: Picture) -> tuple[Tensor, Embedding]:
    """Softmax over tokens (heads, N) of q'k / sqrt(d), the queries and keys of the pooling head; and the embedding."""
    pool: Any = getattr(getattr(metric, "backbone", None), "attn_pool", None)
    states: list[Tensor] = []
    if pool is not None:

        def keep(module: torch.nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            states.append(output.float())

        with pool.q_norm.register_forward_hook(keep), pool.k_norm.register_forward_hook(keep):
            embedding = metric.as_embedding([picture], None, "keep", True, 1)
    if not states:
        raise ValueError(f"{metric.label} does not pool its patches by attention: NearID and SigLIP do")
    query, keys = states
    logits = pool.scale * query @ keys.mT
    return logits.softmax(-1)[0, :, 0], embedding
