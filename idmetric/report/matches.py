"""The most similar patch of a reference for each patch of an image, and vice versa, in a few kilobytes.

    own, other = (tokens_of(layout(metric, *size, embedding), embedding) for ...)
    matches_of(own, other)  # for each patch of one image the most similar patch of the other, with their cosine

A patch outside a subject's mask (see `idmetric.distance.patches.covered`) neither has a partner nor is one.
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

from idmetric.distance.patches import Layout, covered
from idmetric.models.embedding import Embedding

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

    @property
    def nbytes(self) -> int:
        """The memory that the tensors take."""
        return self.unit.nbytes + self.inside.nbytes


@dataclass(frozen=True)
class Side:
    """The patches of one of two images.

    Attributes:
        grid: rows and columns. share: the shares of the picture's height and width that they cover.
        partner: (P,) number of the most similar patch of the other image, or NOBODY.
        cosine: (P,) similarity to it, -1..1; 0 without a partner.
    """

    grid: tuple[int, int]
    share: tuple[float, float]
    partner: NDArray[np.uint16]
    cosine: NDArray[np.float32]

    def packed(self) -> dict[str, Any]:
        """Return values for JSON, with bytes as base64; cosines of 0..1 become 0..255, lower ones 0."""
        levels = np.rint(self.cosine.clip(0, 1) * 255).astype(np.uint8)
        return {
            "grid": list(self.grid), "share": [round(s, 4) for s in self.share],
            "partner": _text(self.partner.astype("<u2").tobytes()), "cosine": _text(levels.tobytes()),
        }  # fmt: skip


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
        return 4 * (len(self.reference.partner) + len(self.image.partner)) + 200


def tokens_of(where: Layout, embedding: Embedding) -> Tokens | None:
    """Return the tokens of one image's embedding; None without patches, or with more than `NOBODY` can number."""
    count = where.grid[0] * where.grid[1]
    if embedding.patches is None or not 0 < count < NOBODY or embedding.patches.shape[1] < count:
        return None
    unit = F.normalize(embedding.patches[0, :count].float(), dim=-1)
    return Tokens(unit.half().cpu(), covered(embedding)[0, :count].cpu(), where)


def matches_of(reference: Tokens, image: Tokens, device: torch.device | str = "cpu") -> Matches:
    """Find the most similar patches in both directions, by cosine; of equal ones the first.

    Args:
        device: computes the comparison.
    """
    a, b = reference.unit.to(device).float(), image.unit.to(device).float()
    similar = a @ b.T
    outside = ~(reference.inside.to(device)[:, None] & image.inside.to(device))
    similar = similar.masked_fill(outside, -torch.inf).clamp(max=1)
    return Matches(_side(similar, reference.where), _side(similar.T, image.where))


def _side(similar: Tensor, where: Layout) -> Side:
    best, partner = similar.max(1)
    alone = best.isinf()
    return Side(
        where.grid,
        where.share,
        partner.masked_fill(alone, NOBODY).cpu().numpy().astype(np.uint16),
        best.masked_fill(alone, 0).cpu().numpy().astype(np.float32),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
