"""Pretraining of the very small Qwen2-VL of VisME's table: naming the thing that a picture shows, and its colours.

    folder = named(out / "encoders" / "qwen", data, side=84, width=64, steps=800)

Qwen2-VL learnt from captions, so it looks at the thing in a picture and less at what stands behind it. Here a caption
is the kind of thing and the shares of twelve colours in it, read off the picture and the thing's mask; two crops of one
picture also belong together, at a third of the weight. It is never told that two pictures show the same thing.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from captions import COLOURS, names
from common import say
from pretraining import SCALE, TEMPERATURE, crop, factor, numbers, read_pictures
from torch import Tensor, nn

from idmetric.checkpoints.format import CONFIG
from idmetric.data.manifest.table import Manifest
from idmetric.losses.info_nce import label_info_nce
from idmetric.models.visid import VisIDConfig, VisIDEmbed
from idmetric.train.batches import batch_rows
from idmetric.train.loader import seed_all
from idmetric.train.visme import small_qwen

CROPS = 0.3  # weight of two crops of one picture


def named(
    folder: Path, data: Manifest, *, side: int, width: int, steps: int, batch: int = 64, rate: float = 2e-3
) -> Path:
    """The folder of the model, pretrained if it is not there already: `VisIDEmbed(folder)` opens it.

    Args:
        data: pictures with masks and, in column `category`, kinds. side: of pictures in pixels. width: of the model.
        batch: pictures in a step, each as two crops.
    """
    if not (folder / CONFIG).is_file():
        say(f"\npretraining: {steps} steps on {len(data)} pictures")
        new = folder.with_name(f"{folder.name}-new")
        small_qwen.write(new, "qwen2_vl", width=width, seed=0)
        model = VisIDEmbed(new, config=VisIDConfig(max_pixels=side**2, min_pixels=side**2 // 4))
        _train(model, data, steps, min(batch, len(data)), rate)
        model.save_pretrained(folder)
    return folder


def _train(model: VisIDEmbed, data: Manifest, steps: int, batch: int, rate: float) -> None:
    seed_all(0)
    pictures, masks = read_pictures(model, data, masked=True).split([3, 1], 1)
    shares = torch.cat([_shares(p, m) for p, m in zip(pictures.split(64), masks.split(64), strict=True)])
    kinds, kind = numbers(data.column("category"))
    width = model.backbone.config.text_config.hidden_size
    to_kind, to_colour = (nn.Linear(width, count, bias=False) for count in (len(kinds), len(COLOURS)))
    parameters = [*model.requires_grad_(True).train().parameters(), to_kind.weight, to_colour.weight]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, steps))
    for step in range(steps):
        rows = torch.tensor(batch_rows(step, len(data), batch, 0))
        generator = torch.Generator().manual_seed(step)
        pixels = pictures[rows].float() / 255
        found = model(torch.cat([crop(pixels, generator)[1] for _ in range(2)])).cls

        def told(words: nn.Linear, wanted: Tensor, found: Tensor = found) -> Tensor:
            directions = F.normalize(words.weight, dim=1)
            return F.cross_entropy(SCALE * F.linear(found, directions), torch.cat([wanted, wanted]))

        losses = (
            told(to_kind, kind[rows]),
            told(to_colour, shares[rows]),
            CROPS * label_info_nce(found, torch.arange(batch).repeat(2), temperature=TEMPERATURE),
        )
        optimizer.zero_grad(set_to_none=True)
        torch.stack(losses).sum().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            say(f"  step {step + 1}: kind {losses[0].item():.3f}, colours {losses[1].item():.3f}, "
                f"crops {losses[2].item():.3f}")  # fmt: skip
    model.eval().requires_grad_(False)


def _shares(pictures: Tensor, masks: Tensor) -> Tensor:
    """Share of each colour in the thing, (N, 12): pictures (N, 3, H, W) and masks (N, 1, H, W) in 0..255."""
    cover = masks.float() / 255
    return (names(pictures.float() / 255) * cover).sum((2, 3)) / cover.sum((2, 3)).clamp_min(1e-6)
