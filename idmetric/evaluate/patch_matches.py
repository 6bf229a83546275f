"""The patch of a reference that matches each patch of an image best, and vice versa, in a few kilobytes.

    reference, image = (tokens_of(layout(metric, *size, embedding), embedding) for ...)
    matches_of(reference, image)  # for each patch its match in the other image, with cosine and strength

By cosine alone, plain backgrounds match best, and a few patches ("hubs") are the nearest ones of many. Therefore, with
p_i = mean_k a_i . a_k and q_j = mean_l b_j . b_l, the mean cosines of a patch to the border of its own image, which
mostly shows background (the boundary prior of saliency detection, Wei et al. 2012; kept within 0..1):

- the match of a_i is the b_j with the highest 2 a_i . b_j - r_j - q_j / 2, where r_j is the mean of the ten highest
  cosines of b_j to patches of the other image (cross-domain similarity local scaling, Conneau et al. 2018),
- the strength of a match is a_i . b_j (1 - p_i) (1 - q_j).

A patch outside a subject's mask (`match.patches.covered`) neither has a match nor is one. For a side with a
mask that leaves patches out, p or q is 0.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from idmetric.matching.patches import Layout, covered
from idmetric.metric.distance.embedding import Embedding

NOBODY = 65535  # the partner of a patch without one


@dataclass(frozen=True)
class Tokens:
    """An image's patch tokens of unit length, in half precision to save memory until they are compared.

    Attributes:
        unit: (P, D), P = rows * columns of `where`. inside: bool (P,), whether a patch belongs to the subject.
    """

    unit: Tensor
    inside: Tensor
    where: Layout


@dataclass(frozen=True)
class Side:
    """The patches of one of two images.

    Attributes:
        where: their layout.
        partner: (P,) number of the matching patch of the other image, or NOBODY.
        cosine: (P,) similarity to it, -1..1; 0 without a partner.
        strength: (P,) of the match, -1..1; 0 without a partner.
    """

    where: Layout
    partner: NDArray[np.uint16]
    cosine: NDArray[np.float32]
    strength: NDArray[np.float32]

    def packed(self) -> dict[str, Any]:
        """Return values for JSON, with bytes as base64; cosines and strengths of 0..1 become 0..65535, lower ones 0."""
        return {
            "grid": self.where.grid,
            "share": [round(share, 4) for share in self.where.share],
            "partner": _text(self.partner),
            "cosine": _text(np.rint(self.cosine.clip(0, 1) * 65535)),
            "strength": _text(np.rint(self.strength.clip(0, 1) * 65535)),
        }


@dataclass(frozen=True)
class Matches:
    """The matched patches of a reference and an image."""

    reference: Side
    image: Side

    def packed(self) -> dict[str, Any]:
        """Return values for JSON."""
        return {"reference": self.reference.packed(), "image": self.image.packed()}

    @property
    def size(self) -> int:
        """Approximate number of bytes of its JSON."""
        return 8 * (len(self.reference.partner) + len(self.image.partner)) + 200


def tokens_of(where: Layout, embedding: Embedding) -> Tokens | None:
    """Return the tokens of one image's embedding; None without patches, or with more than `NOBODY` can number."""
    rows, columns = where.grid
    count = rows * columns
    if embedding.patches is None or not 0 < count < NOBODY or embedding.patches.shape[1] < count:
        return None
    unit = F.normalize(embedding.patches[0, :count].float(), dim=-1)
    inside = covered(embedding)[0, :count]
    return Tokens(unit.half().cpu(), inside.cpu(), where)


def matches_of(reference: Tokens, image: Tokens, device: torch.device | str = "cpu", *, border: bool = True) -> Matches:
    """Find the match of each patch in both directions; of equal ones the first.

    Args:
        device: computes the comparison.
        border: False takes the cosine alone, for match and strength.
    """
    a = reference.unit.to(device).float()
    b = image.unit.to(device).float()
    outside = ~(reference.inside.to(device)[:, None] & image.inside.to(device))
    inner = (a @ b.T).clamp(max=1).masked_fill(outside, -1)
    cosine = inner.masked_fill(outside, 0)  # of a patch without a partner

    score = strength = cosine
    if border:
        p = _likeness_to_border(a, reference)[:, None]
        q = _likeness_to_border(b, image)
        score = 2 * cosine - _crowd(inner)[:, None] - _crowd(inner.T) - p / 2 - q / 2
        strength = cosine * (1 - p) * (1 - q)
    score = score.masked_fill(outside, -torch.inf)

    reference_side = _side(score, cosine, strength, reference.where)
    image_side = _side(score.T, cosine.T, strength.T, image.where)
    return Matches(reference_side, image_side)


def strongest(matches: Matches, count: int) -> list[tuple[int, int]]:
    """Return the patches (reference, image) of the image's `count` strongest matches, strongest first."""
    side = matches.image
    order = np.argsort(-side.strength, kind="stable")
    order = order[side.partner[order] != NOBODY][:count]
    return list(zip(side.partner[order].tolist(), order.tolist(), strict=True))


def _likeness_to_border(unit: Tensor, tokens: Tokens) -> Tensor:
    """Mean cosine (P,) of each patch to those along its image's border, 0..1; 0 where a mask marks the background."""
    if not tokens.inside.all():
        return unit.new_zeros(len(unit))
    border = torch.ones(tokens.where.grid, dtype=torch.bool, device=unit.device)
    border[1:-1, 1:-1] = False
    return (unit @ unit[border.flatten()].mean(0)).clamp(0, 1)


def _crowd(cosine: Tensor) -> Tensor:
    """Mean of the ten highest cosines of each row, fewer if there are not as many."""
    return cosine.topk(min(10, cosine.shape[1]), dim=1).values.mean(1)


def _side(score: Tensor, cosine: Tensor, strength: Tensor, where: Layout) -> Side:
    best, partner = score.max(1)
    numbers = partner.masked_fill(best.isinf(), NOBODY)
    columns = partner[:, None]
    return Side(
        where,
        partner=numbers.cpu().numpy().astype(np.uint16),
        cosine=cosine.gather(1, columns)[:, 0].cpu().numpy(),
        strength=strength.gather(1, columns)[:, 0].cpu().numpy(),
    )


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(values.astype("<u2").tobytes()).decode("ascii")
