"""A small stand-in for a pretrained semantic encoder, which knows kinds of objects and whole pictures, not identities.

    model = pretrained(NearID(SMALL), data, out / "encoder", steps=400, seed=0)

SigLIP2 learned from pictures and captions. Here a picture's caption is the kind of its object (cross entropy), and two
crops of one picture belong together among those of other pictures (InfoNCE), so the context counts as much as the
object. Nothing in the training says that two pictures show the same object.

With `captions`, the encoder also learns to describe pictures and their regions (see `captions`). For DINOv3, whose
patches are trained as well (masked tokens, Gram anchoring), `captions.Regions` trains the last patches, which a loss on
the class token alone would leave untrained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from captions import Captions
from common import say
from torch import Tensor, nn

from idmetric.data.manifest.table import Manifest
from idmetric.metric.checkpoints.format import CONFIG
from idmetric.metric.images.coverage import read_mask
from idmetric.metric.models.embedder import Embedder
from idmetric.train.batches import Pictures, batch_rows
from idmetric.train.loader import seed_all
from idmetric.train.losses.info_nce import label_info_nce

Model = TypeVar("Model", bound=Embedder)
TEMPERATURE = 0.1  # of crops
SCALE = 16.0  # of the cosines to the kinds
CROP = (0.35, 1.0)  # share of the picture's area
GAIN = 0.15  # brightness and contrast change by so much


def pretrained(
    model: Model,
    data: Manifest,
    folder: Path,
    *,
    steps: int,
    seed: int,
    batch: int = 64,
    rate: float = 1e-3,
    captions: type[Captions] | None = None,
) -> Model:
    """The model after pretraining, in eval mode; a folder that exists is opened instead.

    Args:
        model: with random weights, on the device to train on. data: pictures with their kinds in column `category`.
        folder: written by `save_pretrained`. batch: pictures in a step, each as two crops.
        captions: learn these too; the data then need masks, and backgrounds as `world` names them.
    """
    if not (folder / CONFIG).is_file():
        say(f"\npretraining, seed {seed}: {steps} steps on {len(data)} pictures")
        _train(model, data, steps, seed, batch, rate, captions)
        model.save_pretrained(folder)
    return type(model).from_pretrained(str(folder), device=str(model.device))


def _train(
    model: Embedder, data: Manifest, steps: int, seed: int, batch: int, rate: float, captions: type[Captions] | None
) -> None:
    device = model.device
    pictures = read_pictures(model, data, masked=captions is not None)
    kinds, kind = numbers(data.column("category"), device)
    scenes, scene = numbers([str(name).split("-")[0] for name in data.column("background")] if captions else [], device)
    seed_all(seed)
    model.requires_grad_(True).train()
    with torch.no_grad():
        width = model(pictures[:1, :3].to(device).float() / 255).cls.shape[-1]
    head = nn.Linear(width, len(kinds), bias=False, device=device)  # a direction for each kind
    words = captions(width, len(kinds), len(scenes)).to(device) if captions else None

    def losses(step: int) -> dict[str, Tensor]:
        rows, cuts, crops = (t.to(device) for t in two_crops(pictures, batch, step, seed))
        found = model(crops)
        embedded = F.normalize(found.cls, dim=-1)
        named = F.cross_entropy(SCALE * F.linear(embedded, F.normalize(head.weight, dim=1)), kind[rows].repeat(2))
        same = label_info_nce(embedded, torch.arange(batch, device=device).repeat(2), temperature=TEMPERATURE)
        described = {} if words is None else words(
            found, cuts[:, :3], cuts[:, 3:], kind[rows].repeat(2), scene[rows].repeat(2)
        )  # fmt: skip
        return {"kind": named, "crops": same, **described}

    minimize(losses, [*model.parameters(), *head.parameters(), *(words.parameters() if words else ())], steps, rate)
    model.eval().requires_grad_(False)


def minimize(
    losses: Callable[[int], dict[str, Tensor]], parameters: Sequence[nn.Parameter], steps: int, rate: float,
    every: int = 50,
) -> None:  # fmt: skip
    """Minimize the sum of the losses of each step by AdamW; prints them every so many steps."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, steps))
    for step in range(steps):
        found = losses(step)
        optimizer.zero_grad(set_to_none=True)
        torch.stack([*found.values()]).sum().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % every == 0 or step + 1 == steps:
            say(f"  step {step + 1}: " + ", ".join(f"{name} {loss.item():.3f}" for name, loss in found.items()))


def two_crops(pictures: Tensor, batch: int, step: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (B,) of a step's pictures, two crops of each with all channels, and these crops in changed colors.

    The crops are (2 B, ...), all first ones before all second ones.
    """
    rows = torch.tensor(batch_rows(step, len(pictures), batch, seed))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    pixels = pictures[rows].float() / 255
    cuts, crops = (torch.cat(two) for two in zip(*(crop(pixels, generator) for _ in range(2)), strict=True))
    return rows, cuts, crops


def read_pictures(model: Embedder, data: Manifest, masked: bool = False) -> Tensor:
    """All pictures (N, 3, H, W) as the model sees them, uint8; with masks as a fourth channel (N, 4, H, W)."""
    pictures = Pictures.of(model, data)

    def read(row: int) -> Tensor:
        if not masked:
            return pictures.read(row)
        pixels, source = pictures.read(row), data.source(row, "mask")
        assert source is not None
        return torch.cat([pixels, read_mask(source, pixels.shape[1:])[None]])

    return torch.stack([(255 * read(row)).round().to(torch.uint8) for row in range(len(data))])


def crop(pixels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random crop of each picture at its size, half of them mirrored; and its colors in another light."""
    count = len(pixels)

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    side = draw(*CROP).sqrt()
    mirror = torch.where(draw(0, 1) < 0.5, -1.0, 1.0)
    move = torch.stack([(1 - side) * draw(-1, 1), (1 - side) * draw(-1, 1)], 1)
    place = torch.zeros(count, 2, 3)
    place[:, 0, 0], place[:, 1, 1], place[:, :, 2] = side * mirror, side, move
    found = F.grid_sample(pixels, F.affine_grid(place, list(pixels.shape), align_corners=False), align_corners=False)
    light, contrast = (draw(1 - GAIN, 1 + GAIN)[:, None, None, None] for _ in range(2))
    colors = found[:, :3]
    mean = colors.mean((1, 2, 3), keepdim=True)
    return found, ((colors - mean) * contrast + mean * light).clamp(0, 1)


def numbers(names: Sequence[str | None], device: torch.device | str = "cpu") -> tuple[list[str], Tensor]:
    """The different names in order, and the number of each name given."""
    known = sorted({str(name) for name in names})
    return known, torch.tensor([known.index(str(name)) for name in names], device=device)


def factor(step: int, steps: int) -> float:
    """Linear warm-up over a tenth of the steps, then cosine."""
    warmup = max(1, steps // 10)
    return min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))
