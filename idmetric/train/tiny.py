"""IDSim("tiny"), the embedded model: a small ResNet trained from scratch on rendered identities.

    python -m idmetric.train.tiny --assets DATA/train --cache CACHE --out idmetric/weights/tiny

Three steps: render groups of images (an identity and its twin, almost alike, in the same contexts), train on them with
the ID-Sim objective (Eq. 1: InfoNCE on the global features plus InfoNCE on the negative Sinkhorn distance of the
patches, from Eq. 2 and 3), save in the public format. Without --assets everything is procedural. A part of the groups
are crops of single photos of the assets instead (one photo = one identity, another photo of its folder = the twin), for
the statistics of real cameras.

Rendering and training are seeded. Rendered groups are kept in --cache and reused when their settings are the same, and
an interrupted training goes on where its last checkpoint was.

The rendered groups take 3 GB of disk. Where there is a GPU, training runs on it. docs/tiny.md tells what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from idmetric.checkpoint import replacing
from idmetric.data.world import World
from idmetric.embedder import auto_device
from idmetric.idsim import IDSim, IDSimConfig
from idmetric.losses.info_nce import info_nce
from idmetric.sinkhorn import sinkhorn_distance

Images = NDArray[np.uint8]

MODEL = IDSimConfig(
    backbone="resnet18",
    image_size=144,  # larger than in training, whose crops enlarge objects (Touvron et al. 2019, FixRes)
    hidden=256,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    backbone_args={"channels": (32, 64, 128, 256), "output_stride": 16},
)


@dataclass(frozen=True)
class Config:
    """Settings of the recipe; each is a flag of the command."""

    seed: int = 0
    groups: int = 7000  # rendered identities, each with its twin
    photo_groups: int = 1000  # groups cropped from the assets' photos, if there are assets
    views: int = 3  # contexts of a group
    shown: int = 2  # of them, in a step
    render_size: int = 144
    steps: int = 3000
    batch: int = 64  # groups per step
    rate: float = 2e-3
    weight_decay: float = 0.05
    warmup: int = 100
    temperature: float = 0.07
    patch_weight: float = 1.0  # lambda of ID-Sim Eq. 1; the paper weighs the terms 1:1
    patch_temperature: float = 0.05
    patch_negatives: int = 2  # other identities per anchor in the patch term, besides the distractor
    large_size: int = 128  # pixels in training
    small_size: int = 96  # pixels in its first part, which is cheaper so
    small_part: float = 0.7  # that part of the steps
    save_every: int = 100  # steps between checkpoints
    workers: int = 0  # rendering processes; 0 = one per core


# Data


def photo_group(files: Sequence[Path], seed: int, index: int, views: int, size: int) -> Images:
    """Crops of one photo, and the same crops of another photo of its folder: (2, views, size, size, 3)."""
    rng = np.random.default_rng([seed, 7, index])
    path = files[int(rng.integers(len(files)))]
    siblings = [p for p in files if p.parent == path.parent and p != path] or [p for p in files if p != path]
    photos = [_open(path), _open(siblings[int(rng.integers(len(siblings)))])]
    # views of one region: their centres stay near each other, so that they overlap
    centre = rng.uniform(0.3, 0.7, 2)
    crops = [(centre + rng.uniform(-0.12, 0.12, 2), rng.uniform(0.4, 0.95)) for _ in range(views)]
    return np.stack([[_crop(photo, at, min(photo.size) * part, size) for at, part in crops] for photo in photos])


def _open(path: Path) -> Image.Image:
    with Image.open(path) as image:
        image.draft("RGB", (512, 512))
        photo: Image.Image = image.convert("RGB")
    return photo


def _crop(photo: Image.Image, centre: NDArray[np.float64], side: float, size: int) -> Images:
    width, height = photo.size
    side = min(side, width, height)
    left = np.clip(centre[0] * width - side / 2, 0, width - side)
    top = np.clip(centre[1] * height - side / 2, 0, height - side)
    box = (left, top, left + side, top + side)
    return np.asarray(photo.resize((size, size), Image.Resampling.BICUBIC, box=box))


def _world_group(world: World, index: int, views: int) -> Images:
    images, _, twins = world.group(index, views=views, distractors=views)
    return np.stack([images, twins])


def render(config: Config, assets: Path | None, cache: Path) -> Images:
    """All groups, (G, 2, views, size, size, 3) uint8: thing and twin; memory-mapped from the cache folder."""
    cache.mkdir(parents=True, exist_ok=True)
    wanted = {k: getattr(config, k) for k in ("seed", "groups", "photo_groups", "views", "render_size")}
    wanted["assets"] = assets is not None
    data, record = cache / "groups.npy", cache / "groups.json"
    if not (data.is_file() and record.is_file() and json.loads(record.read_text()) == wanted):
        record.unlink(missing_ok=True)
        photos = sorted(assets.glob("produce/*/*")) if assets else []
        photos += sorted(assets.glob("backgrounds/*")) + sorted(assets.glob("textures/*")) if assets else []
        count = config.groups + (config.photo_groups if photos else 0)
        shape = (count, 2, config.views, config.render_size, config.render_size, 3)
        out = np.lib.format.open_memmap(data, "w+", np.uint8, shape)
        job = partial(_group, config, World(config.seed, assets, config.render_size), photos)
        start = time.monotonic()
        with (
            _one_thread_each(),
            multiprocessing.get_context("spawn").Pool(config.workers or os.cpu_count()) as pool,
        ):
            for index, group in enumerate(pool.imap(job, range(count), chunksize=8)):
                out[index] = group
                if index % 500 == 499:
                    print(f"rendered {index + 1} of {count} groups, {time.monotonic() - start:.0f} s", flush=True)
        out.flush()
        record.write_text(json.dumps(wanted))
    groups: Images = np.load(data, mmap_mode="r")
    return groups


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside use one thread each for linear algebra: there is already one per core."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _keep_memory() -> None:
    """Let glibc keep freed blocks: fresh pages for every large array can cost more than the arithmetic on it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap as well
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: what is freed stays
            libc.mallopt(-2, 2**28)  # M_TOP_PAD: the heap grows in large steps


def _group(config: Config, world: World, photos: list[Path], index: int) -> Images:
    if index < config.groups:
        return _world_group(world, index, config.views)
    return photo_group(photos, config.seed, index, config.views, config.render_size)


def augment(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Random crop, small rotation, colour change, blur, noise and occlusion of each image on its own.

    Args:
        images: (B, 3, H, W) in [0, 1]. Colour changes stay mild: colour is part of an identity.

    Returns:
        (B, 3, size, size) in [0, 1].
    """
    count = len(images)

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator).to(images.device) * (high - low) + low

    zoom, angle = draw(0.6, 1.0), draw(-0.2, 0.2)
    shift = draw(-1, 1, 2) * (1 - zoom)[:, None]
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    theta = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    grid = F.affine_grid(theta, [count, 3, size, size], align_corners=False)
    x = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    x *= draw(0.87, 1.13, 1, 1, 1) * draw(0.96, 1.04, 3, 1, 1)
    mean = x.mean((2, 3), keepdim=True)
    x.sub_(mean).mul_(draw(0.87, 1.13, 1, 1, 1)).add_(mean)
    x = torch.lerp(x.mean(1, keepdim=True), x, draw(0.85, 1.15, 1, 1, 1))
    soft = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    x.lerp_(soft, draw(-0.5, 1.0, 1, 1, 1).clamp_min(0))
    x += torch.randn(x.shape, generator=generator).to(x.device) * draw(0, 0.04, 1, 1, 1)
    # an occluding rectangle of flat colour on a third of the images
    rows = torch.arange(size, device=x.device).view(1, 1, -1, 1) / size
    columns = rows.transpose(2, 3)
    top, left = draw(0, 1, 1, 1, 1), draw(0, 1, 1, 1, 1)
    inside = (rows > top) & (rows < top + draw(0.1, 0.4, 1, 1, 1)) & (columns > left)
    inside &= (columns < left + draw(0.1, 0.4, 1, 1, 1)) & (draw(0, 1, 1, 1, 1) < 0.33)
    return torch.where(inside, draw(0, 1, 3, 1, 1), x).clamp_(0, 1)


# Objective


def global_loss(features: Tensor, temperature: float) -> Tensor:
    """InfoNCE over all ordered pairs of views (ID-Sim Eq. 2).

    Args:
        features: (B, 2, V, D), unit length: thing and twin of each group. An anchor's negatives are all images of other
            things, its own twin's included.
    """
    views = features.shape[2]
    flat = features.flatten(0, 2)
    thing = torch.arange(len(flat), device=flat.device) // views
    similarity = flat @ flat.T
    negative = thing[:, None] != thing[None]
    place = torch.arange(len(flat), device=flat.device)
    losses = []
    for step in range(1, views):  # the positives of each view: the others of its thing, one after another
        positive = thing * views + (place + step) % views
        losses.append(info_nce(similarity[place, positive], similarity, temperature=temperature, valid=negative))
    return torch.stack(losses).mean()


def patch_loss(patches: Tensor, temperature: float, others: int) -> Tensor:
    """InfoNCE on the negative Sinkhorn distance of patch tokens (ID-Sim Eq. 2 and 3).

    Args:
        patches: (B, 2, V, P, D), unit length. Anchor: the thing's first view; positive: its second; negatives: the twin
            in the anchor's context, and the second view of the next `others` groups' things.
    """
    anchor, positive = patches[:, 0, 0], patches[:, 0, 1]
    candidates = [positive, patches[:, 1, 0], *(positive.roll(-k, 0) for k in range(1, others + 1))]
    distance = sinkhorn_distance(anchor.repeat(len(candidates), 1, 1), torch.cat(candidates))
    similarity = -distance.view(len(candidates), len(anchor)).T
    return info_nce(similarity[:, 0], similarity[:, 1:], temperature=temperature)


def train(
    config: Config, groups: Images, device: torch.device, *, checkpoint: Path | None = None, report: int = 50
) -> IDSim:
    """Train a new model on rendered groups (G, 2, V, H, W, 3).

    Args:
        checkpoint: file to which the state of training goes every `save_every` steps. If it is there already, training
            goes on from it, with the result of an uninterrupted run.
        report: steps between printed lines.

    Raises:
        ValueError: if there are fewer groups than one batch, or the checkpoint is of other settings.
    """
    if len(groups) < config.batch:
        raise ValueError(f"{len(groups)} groups do not fill a batch of {config.batch}")
    torch.manual_seed(config.seed)
    model = IDSim(MODEL, device=device)
    model.requires_grad_(True).train().to(memory_format=torch.channels_last)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}], config.rate
    )
    done = 0
    if checkpoint is not None and checkpoint.is_file():
        done = _resume(checkpoint, config, groups, model, optimizer)
    generator = torch.Generator()
    start, recent = time.monotonic(), []
    for step in range(done, config.steps):
        for part in optimizer.param_groups:
            part["lr"] = config.rate * _schedule(step, config)
        # every step draws from its own seed, so that a resumed run sees the same images
        generator.manual_seed(config.seed * 1_000_000 + step)
        batch = torch.from_numpy(draw(groups, step, config)).to(device)
        size = config.small_size if step < config.small_part * config.steps else config.large_size
        pixels = augment(batch.flatten(0, 2).permute(0, 3, 1, 2).float() / 255, size, generator)
        with torch.autocast(device.type, torch.bfloat16):
            # not model(pixels), which would resize them to the model's size
            out = model._encode(pixels.contiguous(memory_format=torch.channels_last))
        assert out.patches is not None
        first = global_loss(out.cls.float().view(*batch.shape[:3], -1), config.temperature)
        tokens = out.patches.float().view(*batch.shape[:3], *out.patches.shape[1:])
        second = patch_loss(tokens, config.patch_temperature, config.patch_negatives)
        optimizer.zero_grad(set_to_none=True)
        (first + config.patch_weight * second).backward()  # type: ignore[no-untyped-call]  # torch's
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append([first.item(), second.item()])
        if step % report == report - 1:
            a, b = np.mean(recent, axis=0)
            recent.clear()
            print(f"step {step + 1}: cls {a:.3f} patch {b:.3f}, {time.monotonic() - start:.0f} s", flush=True)
        if checkpoint is not None and step % config.save_every == config.save_every - 1:
            _save(checkpoint, config, groups, model, optimizer, step + 1)
    model.requires_grad_(False).eval()
    return model


def draw(groups: Images, step: int, config: Config) -> Images:
    """The images of a step, (batch, 2, shown, H, W, 3): thing and twin of each group in some of their contexts."""
    rows = _batch(step, len(groups), config)
    rng = np.random.default_rng([config.seed, 2, step])
    contexts = [rng.permutation(groups.shape[2])[: config.shown] for _ in rows]
    return np.stack([groups[row][:, places] for row, places in zip(rows, contexts, strict=True)])


def _batch(step: int, groups: int, config: Config) -> NDArray[np.int64]:
    """Indices of a step's groups: each epoch is its own permutation, its incomplete last batch left out."""
    epoch, k = divmod(step, groups // config.batch)
    order = np.random.default_rng([config.seed, 1, epoch]).permutation(groups)
    return np.sort(order[k * config.batch : (k + 1) * config.batch])


def _run(config: Config, groups: Images) -> str:
    """What a checkpoint must agree with to be resumed."""
    return json.dumps({**asdict(config), "data": groups.shape}, sort_keys=True)


def _save(
    file: Path, config: Config, groups: Images, model: IDSim, optimizer: torch.optim.Optimizer, done: int
) -> None:
    tensors = {f"model.{name}": value.contiguous() for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value.contiguous() for name, value in state.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as path:
        save_file(tensors, path, metadata={"done": str(done), "run": _run(config, groups)})


def _resume(file: Path, config: Config, groups: Images, model: IDSim, optimizer: torch.optim.Optimizer) -> int:
    """Load what `_save` wrote into model and optimizer; returns the number of steps done."""
    with safe_open(file, "pt") as saved:
        record = saved.metadata()
        if record["run"] != _run(config, groups):
            raise ValueError(f"{file} is of a run with other settings or data: delete it, or name another --out")
        tensors = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118  # not a dict
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    whole = optimizer.state_dict()
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            whole["state"].setdefault(int(index), {})[key] = value
    optimizer.load_state_dict(whole)
    return int(record["done"])


def _schedule(step: int, config: Config) -> float:
    if step < config.warmup:
        return (step + 1) / config.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - config.warmup) / max(1, config.steps - config.warmup)))


def main(argv: Sequence[str] | None = None) -> None:
    """Render, train, save."""
    parser = argparse.ArgumentParser(description="Train the embedded model from scratch.")
    parser.add_argument("--assets", type=Path, help="folder with meshes, shapes, backgrounds, textures, produce")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the rendered groups")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    for field in fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    args: dict[str, Any] = vars(parser.parse_args(argv))
    assets, cache, out = args.pop("assets"), args.pop("cache"), args.pop("out")
    config = Config(**args)
    _keep_memory()
    start = time.monotonic()
    groups = render(config, assets, cache)
    checkpoint = out / "training.safetensors"
    model = train(config, groups, auto_device(), checkpoint=checkpoint)
    # half the size in the wheel; scores differ from float32 weights in the fourth digit at most
    model.half().save_pretrained(out)
    record = {"recipe": "idmetric.train.tiny", **asdict(config)}
    (out / "recipe.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    checkpoint.unlink(missing_ok=True)
    print(f"wrote {out} after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
