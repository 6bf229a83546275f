"""A small stand-in for a pretrained semantic encoder: it knows kinds of things and whole pictures, not identities.

    model = pretrained(NearID(SMALL), data, out / "encoder", steps=400, seed=0)

SigLIP2 learnt from pictures and captions. Here a picture's caption is the kind of thing that it shows (cross entropy),
and two crops of one picture belong together among those of other pictures (InfoNCE): so its context counts as much as
the thing. It is never told that two pictures show the same thing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from common import say
from torch import Tensor, nn

from idmetric.checkpoint import CONFIG
from idmetric.data.manifest import Manifest
from idmetric.embedder import Embedder
from idmetric.losses.info_nce import label_info_nce
from idmetric.train.batches import Pictures, batch_rows
from idmetric.train.loader import seed_all

Model = TypeVar("Model", bound=Embedder)
TEMPERATURE = 0.1  # of crops
SCALE = 16.0  # of the cosines to the kinds
CROP = (0.35, 1.0)  # share of the picture's area
GAIN = 0.15  # brightness and contrast change by so much


def pretrained(
    model: Model, data: Manifest, folder: Path, *, steps: int, seed: int, batch: int = 64, rate: float = 1e-3
) -> Model:
    """The model after pretraining, from the folder if it is there already, and in eval mode.

    Args:
        model: new, of random weights, on the device to train on. data: pictures and, in column `category`, their kinds.
        folder: is written by `save_pretrained`. batch: pictures in a step, each as two crops.
    """
    if not (folder / CONFIG).is_file():
        say(f"\npretraining, seed {seed}: {steps} steps on {len(data)} pictures")
        _train(model, data, steps, seed, batch, rate)
        model.save_pretrained(folder)
    return type(model).from_pretrained(str(folder), device=str(model.device))


def _train(model: Embedder, data: Manifest, steps: int, seed: int, batch: int, rate: float) -> None:
    device = model.device
    pictures = read_pictures(model, data)
    kinds = sorted({str(kind) for kind in data.column("category")})
    kind = torch.tensor([kinds.index(str(name)) for name in data.column("category")], device=device)
    seed_all(seed)
    model.requires_grad_(True).train()
    with torch.no_grad():
        width = model(pictures[:1].to(device).float() / 255).cls.shape[-1]
    head = nn.Linear(width, len(kinds), bias=False, device=device)  # a direction for each kind
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.05)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * _factor(step, steps)
        rows = torch.tensor(batch_rows(step, len(data), batch, seed))
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        pixels = pictures[rows].float() / 255
        crops = torch.cat([crop(pixels, generator), crop(pixels, generator)]).to(device)
        embedded = F.normalize(model(crops).cls, dim=-1)
        named = F.cross_entropy(SCALE * F.linear(embedded, F.normalize(head.weight, dim=1)), kind[rows].repeat(2))
        same = label_info_nce(embedded, torch.arange(batch, device=device).repeat(2), temperature=TEMPERATURE)
        optimizer.zero_grad(set_to_none=True)
        (named + same).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            say(f"  step {step + 1}: kind {named.item():.3f}, crops {same.item():.3f}")
    model.eval().requires_grad_(False)


def read_pictures(model: Embedder, data: Manifest) -> Tensor:
    """All pictures (N, 3, H, W) as the model sees them, uint8."""
    pictures = Pictures.of(model, data)
    return torch.stack([(255 * pictures.read(row)).round().to(torch.uint8) for row in range(len(data))])


def crop(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """A random crop of each picture, at its size, half of them mirrored, brightness and contrast changed a little."""
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
    mean = found.mean((1, 2, 3), keepdim=True)
    return ((found - mean) * contrast + mean * light).clamp(0, 1)


def _factor(step: int, steps: int) -> float:
    """Linear warm-up over a tenth of the steps, then cosine."""
    warmup = max(1, steps // 10)
    return min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))
