"""Captions of a rendered picture: which object, before which background, in which colors, and where.

SigLIP2 learned from captions of whole pictures and of their regions, and by predicting hidden regions, so its patches
hold details that the pooled embedding drops. Here the words and mean colors of regions are computed from picture and
mask. Many objects share them: no caption identifies an object.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.distance.embedding import Embedding

# black, white, gray, brown, red, orange, yellow, green, cyan, blue, purple, pink: as far apart as people name them
COLORS = torch.tensor([
    (20, 20, 20), (240, 240, 240), (128, 128, 128), (110, 70, 35), (200, 30, 30), (240, 140, 30), (235, 220, 60),
    (50, 150, 60), (70, 200, 205), (45, 75, 190), (130, 60, 160), (240, 150, 185),
]).float() / 255  # fmt: skip
NAMED = 0.2  # share from which a caption names a color
SOFT = 0.02  # of the squared distance to a color
FINE = 10.0  # weight of a region's mean color relative to its words


def names(pixels: Tensor) -> Tensor:
    """The color of each pixel, as shares of the named ones: (B, 3, H, W) in 0..1 -> (B, 12, H, W)."""
    colors = COLORS.to(pixels.device)
    far = (pixels[:, None] - colors[None, :, :, None, None]).square().sum(2)
    return F.softmax(-far / SOFT, 1)


class Captions(nn.Module):
    """Predicts the words of whole pictures from the pooled embedding, and those of regions from the patches.

    Args:
        width: of embedding and patches. kinds: number of kinds of objects. backgrounds: number of kinds of backgrounds.
    """

    def __init__(self, width: int, kinds: int, backgrounds: int) -> None:
        super().__init__()
        self.kinds, self.colors = kinds, len(COLORS)
        self.whole = nn.Linear(width, backgrounds + 2 * self.colors)
        self.region = self.head(width)

    def head(self, width: int) -> nn.Module:
        """The module that reads patches: the kind of object or none, and inside and outside it words and mean color."""
        return nn.Linear(width, self.kinds + 1 + 2 * (self.colors + 3))

    def forward(
        self, found: Embedding, pixels: Tensor, mask: Tensor, kind: Tensor, background: Tensor
    ) -> dict[str, Tensor]:
        """Losses of whole pictures ("words") and of regions ("regions"), two scalars.

        Args:
            pixels: (B, 3, H, W), the embedded pictures before changes of brightness. mask: (B, 1, H, W), of the object.
            kind, background: numbers (B,).
        """
        named = names(pixels)
        shown = torch.cat([shares(named, cover, (1, 1)).flatten(1) for cover in (mask, 1 - mask)], 1) > NAMED
        logits = self.whole(found.cls * found.cls.shape[1] ** 0.5)
        scene, colors = logits.split([logits.shape[1] - 2 * self.colors, 2 * self.colors], 1)
        words = F.cross_entropy(scene, background) + F.binary_cross_entropy_with_logits(colors, shown.float())
        assert found.patches is not None
        assert found.grid is not None
        cover = F.adaptive_avg_pool2d(mask, found.grid).flatten(1)  # (B, P)
        wanted = torch.where(cover > 0.5, kind[:, None], self.kinds)
        logits = self.region(found.patches * found.patches.shape[2] ** 0.5)
        kinds, colors = logits.split([self.kinds + 1, logits.shape[2] - self.kinds - 1], 2)
        loss = F.cross_entropy(kinds.flatten(0, 1), wanted.flatten())
        return {"words": words, "regions": self.regions(loss, colors, pixels, named, mask, found.grid)}

    def regions(
        self, loss: Tensor, logits: Tensor, pixels: Tensor, named: Tensor, mask: Tensor, grid: tuple[int, int]
    ) -> Tensor:
        """The loss of kinds plus those of colors, weighted by each patch's share of object and background."""
        parts = logits.split([self.colors, 3] * 2, 2)
        for words, mean, part in ((*parts[:2], mask), (*parts[2:], 1 - mask)):
            share = F.adaptive_avg_pool2d(part, grid).flatten(1)
            color = shares(pixels, part, grid).flatten(2).transpose(1, 2)
            far = unlike(words, named, part, grid) + FINE * (mean - color).square().sum(2)
            loss = loss + (far * share).sum() / share.sum().clamp_min(1)
        return loss


class Regions(Captions):
    """Captions whose patches predict kind and colors by a small head, without mean colors."""

    def head(self, width: int) -> nn.Module:
        """The module that reads patches: the kind of object or none, and words inside and outside it."""
        return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, self.kinds + 1 + 2 * self.colors))

    def regions(
        self, loss: Tensor, logits: Tensor, pixels: Tensor, named: Tensor, mask: Tensor, grid: tuple[int, int]
    ) -> Tensor:
        """As for `Captions`, by words alone."""
        cover = F.adaptive_avg_pool2d(mask, grid).flatten(1)
        for words, part, share in zip(logits.chunk(2, 2), (mask, 1 - mask), (cover, 1 - cover), strict=True):
            loss = loss + (unlike(words, named, part, grid) * share).sum() / share.sum().clamp_min(1)
        return loss


def unlike(words: Tensor, named: Tensor, part: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cross entropy (B, P) of the predicted words of each patch's colors."""
    wanted = shares(named, part, grid).flatten(2).transpose(1, 2)  # (B, P, colors)
    return -(wanted * F.log_softmax(words, 2)).sum(2)


def shares(named: Tensor, cover: Tensor, grid: Sequence[int]) -> Tensor:
    """Share of each color in each cell of a grid, among the pixels that `cover` selects."""
    count = F.adaptive_avg_pool2d(cover, tuple(grid))
    return F.adaptive_avg_pool2d(named * cover, tuple(grid)) / count.clamp_min(1e-6)
