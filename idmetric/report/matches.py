"""Which patch of a reference each patch of an image resembles most, and the other way round, in a few kilobytes.

    own, other = (tokens_of(layout(metric, *size, embedding), embedding) for ...)
    matches_of(own, other)  # for each patch of the one the best of the other, with their cosine

A patch outside a subject's mask (see `idmetric.distance.patches.covered`) has no partner and is nobody's.
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

NOBODY = 65535  # as a patch's partner: it has none


@dataclass(frozen=True)
class Tokens:
    """An image's patch tokens, at unit length and in half precision, to be kept until they are compared.

    Attributes:
        unit: (P, D), P = rows * columns of `where`. inside: (P,), those that belong to the subject.
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
        grid: rows and columns. share: of the picture's height and width, what they cover.
        partner: (P,) number of the most similar patch of the other image, or NOBODY.
        cosine: (P,) to it, -1..1; 0 where there is none.
    """

    grid: tuple[int, int]
    share: tuple[float, float]
    partner: NDArray[np.uint16]
    cosine: NDArray[np.float32]

    def packed(self) -> dict[str, Any]:
        """For JSON: bytes as base64. Cosines below 0 become 0, the others 0..255."""
        levels = np.rint(self.cosine.clip(0, 1) * 255).astype(np.uint8)
        return {
            "grid": list(self.grid), "share": [round(s, 4) for s in self.share],
            "partner": _text(self.partner.astype("<u2").tobytes()), "cosine": _text(levels.tobytes()),
        }  # fmt: skip


@dataclass(frozen=True)
class Matches:
    """A reference and an image."""

    reference: Side
    image: Side

    def packed(self) -> dict[str, Any]:
        """For JSON."""
        return {"reference": self.reference.packed(), "image": self.image.packed()}

    @property
    def size(self) -> int:
        """Bytes, about, of its JSON."""
        return 4 * (len(self.reference.partner) + len(self.image.partner)) + 200


def tokens_of(where: Layout, embedding: Embedding) -> Tokens | None:
    """Tokens of an embedding of one image; None without patches, or more of them than numbers (`NOBODY`)."""
    count = where.grid[0] * where.grid[1]
    if embedding.patches is None or not 0 < count < NOBODY or embedding.patches.shape[1] < count:
        return None
    unit = F.normalize(embedding.patches[0, :count].float(), dim=-1)
    return Tokens(unit.half().cpu(), covered(embedding)[0, :count].cpu(), where)


def matches_of(reference: Tokens, image: Tokens, device: torch.device | str = "cpu") -> Matches:
    """Best partners both ways, by cosine; of equal ones the first.

    Args:
        device: where they are compared.
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
