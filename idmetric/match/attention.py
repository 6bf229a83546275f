"""Attention of a pooling head over the patches of an image (NearID, Fig. 3, left).

    [heat] = attention_maps(NearID(), "mug.jpg")  # (H, W), the image's size

NearID and SigLIP pool by attention: a learned probe asks all patches, and each gets a share of the answer. NearID's
figure does not say how it was drawn; here it is the softmax of the head's own queries and keys, averaged over its
heads. Its values and projection, which weigh what is read from a patch, are not part of the map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idmetric.match.heatmaps import layout, pictures_of
from idmetric.match.patches import Layout, on_grid, spread
from idmetric.metric.images.masks import Images
from idmetric.metric.models.embedder import Embedder


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
        ValueError: for a model that does not pool by attention, or has no such head.
    """
    maps = []
    for picture, size in pictures_of(metric, images):
        shares, where = _shares(metric, picture)
        if head is None:
            values = shares.mean(0)
        elif 0 <= head < len(shares):
            values = shares[head]
        else:
            raise ValueError(f"head must be in 0..{len(shares) - 1}, got {head}")
        maps.append(spread(on_grid(values, where), where, size))
    return maps


def _shares(metric: Embedder, picture: Any) -> tuple[Tensor, Layout]:
    """Shares of an image's patches (heads, P), and their layout."""
    pool = getattr(getattr(metric, "backbone", None), "attn_pool", None)
    pool_inputs: list[Tensor] = []
    if pool is not None:
        hook = pool.register_forward_pre_hook(lambda _, inputs: pool_inputs.append(inputs[0]))
        try:
            embedding = metric.as_embedding([picture], None, "keep", True, 1)
        finally:
            hook.remove()
    if not pool_inputs:
        raise ValueError(f"{metric.label} does not pool its patches by attention: NearID and SigLIP do")

    height, width = picture.shape[-2:] if isinstance(picture, Tensor) else (picture.height, picture.width)
    where = layout(metric, int(height), int(width), embedding[0])
    shares = pooling_attention(pool, pool_inputs[0].detach())[0]
    rows, columns = where.grid
    return shares[:, -rows * columns :], where  # class and register tokens come first


@torch.no_grad()
def pooling_attention(pool: Any, tokens: Tensor) -> Tensor:
    """Softmax over tokens of q'k / sqrt(d), for timm's `AttentionPoolLatent`.

    Args:
        pool: the pooling layer. tokens: (B, N, D), its input.

    Returns:
        (B, heads, N), in float32 or better.
    """
    from timm.layers import AttentionPoolLatent

    if not isinstance(pool, AttentionPoolLatent) or pool.latent_len != 1:
        raise ValueError(f"the attention of {type(pool).__name__} is not that of one probe over all patches")
    if pool.pos_embed is not None:
        tokens = tokens + pool.pos_embed.to(tokens.dtype)
    count, length, _ = tokens.shape
    shape = (pool.num_heads, pool.head_dim)

    q = pool.q_norm(pool.q(pool.latent).reshape(1, 1, *shape).transpose(1, 2))
    k = pool.kv(tokens).reshape(count, length, 2, *shape)[:, :, 0].transpose(1, 2)
    k = pool.k_norm(k)

    wide = torch.float64 if k.dtype == torch.float64 else torch.float32
    logits: Tensor = (q.to(wide) @ k.to(wide).transpose(-2, -1)) * pool.scale
    return logits.softmax(-1)[:, :, 0]
