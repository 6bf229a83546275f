"""Pretraining of a small encoder by kinds of things, whole pictures, and what each of its patches shows.

    model = described(Backbone(NAME, pretrained=False), data, out / "encoder", steps=800)

DINOv3's patches are trained as well (masked tokens, Gram anchoring), and ID-Sim compares patches. An encoder that
learnt by its class token alone would have last patches that nothing was ever asked of. So here, beside what
`pretraining` asks of the class token, that one names background and colours, and each patch tells by a small head which
kind of thing it shows, or none, and in which colours. It is never told that two pictures show the same thing.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from captions import COLOURS, NAMED, names, shares
from common import say
from pretraining import SCALE, TEMPERATURE, crop, factor, numbers, read_pictures
from torch import Tensor, nn

from idmetric import Backbone
from idmetric.checkpoints.format import CONFIG
from idmetric.data.manifest.table import Manifest
from idmetric.losses.info_nce import label_info_nce
from idmetric.models.embedding import Embedding
from idmetric.train.batches import batch_rows
from idmetric.train.loader import seed_all

RATE = 1e-3


class Regions(nn.Module):
    """What class token and patches tell of a picture.

    Args:
        width: of both. kinds: of things. backgrounds: kinds of them.
    """

    def __init__(self, width: int, kinds: int, backgrounds: int) -> None:
        super().__init__()
        self.kinds, self.colours = kinds, len(COLOURS)
        self.whole = nn.Linear(width, backgrounds + 2 * self.colours)
        self.patch = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, kinds + 1 + 2 * self.colours))

    def forward(self, found: Embedding, pixels: Tensor, mask: Tensor, kind: Tensor, background: Tensor) -> list[Tensor]:
        """Losses of the whole picture and of the patches: two scalars.

        Args:
            pixels: (B, 3, H, W) that the embedding was made of, without changes of brightness. mask: (B, 1, H, W), of
                the thing. kind, background: numbers (B,).
        """
        colours = names(pixels)
        said = torch.cat([shares(colours, cover, (1, 1)).flatten(1) for cover in (mask, 1 - mask)], 1) > NAMED
        told = self.whole(found.cls * found.cls.shape[1] ** 0.5)
        scene, named = told.split([told.shape[1] - 2 * self.colours, 2 * self.colours], 1)
        whole = F.cross_entropy(scene, background) + F.binary_cross_entropy_with_logits(named, said.float())
        return [whole, self._patches(found, colours, mask, kind)]

    def _patches(self, found: Embedding, colours: Tensor, mask: Tensor, kind: Tensor) -> Tensor:
        assert found.patches is not None
        assert found.grid is not None
        told = self.patch(found.patches * found.patches.shape[2] ** 0.5)
        kinds, *named = told.split([self.kinds + 1, self.colours, self.colours], 2)
        cover = F.adaptive_avg_pool2d(mask, found.grid).flatten(1)  # (B, P)
        what = torch.where(cover > 0.5, kind[:, None], self.kinds)
        loss = F.cross_entropy(kinds.flatten(0, 1), what.flatten())
        for logits, part, share in zip(named, (mask, 1 - mask), (cover, 1 - cover), strict=True):
            wanted = shares(colours, part, found.grid).flatten(2).transpose(1, 2)  # (B, P, colours)
            far = -(wanted * F.log_softmax(logits, 2)).sum(2)
            loss = loss + (far * share).sum() / share.sum().clamp_min(1)
        return loss


def described(model: Backbone, data: Manifest, folder: Path, *, steps: int, batch: int = 64) -> Backbone:
    """The model after pretraining, from the folder if it is there already, and in eval mode.

    Args:
        model: new, of random weights. data: pictures with masks, kinds and backgrounds, as `idmetric.data.world` makes
            them. batch: pictures in a step, each as two crops.
    """
    if not (folder / CONFIG).is_file():
        say(f"\npretraining: {steps} steps on {len(data)} pictures")
        _train(model, data, steps, batch)
        model.save_pretrained(folder)
    return Backbone.from_pretrained(str(folder), device=str(model.device))


def _train(model: Backbone, data: Manifest, steps: int, batch: int) -> None:
    pictures = read_pictures(model, data, masked=True)
    kinds, kind = numbers(data.column("category"))
    scenes, scene = numbers([str(name).split("-")[0] for name in data.column("background")])
    seed_all(0)
    model.requires_grad_(True).train()
    with torch.no_grad():
        width = model(pictures[:1, :3].float() / 255).cls.shape[-1]
    to_kind, regions = nn.Linear(width, len(kinds), bias=False), Regions(width, len(kinds), len(scenes))
    parameters = [*model.parameters(), *to_kind.parameters(), *regions.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, steps))
    for step in range(steps):
        rows = torch.tensor(batch_rows(step, len(data), batch, 0))
        generator = torch.Generator().manual_seed(step)
        pixels = pictures[rows].float() / 255
        cuts, crops = (torch.cat(two) for two in zip(*(crop(pixels, generator) for _ in range(2)), strict=True))
        found = model(crops)
        embedded = F.normalize(found.cls, dim=-1)
        named = F.cross_entropy(SCALE * F.linear(embedded, F.normalize(to_kind.weight, dim=1)), kind[rows].repeat(2))
        same = label_info_nce(embedded, torch.arange(batch).repeat(2), temperature=TEMPERATURE)
        whole, patches = regions(found, cuts[:, :3], cuts[:, 3:], kind[rows].repeat(2), scene[rows].repeat(2))
        optimizer.zero_grad(set_to_none=True)
        (named + same + whole + patches).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            say(f"  step {step + 1}: kind {named.item():.3f}, crops {same.item():.3f}, whole {whole.item():.3f}, "
                f"patches {patches.item():.3f}")  # fmt: skip
    model.eval().requires_grad_(False)
