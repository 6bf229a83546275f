"""Does a lower identity loss mean a more similar object, or only a pleased metric? Optimize, then ask another network.

    python examples/optimize_identity.py --what painter --steps 120 --picture painter.png

The object is a square print. Each view rotates, moves, scales and lights it in front of a random background; the
references are four views of the target. Three ways to make a print, trained only by `IdentityLoss`:

painter   a small convolutional generator, each step seen in new contexts
pixels    a free image, each step seen in new contexts
fixed     a free image, always seen in the same context: where adversarial noise is easy

Judges are networks of another architecture with random weights that had no part in training: the cosine of their
features of the bare print and of the target, both minus those of an average print. Prints made for other targets are
the control.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import idmetric
from idmetric import IdentityLoss

SIDE = 32  # of a print


def target_print(seed: int) -> Tensor:
    """A print (3, SIDE, SIDE) to be found: two-colored stripes with a disc."""
    dice = torch.Generator().manual_seed(seed)
    first, second, third = torch.rand(3, 3, 1, 1, generator=dice)
    angle, frequency, phase = torch.rand(3, generator=dice).tolist()
    left, top, radius = (torch.rand(3, generator=dice) - 0.5).tolist()
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    along = x * math.cos(math.pi * angle) + y * math.sin(math.pi * angle)
    stripes = torch.where((along * (4 + 8 * frequency) + 6 * phase).sin() > 0, first, second)
    disc = (x - left).square() + (y - top).square() < (0.3 + abs(radius) / 4) ** 2
    return torch.where(disc, third, stripes)


def views(image: Tensor, count: int, dice: torch.Generator, size: int = 96) -> Tensor:
    """A print (3, h, w) in `count` random contexts (count, 3, size, size), differentiably."""
    angle, scale = 0.9 * (torch.rand(count, generator=dice) - 0.5), 0.55 + 0.3 * torch.rand(count, generator=dice)
    shift = 0.4 * (torch.rand(count, 2, generator=dice) - 0.5)
    light = 0.75 + 0.4 * torch.rand(count, 1, 1, 1, generator=dice)
    behind = F.interpolate(torch.rand(count, 3, 4, 4, generator=dice), (size, size), mode="bicubic").clamp(0, 1)
    cos, sin = angle.cos(), angle.sin()
    rows = [torch.stack([cos, -sin, shift[:, 0]], -1), torch.stack([sin, cos, shift[:, 1]], -1)]
    places = F.affine_grid(torch.stack(rows, 1) / scale[:, None, None], [count, 3, size, size], align_corners=False)
    solid = torch.cat([image, torch.ones_like(image[:1])]).expand(count, -1, -1, -1)
    seen = F.grid_sample(solid, places, align_corners=False)
    return (seen[:, :3] * light + behind * (1 - seen[:, 3:])).clamp(0, 1)


class Pixels(nn.Module):
    """A free print."""

    rate = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(0.1 * torch.randn(3, SIDE, SIDE))

    def forward(self) -> Tensor:
        return self.logits.sigmoid()


class Painter(nn.Module):
    """A print made from fixed noise by a small convolutional net, which finds smooth shapes easier than noise."""

    rate = 0.01

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(1, 16, SIDE // 4, SIDE // 4))
        layers: list[nn.Module] = [nn.Conv2d(16, width, 3, padding=1), nn.SiLU()]
        for _ in range(2):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1), nn.SiLU()]
        self.net = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self) -> Tensor:
        painted: Tensor = self.net(self.noise)[0]
        return painted.sigmoid()


def make(what: str, loss: IdentityLoss, steps: int, seed: int, batch: int = 2) -> tuple[Tensor, Tensor, list[float]]:
    """The print before and after training, and the loss of each step."""
    torch.manual_seed(seed)
    model = Painter() if what == "painter" else Pixels()
    optimizer = torch.optim.Adam(model.parameters(), lr=model.rate)
    before, losses = model().detach(), []
    for step in range(steps):
        dice = torch.Generator().manual_seed(1_000_003 * (seed + 1) + (0 if what == "fixed" else step))
        value = loss(views(model(), 1 if what == "fixed" else batch, dice))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return before, model().detach(), losses


class Judge:
    """An embedder that had no part in the training: three VGG-11 with random weights, batch norms fitted to prints."""

    def __init__(self, seeds: Sequence[int] = (0, 1, 2)) -> None:
        others = torch.stack([target_print(10_000 + i) for i in range(24)])
        self.nets, self.averages = [], []
        for seed in seeds:
            torch.manual_seed(seed)
            net = timm.create_model("vgg11_bn", pretrained=False, features_only=True)
            for layer in net.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.momentum = None  # statistics of all that it has seen: one pass is enough
            self.features(net, others)
            self.nets.append(net.eval())
            self.averages.append(self.features(net, others).mean(0))

    @staticmethod
    @torch.no_grad()
    def features(net: nn.Module, prints: Tensor) -> Tensor:
        """(B, 3, h, w) to (B, D): the means of unit vectors of four of its layers."""
        layers = net(F.interpolate(prints, (64, 64), mode="bilinear"))[1:5]
        return torch.cat([F.normalize(layer, dim=1).mean((2, 3)) for layer in layers], 1)

    def similarity(self, a: Tensor, b: Tensor) -> Tensor:
        """Cosines (N, M) of prints (N, 3, h, w) and (M, 3, h, w), averaged over the networks."""
        found = []
        for net, average in zip(self.nets, self.averages, strict=True):
            x, y = (F.normalize(self.features(net, prints) - average, dim=1) for prints in (a, b))
            found.append(x @ y.T)
        return torch.stack(found).mean(0)


@cache
def judges() -> Judge:
    """The same in each run: making them takes seconds."""
    return Judge()


def main(argv: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Return the prints and the judge's similarities, rows: made for, columns: compared with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("painter", "pixels", "fixed"), default="painter")
    parser.add_argument("--identities", type=int, default=4, help="targets; at least 2, each the others' control")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--distance", default="joint")
    parser.add_argument("--picture", type=Path, help="file to draw targets, starts and results to")
    parser.add_argument("--smoke", action="store_true", help="two targets and three steps, to see that it runs")
    args = parser.parse_args(argv)
    if args.smoke:
        args.identities, args.steps = 2, 3
    if args.identities < 2:
        parser.error("--identities must be at least 2: each is the others' control")
    metric = idmetric.load(args.model, device="cpu")
    targets = torch.stack([target_print(i) for i in range(args.identities)])
    starts, ends, first, last = [], [], [], []
    for i, target in enumerate(targets):
        references = views(target, 4, torch.Generator().manual_seed(i))
        start, end, losses = make(args.what, IdentityLoss(metric, references, distance=args.distance), args.steps, i)
        starts.append(start)
        ends.append(end)
        first.append(losses[0])
        last.append(sum(losses[-5:]) / len(losses[-5:]))
    judge = judges()
    before, after = judge.similarity(torch.stack(starts), targets), judge.similarity(torch.stack(ends), targets)
    own, others = after.diagonal().mean(), after[~torch.eye(len(targets), dtype=torch.bool)].mean()
    print(f"{args.what}: identity loss {sum(first) / len(first):.3f} -> {sum(last) / len(last):.3f}")
    print(f"other networks' similarity to the target: {before.diagonal().mean():.3f} -> {own:.3f}")
    print(f"of prints made for other targets: {others:.3f}")
    found = int((after.argmax(1) == torch.arange(len(targets))).sum())
    print(f"nearer to their own target than to any other: {found} of {len(targets)}")
    if args.picture:
        rows = [torch.cat(list(row), 2) for row in (targets, starts, ends)]
        sheet = (torch.cat(rows, 1).permute(1, 2, 0) * 255).round().byte().numpy()
        Image.fromarray(sheet).resize((sheet.shape[1] * 3, sheet.shape[0] * 3), Image.Resampling.NEAREST).save(
            args.picture
        )
    return {
        "targets": targets, "ends": torch.stack(ends), "before": before, "after": after,
        "first": torch.tensor(first), "last": torch.tensor(last),
    }  # fmt: skip


if __name__ == "__main__":
    main()
