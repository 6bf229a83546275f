"""IDSim("tiny"), the embedded model: a small ResNet trained from scratch on rendered identities.

    idmetric-data world --out world --identities 7000 --size 144 --quality 100 --strengths 0.3 0.5 0.75 1 --mixed \\
        --assets DATA/train --workers 0
    idmetric-train tiny --data world/manifest.parquet --out run/ \\
        --photos DATA/train/produce DATA/train/backgrounds DATA/train/textures

A group is an identity and its twin, almost alike, in the same contexts: views of one identity and the distractors made
from them. Training is ID-Sim's (Eq. 1): InfoNCE on the global features plus InfoNCE on the negative Sinkhorn distance
of the patches (Eq. 2 and 3). With --photos a part of the groups are crops of single photos instead (one photo = one
identity, another photo of its folder = the twin), for the statistics of real cameras.

Before the first step all groups are read into one file, `groups.npy` in the run's folder (3 GB for 8,000 groups), which
may be deleted afterwards; --cache names another place, for several runs. BatchNorm sees the images of one process, so
that several processes train a little differently from one. docs/tiny.md tells what was measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from idmetric.ahead import in_order
from idmetric.config import check_mirror_sizes
from idmetric.data.manifest import Manifest, ManifestError, Row
from idmetric.idsim import IDSim, IDSimConfig
from idmetric.images import read_image
from idmetric.losses.info_nce import info_nce
from idmetric.output import replacing
from idmetric.sinkhorn import sinkhorn_distance
from idmetric.train.batches import Pictures, batch_rows, share
from idmetric.train.held_out import TRAINING, VALIDATION, check_held_out, rows_in
from idmetric.train.options import option
from idmetric.train.processes import Precision, Processes
from idmetric.train.state import TrainError
from idmetric.train.validate import measurable, validation

Images = NDArray[np.uint8]
Groups = NDArray[np.int64]  # (G, 2, V) rows of the manifest: views of a thing, and of its twin in the same contexts

CACHE = "groups.npy"
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
MODEL = IDSimConfig(
    backbone="resnet18",
    image_size=176,  # larger than in training, whose crops enlarge objects (Touvron et al. 2019, FixRes)
    hidden=256,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    backbone_args={"channels": (32, 64, 128, 256), "output_stride": 16},
)


@dataclass(frozen=True)
class Config:
    """Settings of the recipe."""

    photos: tuple[str, ...] = option((), "folders of photos, or photos, from which further groups are cropped")
    cache: str = option("", "file of all groups' images, made where it isn't there; empty = groups.npy in --out")
    photo_groups: int = option(1000, "groups cropped from the photos")
    views: int = option(3, "contexts of a group; identities with fewer views are left out")
    shown: int = option(2, "of them, in a step")
    stored_size: int = option(144, "side in pixels at which images are kept")
    steps: int = option(3000, "optimiser steps")
    batch: int = option(64, "groups per step")
    rate: float = option(2e-3, "peak learning rate, of AdamW with cosine decay")
    weight_decay: float = option(0.05, "of weight matrices")
    warmup: int = option(100, "steps of linear warm-up")
    clip: float = option(1.0, "largest norm of the gradient")
    temperature: float = option(0.07, "of the global term")
    patch_weight: float = option(1.0, "lambda of ID-Sim Eq. 1; the paper weighs the terms 1:1")
    patch_temperature: float = option(0.05, "of the patch term")
    patch_negatives: int = option(2, "other identities per anchor in the patch term, besides the twin")
    mirrored: float = option(0.5, "share of groups shown mirrored: thing, twin and all contexts alike")
    large_size: int = option(128, "pixels in training")
    small_size: int = option(96, "pixels in its first part, which is cheaper so")
    small_part: float = option(0.7, "that part of the steps")
    init: str = option("", "weights to start from: tiny, or the folder of an earlier run; empty = new ones")
    channels: tuple[int, int, int, int] = option((32, 64, 128, 256), "widths of the ResNet-18's four stages")
    image_size: int = option(176, "side of the trained model's input")
    mirror_sizes: tuple[int, ...] = option((144,), "sides at which it sees the mirrored image besides")
    seed: int = option(0, "all random numbers follow from it")
    precision: Precision = option("bf16", "mixed precision")
    save_every: int = option(100, "steps between checkpoints")
    validate_every: int = option(500, "steps between validations, on rows of split val")
    log_every: int = option(50, "steps between lines of the log")

    def __post_init__(self) -> None:
        if not 2 <= self.shown <= self.views:
            raise ValueError(f"shown = {self.shown}: a step shows at least 2 of the {self.views} views")
        if not 0 <= self.mirrored <= 1:
            raise ValueError(f"mirrored = {self.mirrored}: a share from 0 to 1 is possible")
        check_mirror_sizes(self.mirror_sizes)
        if self.patch_negatives >= self.batch:
            raise ValueError(
                f"patch_negatives = {self.patch_negatives} others are not in a batch of {self.batch} groups"
            )


SMOKE: Mapping[str, Any] = {
    "steps": 8, "batch": 4, "warmup": 2, "stored_size": 48, "image_size": 48, "mirror_sizes": (32,), "large_size": 48,
    "small_size": 32, "channels": (8, 8, 16, 16), "log_every": 2, "validate_every": 4,
}  # fmt: skip


def smoke_data(folder: Path) -> Manifest:
    """A few rendered things with their twins, some of them to validate."""
    from idmetric.data.world.write import Plan, write_world

    found = write_world(folder, Plan(size=48, strengths=(0.5, 1.0), mixed=True), 10)
    number = [int(name.split("~")[0].rsplit("-", 1)[1]) for name in found.column("identity")]
    return found.replace(split=["val" if n >= 8 else "train" for n in number])


# Data


def groups_of(data: Manifest, views: int) -> Groups:
    """Identities and their twins: rows of the first `views` views that have a distractor, and of these distractors.

    Of several distractors of a view, the n-th of all views belong together, each n a group of its own.

    Raises:
        ManifestError: if there is no such group.
    """
    place = {name: row for row, name in enumerate(data.column("id"))}
    identity, role, parent = (data.column(name) for name in ("identity", "role", "parent"))
    twins: dict[str, dict[str, list[int]]] = {}  # thing -> twin -> its rows
    for row in range(len(data)):
        if role[row] == "distractor" and parent[row] in place:
            thing = identity[place[parent[row]]]
            twins.setdefault(thing, {}).setdefault(identity[row], []).append(row)
    found = []
    for alike in twins.values():
        for rows in alike.values():
            rows = rows[:views]
            if len(rows) == views:
                found.append([[place[parent[row]] for row in rows], rows])
    if not found:
        raise ManifestError(
            f"no identity has {views} views with a distractor each (role distractor, parent = the view): "
            "`idmetric-data world` renders such data"
        )
    return np.asarray(found, dtype=np.int64)


def photo_files(folders: Sequence[str]) -> list[Path]:
    """Images below some folders, in order of their names; a file stands for itself.

    Raises:
        ValueError: if a folder holds none.
    """
    found = []
    for folder in folders:
        below = [Path(folder)] if Path(folder).is_file() else sorted(Path(folder).rglob("*"))
        files = [p for p in below if p.suffix.lower() in _IMAGES and p.name[0] != "."]
        if not files:
            raise ValueError(f"--photos {folder}: no image is there ({', '.join(_IMAGES)})")
        found += files
    return found


def checked(config: Config, check: Callable[[Manifest], Manifest]) -> Config:
    """The settings with the photos that `check` (`idmetric.train.batches.check`) leaves, file by file."""
    files = photo_files(config.photos)
    if not files:
        return config
    rows = [Row(None, str(path.absolute()), id=f"photo {k}") for k, path in enumerate(files, 1)]
    return replace(config, photos=tuple(check(Manifest.from_rows(rows)).column("path")))


def photo_group(files: Sequence[Path], seed: int, index: int, views: int, size: int) -> Images:
    """Crops of one photo, and the same crops of another photo of its folder: (2, views, size, size, 3)."""
    rng = np.random.default_rng([seed, 7, index])
    photos = [_open(files[place]) for place in _two_photos(files, rng)]
    # views of one region: their centres stay near each other, so that they overlap
    centre = rng.uniform(0.3, 0.7, 2)
    crops = [(centre + rng.uniform(-0.12, 0.12, 2), rng.uniform(0.4, 0.95)) for _ in range(views)]
    return np.stack([[_crop(photo, at, min(photo.size) * part, size) for at, part in crops] for photo in photos])


def photos_shown(files: Sequence[Path], seed: int, index: int) -> tuple[int, int]:
    """Which two of the files a group of `photo_group` shows."""
    return _two_photos(files, np.random.default_rng([seed, 7, index]))


def _two_photos(files: Sequence[Path], rng: np.random.Generator) -> tuple[int, int]:
    first = int(rng.integers(len(files)))
    others = [k for k in range(len(files)) if k != first]
    siblings = [k for k in others if files[k].parent == files[first].parent] or others
    return first, siblings[int(rng.integers(len(siblings)))]


def _open(path: Path) -> Image.Image:
    photo = read_image(path)
    photo.thumbnail((512, 512))
    return photo


def _crop(photo: Image.Image, centre: NDArray[np.float64], side: float, size: int) -> Images:
    width, height = photo.size
    side = min(side, width, height)
    left = np.clip(centre[0] * width - side / 2, 0, width - side)
    top = np.clip(centre[1] * height - side / 2, 0, height - side)
    box = (left, top, left + side, top + side)
    return np.asarray(photo.resize((size, size), Image.Resampling.BICUBIC, box=box))


def store(path: Path, data: Manifest, groups: Groups, config: Config) -> None:
    """Write all groups' images, (G, 2, V, size, size, 3) uint8, thing and twin, photos last; whole or not at all."""
    photos = photo_files(config.photos)
    count = len(groups) + (config.photo_groups if photos else 0)
    with replacing(path) as part:
        _fill(part, count, data, groups, photos, config)


def _fill(part: Path, count: int, data: Manifest, groups: Groups, photos: Sequence[Path], config: Config) -> None:
    size = config.stored_size
    out = np.lib.format.open_memmap(part, "w+", np.uint8, (count, 2, config.views, size, size, 3))
    _take_space(part)
    pictures = Pictures(data, (size, size))

    def images(index: int) -> Images:
        if index >= len(groups):
            return photo_group(photos, config.seed, index, config.views, size)
        rows = groups[index].ravel()
        found = torch.stack([pictures.read_bytes(int(row)) for row in rows]).permute(0, 2, 3, 1)
        return found.view(2, config.views, size, size, 3).numpy()

    threads = min(8, os.cpu_count() or 1)
    for index, made in enumerate(in_order(images, range(count), threads=threads, waiting=2 * threads)):
        out[index] = made
    out.flush()


def _take_space(path: Path) -> None:
    """Have a mapped file its space on the disk, for a full one would end the process where it writes to memory."""
    if hasattr(os, "posix_fallocate"):
        handle = os.open(path, os.O_RDWR)
        try:
            os.posix_fallocate(handle, 0, os.fstat(handle).st_size)
        finally:
            os.close(handle)


def drawn(count: int, step: int, config: Config) -> NDArray[np.int64]:
    """The groups of a step, in the order of the file."""
    return np.sort(batch_rows(step, count, config.batch, config.seed))


def draw(groups: Images, step: int, config: Config) -> Images:
    """The images of a step, (batch, 2, shown, H, W, 3): thing and twin of each group in some of their contexts."""
    rows = drawn(len(groups), step, config)
    rng = np.random.default_rng([config.seed, 2, step])
    contexts = [rng.permutation(groups.shape[2])[: config.shown] for _ in rows]
    return np.stack([groups[row][:, places] for row, places in zip(rows, contexts, strict=True)])


def _keep_memory() -> None:
    """Let glibc keep freed blocks: fresh pages for every large array can cost more than the arithmetic on it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap as well
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: what is freed stays
            libc.mallopt(-2, 2**28)  # M_TOP_PAD: the heap grows in large steps


def mirror(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Mirror left and right in a share of the groups, which shows other things: in one group all images or none.

    Args:
        images: (B, 2, V, H, W, 3).
    """
    chosen = torch.rand(len(images), generator=generator) < share
    return torch.where(chosen.to(images.device).view(-1, 1, 1, 1, 1, 1), images.flip(4), images)


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


def global_loss(features: Tensor, temperature: float, things: Tensor | None = None) -> Tensor:
    """InfoNCE over all ordered pairs of views (ID-Sim Eq. 2).

    Args:
        features: (B, 2, V, D), unit length: thing and twin of each group. An anchor's negatives are all images of other
            things, its own twin's included.
        things: (B, 2), which thing each shows, where one may be in several groups; default: each is another.
    """
    views = features.shape[2]
    flat = features.flatten(0, 2)
    thing = torch.arange(len(flat), device=flat.device) // views
    similarity = flat @ flat.T
    shown = thing if things is None else things.flatten().to(flat.device).repeat_interleave(views)
    negative = shown[:, None] != shown[None]
    place = torch.arange(len(flat), device=flat.device)
    losses = []
    for step in range(1, views):  # the positives of each view: the others of its thing, one after another
        positive = thing * views + (place + step) % views
        losses.append(info_nce(similarity[place, positive], similarity, temperature=temperature, valid=negative))
    return torch.stack(losses).mean()


def patch_loss(patches: Tensor, temperature: float, others: int, things: Tensor | None = None) -> Tensor:
    """InfoNCE on the negative Sinkhorn distance of patch tokens (ID-Sim Eq. 2 and 3).

    Args:
        patches: (B, 2, V, P, D), unit length. Anchor: the thing's first view; positive: its second; negatives: the twin
            in the anchor's context, and the second view of the next `others` groups' things.
        things: as for `global_loss`.
    """
    anchor, positive = patches[:, 0, 0], patches[:, 0, 1]
    candidates = [positive, patches[:, 1, 0], *(positive.roll(-k, 0) for k in range(1, others + 1))]
    distance = sinkhorn_distance(anchor.repeat(len(candidates), 1, 1), torch.cat(candidates))
    similarity = -distance.view(len(candidates), len(anchor)).T
    valid = None
    if things is not None:
        shown = things.to(patches.device)[:, 0]
        valid = torch.stack([things.to(patches.device)[:, 1], *(shown.roll(-k) for k in range(1, others + 1))], 1)
        valid = valid != shown[:, None]
    return info_nce(similarity[:, 0], similarity[:, 1:], temperature=temperature, valid=valid)


# Recipe


def take_over(model: IDSim, source: str) -> str:
    """Give the model the weights of another of its layout, at any input sizes; returns the other's revision.

    Raises:
        TrainError: if its layout differs.
        idmetric.checkpoint.CheckpointError: if it cannot be opened.
    """
    other = IDSim(source, device="cpu")
    own, given = ({k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (model, other))
    if own != given:
        raise TrainError(f"--init {source}: its layers are not those of this run (--channels)")
    model.load_state_dict({k: v.float() for k, v in other.state_dict().items()})
    return other.revision


class Tiny:
    """The recipe; see `idmetric.train.loop.Recipe`."""

    name = "tiny"

    def __init__(self, config: Config, data: Manifest, processes: Processes) -> None:
        trained, validated = rows_in(data, TRAINING), rows_in(data, VALIDATION)
        check_held_out(data, trained, validated)
        self.data, held_out = data.take(trained), data.take(validated)
        self.config, self.processes = config, processes
        self.rank, self.count = processes.rank, processes.count
        self.groups = groups_of(self.data, config.views)
        self.things = _things(self.data, self.groups, config)
        measures = measurable(held_out) if len(held_out) else []
        self.validation = held_out if measures else None
        self.best = "ssr" if "ssr" in measures else ""
        self.steps, self.cache = config.steps, Path()
        torch.manual_seed(config.seed)
        size, args = config.image_size, {**MODEL.backbone_args, "channels": config.channels}
        made = replace(MODEL, image_size=size, backbone_args=args, mirror_sizes=config.mirror_sizes)
        self.model = IDSim(made, device=processes.device)
        begun = take_over(self.model, config.init) if config.init else ""
        self.model.requires_grad_(True).train().to(memory_format=torch.channels_last)
        every = self.data.column("id")
        names = [every[row] for row in self.groups.ravel()]
        told = {
            k: v
            for k, v in asdict(config).items()
            if k not in ("cache", "photos", "init", "save_every", "validate_every", "log_every")
        }
        if begun:
            told["init"] = begun  # by content: a folder may change
        photos = [p.name for p in photo_files(config.photos)]
        self.settings: dict[str, Any] = {
            **told,
            "groups": len(self.groups),
            "data": _digest(names),
            "photos": _digest(photos),
        }
        share(config.batch, processes.rank, processes.count)

    def prepare(self, out: Path) -> None:
        """Read the groups into one file, unless it is there from before."""
        self.cache = Path(self.config.cache or out / CACHE)
        self.processes.on_main(self._store)
        count = len(np.load(self.cache, mmap_mode="r"))
        if count < self.config.batch:
            raise TrainError(f"{count} groups do not fill a batch of {self.config.batch}: give more data")

    def _store(self) -> None:
        note = self.cache.with_suffix(".json")
        decisive = ("data", "photos", "photo_groups", "views", "stored_size", "seed", "groups")
        wanted = {name: self.settings[name] for name in decisive}
        if not self.cache.is_file():
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")  # first: a file has its note
            store(self.cache, self.data, self.groups, self.config)
        elif not note.is_file() or json.loads(note.read_text(encoding="utf-8")) != wanted:
            raise TrainError(f"{self.cache} holds other groups than these data and settings give: name another --cache")

    def modules(self) -> Mapping[str, nn.Module]:
        """See `Recipe`."""
        return {"model": self.model}

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW; only matrices and filters decay."""
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        plain = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": self.config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, self.config.rate)

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine to 0."""
        warmup = self.config.warmup
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))

    def load(self, step: int) -> dict[str, Any]:
        """This process's share of a step's images, (b, 2, shown, H, W, 3) uint8."""
        groups = np.load(self.cache, mmap_mode="r")
        images, things = draw(groups, step, self.config), self.things[drawn(len(groups), step, self.config)]
        own = share(self.config.batch, self.rank, self.count)
        return {
            "images": torch.from_numpy(images[own.start : own.stop]),
            "things": torch.from_numpy(things),
            "step": step,
        }

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Both terms of Eq. 1 on the whole batch, gathered from all processes."""
        config, step, images = self.config, batch["step"], self.processes.place(batch["images"])
        size = config.small_size if step < config.small_part * config.steps else config.large_size
        # every step draws from its own seed, so that a resumed run sees the same images
        generator = torch.Generator().manual_seed((config.seed * 1_000_000 + step) + (self.processes.rank << 40))
        if config.mirrored:
            images = mirror(images, config.mirrored, generator)
        pixels = augment(images.flatten(0, 2).permute(0, 3, 1, 2).float() / 255, size, generator)
        with self.processes.autocast():
            # not model(pixels), which would resize them to the model's size
            out = self.model._encode(pixels.contiguous(memory_format=torch.channels_last))
        assert out.patches is not None
        features = self.processes.gather(out.cls.float().view(*images.shape[:3], -1))
        tokens = self.processes.gather(out.patches.float().view(*images.shape[:3], *out.patches.shape[1:]))
        things = self.processes.place(batch["things"])  # of all processes
        first = global_loss(features, config.temperature, things)
        second = patch_loss(tokens, config.patch_temperature, config.patch_negatives, things)
        loss = first + config.patch_weight * second
        self.processes.backward(loss)
        return {"loss": loss.detach(), "cls": first.detach(), "patch": second.detach(), "images": float(len(pixels))}

    def validate(self) -> Mapping[str, float]:
        """SSR, PA and mAP of the rows of split val."""
        if self.validation is None:
            return {}
        self.model.eval()
        return validation(self.model, self.validation, processes=self.processes)

    def save(self, folder: Path) -> None:
        """In half precision: half the size in the package; scores differ in the fourth digit at most."""
        self.model.requires_grad_(False).eval()
        deepcopy(self.model).half().save_pretrained(folder)


def build(config: Config, data: Manifest, processes: Processes) -> Tiny:
    """The recipe on rows of split train, or all rows where the manifest has no splits."""
    _keep_memory()
    return Tiny(config, data, processes)


def _things(data: Manifest, groups: Groups, config: Config) -> NDArray[np.int64]:
    """A number for what each group and its twin show, (G, 2): identities, then photos."""
    names = data.column("identity")
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    found = [[number[names[row]] for row in group[:, 0]] for group in groups]
    if photos := photo_files(config.photos):
        shown = [photos_shown(photos, config.seed, len(groups) + k) for k in range(config.photo_groups)]
        found += [[len(number) + place for place in two] for two in shown]
    return np.asarray(found, dtype=np.int64)


def _digest(names: Sequence[str]) -> str:
    return blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
