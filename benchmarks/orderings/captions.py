"""What a caption would say of a rendered picture: which thing, before which background, in which colours, and where.

SigLIP2 learnt from captions of whole pictures and of their regions, and by predicting hidden regions, so that its
patches hold what the pooled embedding lets go. Here words and mean colours of regions are read off picture and mask.
Many things share them: nothing tells which pictures show the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.models.embedding import Embedding

# black, white, grey, brown, red, orange, yellow, green, cyan, blue, purple, pink: as far apart as people name them
COLOURS = torch.tensor([
    (20, 20, 20), (240, 240, 240), (128, 128, 128), (110, 70, 35), (200, 30, 30), (240, 140, 30), (235, 220, 60),
    (50, 150, 60), (70, 200, 205), (45, 75, 190), (130, 60, 160), (240, 150, 185),
]).float() / 255  # fmt: skip
NAMED = 0.2  # share from which a caption names a colour
SOFT = 0.02  # of the squared distance to a colour
FINE = 10.0  # weight of a region's mean colour beside its words


def names(pixels: Tensor) -> Tensor:
    """Which colour each pixel is, as shares: (B, 3, H, W) in 0..1 -> (B, 12, H, W)."""
    colours = COLOURS.to(pixels.device)
    far = (pixels[:, None] - colours[None, :, :, None, None]).square().sum(2)
    return F.softmax(-far / SOFT, 1)


class Captions(nn.Module):
    """Words of whole pictures, told by the pooled embedding, and of regions, told by the patches.

    Args:
        width: of embedding and patches. kinds: of things. backgrounds: kinds of them.
    """

    def __init__(self, width: int, kinds: int, backgrounds: int) -> None:
        super().__init__()
        self.kinds, self.colours = kinds, len(COLOURS)
        self.whole = nn.Linear(width, backgrounds + 2 * self.colours)
        self.region = nn.Linear(width, kinds + 1 + 2 * (self.colours + 3))

    def forward(self, found: Embedding, pixels: Tensor, mask: Tensor, kind: Tensor, background: Tensor) -> list[Tensor]:
        """How badly whole pictures and regions are described: two scalars.

        Args:
            pixels: (B, 3, H, W) that the embedding was made of, without changes of brightness. mask: (B, 1, H, W), of
                the thing. kind, background: numbers (B,).
        """
        assert found.patches is not None
        assert found.grid is not None
        named = names(pixels)
        inside, outside = (shares(named, cover, (1, 1)).flatten(1) for cover in (mask, 1 - mask))
        told = self.whole(found.cls * found.cls.shape[1] ** 0.5)
        scene, colours = told.split([told.shape[1] - 2 * self.colours, 2 * self.colours], 1)
        said = (torch.cat([inside, outside], 1) > NAMED).float()
        whole = F.cross_entropy(scene, background) + F.binary_cross_entropy_with_logits(colours, said)
        return [whole, self._regions(found, pixels, named, mask, kind)]

    def _regions(self, found: Embedding, pixels: Tensor, named: Tensor, mask: Tensor, kind: Tensor) -> Tensor:
        assert found.patches is not None
        assert found.grid is not None
        told = self.region(found.patches * found.patches.shape[2] ** 0.5)
        kinds, *rest = told.split([self.kinds + 1, *[self.colours, 3] * 2], 2)
        cover = F.adaptive_avg_pool2d(mask, found.grid).flatten(1)  # (B, P)
        what = torch.where(cover > 0.5, kind[:, None], self.kinds)
        loss = F.cross_entropy(kinds.flatten(0, 1), what.flatten())
        for logits, mean, part in ((*rest[:2], mask), (*rest[2:], 1 - mask)):
            share = F.adaptive_avg_pool2d(part, found.grid).flatten(1)
            wanted = shares(named, part, found.grid).flatten(2).transpose(1, 2)  # (B, P, colours)
            colour = shares(pixels, part, found.grid).flatten(2).transpose(1, 2)
            far = -(wanted * F.log_softmax(logits, 2)).sum(2) + FINE * (mean - colour).square().sum(2)
            loss = loss + (far * share).sum() / share.sum().clamp_min(1)
        return loss


def shares(named: Tensor, cover: Tensor, grid: Sequence[int]) -> Tensor:
    """Share of each colour in each cell of a grid, of the pixels that count there."""
    count = F.adaptive_avg_pool2d(cover, tuple(grid))
    return F.adaptive_avg_pool2d(named * cover, tuple(grid)) / count.clamp_min(1e-6)
