"""A small stand-in for a pretrained semantic encoder: it knows kinds of things and whole pictures, not identities.

    model = pretrained(NearID(SMALL), data, out / "encoder", steps=400, seed=0)

SigLIP2 learnt from pictures and captions. Here a picture's caption is the kind of thing that it shows (cross entropy),
and two crops of one picture belong together among those of other pictures (InfoNCE): so its context counts as much as
the thing. It is never told that two pictures show the same thing. With `captions`, it also learns what captions would
say of pictures and their regions (see `captions`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from captions import Captions
from common import say
from torch import Tensor, nn

from idmetric.checkpoints.format import CONFIG
from idmetric.data.manifest.table import Manifest
from idmetric.losses.info_nce import label_info_nce
from idmetric.models.embedder import Embedder
from idmetric.train.batches import Pictures, batch_rows
from idmetric.train.loader import seed_all

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
    captions: bool = False,
) -> Model:
    """The model after pretraining, from the folder if it is there already, and in eval mode.

    Args:
        model: new, of random weights, on the device to train on. data: pictures and, in column `category`, their kinds.
        folder: is written by `save_pretrained`. batch: pictures in a step, each as two crops.
        captions: learn these too; the data then need masks and backgrounds as `idmetric.data.world` names them.
    """
    if not (folder / CONFIG).is_file():
        say(f"\npretraining, seed {seed}: {steps} steps on {len(data)} pictures")
        _train(model, data, steps, seed, batch, rate, captions)
        model.save_pretrained(folder)
    return type(model).from_pretrained(str(folder), device=str(model.device))


def _train(model: Embedder, data: Manifest, steps: int, seed: int, batch: int, rate: float, captions: bool) -> None:
    device = model.device
    pictures = read_pictures(model, data, masked=captions)
    kinds, kind = numbers(data.column("category"), device)
    scenes, scene = numbers([str(name).split("-")[0] for name in data.column("background")] if captions else [], device)
    seed_all(seed)
    model.requires_grad_(True).train()
    with torch.no_grad():
        width = model(pictures[:1, :3].to(device).float() / 255).cls.shape[-1]
    head = nn.Linear(width, len(kinds), bias=False, device=device)  # a direction for each kind
    words = Captions(width, len(kinds), len(scenes)).to(device) if captions else None
    parameters = [*model.parameters(), *head.parameters(), *(words.parameters() if words else ())]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.05)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * factor(step, steps)
        rows = torch.tensor(batch_rows(step, len(data), batch, seed))
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        pixels = pictures[rows].float() / 255
        cuts, crops = (
            torch.cat(two).to(device) for two in zip(*(crop(pixels, generator) for _ in range(2)), strict=True)
        )
        found = model(crops)
        embedded = F.normalize(found.cls, dim=-1)
        named = F.cross_entropy(SCALE * F.linear(embedded, F.normalize(head.weight, dim=1)), kind[rows].repeat(2))
        same = label_info_nce(embedded, torch.arange(batch, device=device).repeat(2), temperature=TEMPERATURE)
        optimizer.zero_grad(set_to_none=True)
        told = [] if words is None else words(
            found, cuts[:, :3], cuts[:, 3:], kind[rows].repeat(2), scene[rows].repeat(2)
        )  # fmt: skip
        sum(told, named + same).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            more = "".join(
                f", {name} {value.item():.3f}" for name, value in zip(("words", "regions"), told, strict=False)
            )
            say(f"  step {step + 1}: kind {named.item():.3f}, crops {same.item():.3f}{more}")
    model.eval().requires_grad_(False)


def read_pictures(model: Embedder, data: Manifest, masked: bool = False) -> Tensor:
    """All pictures (N, 3, H, W) as the model sees them, uint8; with masks (N, 4, H, W)."""
    pictures = Pictures.of(model, data)

    def read(row: int) -> Tensor:
        if not masked:
            return pictures.read(row)
        pixels, mask = pictures.read_masked(row)
        assert mask is not None
        return torch.cat([pixels, mask[None]])

    return torch.stack([(255 * read(row)).round().to(torch.uint8) for row in range(len(data))])


def crop(pixels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random crop of each picture, at its size, half of them mirrored; and its colours, changed a little in light."""
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
    colours = found[:, :3]
    mean = colours.mean((1, 2, 3), keepdim=True)
    return found, ((colours - mean) * contrast + mean * light).clamp(0, 1)


def numbers(names: Sequence[str | None], device: torch.device | str = "cpu") -> tuple[list[str], Tensor]:
    """The different names in order, and the number of each."""
    known = sorted({str(name) for name in names})
    return known, torch.tensor([known.index(str(name)) for name in names], device=device)


def factor(step: int, steps: int) -> float:
    """Linear warm-up over a tenth of the steps, then cosine."""
    warmup = max(1, steps // 10)
    return min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))
