"""Pretrains the very small Qwen2-VL of VisME's table to name the object in a picture and its colors.

    folder = named(out / "encoders" / "qwen", data, side=84, width=64, steps=800)

Qwen2-VL learned from captions, so it looks at the object in a picture more than at its background. Here a caption is
the kind of object and the shares of twelve colors in it, computed from picture and mask; two crops of one picture also
belong together, at a third of the weight. Nothing in the training says that two pictures show the same object.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from captions import COLOURS, names
from common import say
from pretraining import SCALE, TEMPERATURE, minimize, numbers, read_pictures, two_crops
from torch import Tensor, nn

from idmetric.checkpoints.format import CONFIG
from idmetric.data.manifest.table import Manifest
from idmetric.losses.info_nce import label_info_nce
from idmetric.models.visid import VisIDConfig, VisIDEmbed
from idmetric.train.loader import seed_all
from idmetric.train.visme import small_qwen

CROPS = 0.3  # weight of two crops of one picture


def named(
    folder: Path, data: Manifest, *, side: int, width: int, steps: int, batch: int = 64, rate: float = 2e-3
) -> Path:
    """The folder of the pretrained model, made if it does not exist: `VisIDEmbed(folder)` opens it.

    Args:
        data: pictures with masks, and kinds in column `category`. side: of pictures, in pixels. width: of the model.
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

    def losses(step: int) -> dict[str, Tensor]:
        rows, _, crops = two_crops(pictures, batch, step)
        found = model(crops).cls

        def wrong(words: nn.Linear, wanted: Tensor) -> Tensor:
            directions = F.normalize(words.weight, dim=1)
            return F.cross_entropy(SCALE * F.linear(found, directions), torch.cat([wanted, wanted]))

        same = label_info_nce(found, torch.arange(batch).repeat(2), temperature=TEMPERATURE)
        return {"kind": wrong(to_kind, kind[rows]), "colors": wrong(to_colour, shares[rows]), "crops": CROPS * same}

    parameters = [*model.requires_grad_(True).train().parameters(), to_kind.weight, to_colour.weight]
    minimize(losses, parameters, steps, rate, every=100)
    model.eval().requires_grad_(False)


def _shares(pictures: Tensor, masks: Tensor) -> Tensor:
    """Share of each color in the object, (N, 12): pictures (N, 3, H, W) and masks (N, 1, H, W) in 0..255."""
    cover = masks.float() / 255
    return (names(pictures.float() / 255) * cover).sum((2, 3)) / cover.sum((2, 3)).clamp_min(1e-6)
