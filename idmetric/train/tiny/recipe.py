"""IDSim("tiny"), the embedded model: a small ResNet trained from scratch on rendered identities.

    idmetric-data world --out world --identities 7000 --size 144 --quality 100 --strengths 0.3 0.5 0.75 1 --mixed \\
        --assets DATA/train --workers 0
    idmetric-train tiny --data world/manifest.parquet --out run/ \\
        --photos DATA/train/produce DATA/train/backgrounds DATA/train/textures

A group is an identity and its twin, almost alike, in the same contexts: views of one identity and the distractors made
from them. Training is ID-Sim's (Eq. 1): InfoNCE on the global features plus InfoNCE on the negative Sinkhorn distance
of the patches (Eq. 2 and 3). With --photos a part of each step's groups is cut from single photos instead
(`idmetric.train.tiny.photos`), for the statistics of real cameras.

Before the first step all groups are read into one file, `groups.npy` in the run's folder (3 GB for 8,000 groups), and
the photos into `groups.npy.photos.npy`; both may be deleted afterwards, and --cache names another place, for several
runs, of which one makes them. BatchNorm sees the images of one process, so that several processes train a little
differently from one. docs/reports/tiny.md has the measurements.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from idmetric.checkpoints.config import check_mirror_sizes
from idmetric.data.manifest.table import Manifest, ManifestError, Row
from idmetric.distance.sinkhorn import sinkhorn_distance
from idmetric.io.lock import locked
from idmetric.io.output import clear_leftovers, replacing, take_space, writing
from idmetric.io.prefetch import in_order
from idmetric.losses.info_nce import info_nce
from idmetric.models.idsim import IDSim, IDSimConfig
from idmetric.train.batches import Pictures, batch_rows, share
from idmetric.train.options import option
from idmetric.train.processes import Precision, Processes
from idmetric.train.splits import TRAINING, VALIDATION, check_held_out, rows_in
from idmetric.train.state import TrainError
from idmetric.train.tiny.photos import Cuts, cut, draw_cuts, families, photo_files, spread, store_photos
from idmetric.train.validate import measurable, validation

Images = NDArray[np.uint8]
Groups = NDArray[np.int64]  # (G, 2, V) rows of the manifest: views of a thing, and of its twin in the same contexts

CACHE = "groups.npy"
RESNET_18 = (2, 2, 2, 2)
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

    photos: tuple[str, ...] = option((), "folders of photos, or photos, from which further groups are cut")
    cache: str = option("", "file of all groups' images, and of photos beside it, made if not there; default: in --out")
    photo_share: float = option(0.3, "share of a step's groups that are cut from the photos, if there are photos")
    pasted: float = option(0.5, "share of those that show a part of their photo, pasted onto other photos")
    photo_size: int = option(256, "side in pixels at which photos are kept")
    views: int = option(3, "contexts of a group; identities with fewer views are left out")
    shown: int = option(2, "of them, in a step")
    stored_size: int = option(144, "side in pixels at which images are kept")
    steps: int = option(3000, "optimiser steps")
    batch_size: int = option(64, "groups per step")
    lr: float = option(2e-3, "peak learning rate, of AdamW with cosine decay")
    weight_decay: float = option(0.05, "of weight matrices")
    warmup: int = option(100, "steps of linear warm-up")
    max_grad_norm: float = option(1.0, "largest norm of the gradient")
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
    layers: tuple[int, int, int, int] = option(RESNET_18, "blocks of its stages; --init may have fewer")
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
        for name in ("mirrored", "photo_share", "pasted"):
            if not 0 <= (given := getattr(self, name)) <= 1:
                raise ValueError(f"{name} = {given}: a share from 0 to 1 is possible")
        check_mirror_sizes(self.mirror_sizes)
        if min(self.layers) < 1:
            raise ValueError(f"layers = {self.layers}: each stage has a block or more")
        if self.patch_negatives >= self.batch_size:
            raise ValueError(
                f"patch_negatives = {self.patch_negatives} others are not in a batch of {self.batch_size} groups"
            )
        if self.photo_size < 1:
            raise ValueError(f"photo_size = {self.photo_size}: photos are kept at 1 pixel or more")
        if self.photos and self.photo_share:
            if len(photo_places(self)) == self.batch_size:
                raise ValueError(f"photo_share = {self.photo_share}: rendered groups are needed too")
            if not len(photo_places(self)):
                raise ValueError(f"photo_share = {self.photo_share} of a batch of {self.batch_size} is no group")


SMOKE: Mapping[str, Any] = {
    "steps": 8, "batch_size": 4, "warmup": 2, "stored_size": 48, "image_size": 48, "mirror_sizes": (32,),
    "large_size": 48, "small_size": 32, "channels": (8, 8, 16, 16), "log_every": 2, "validate_every": 4,
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


def checked(config: Config, check: Callable[[Manifest], Manifest]) -> Config:
    """The settings with the photos that `check` (`idmetric.train.batches.check`) leaves, file by file."""
    files = photo_files(config.photos)
    if not files:
        return config
    rows = [Row(None, str(path.absolute()), id=f"photo {k}") for k, path in enumerate(files, 1)]
    return replace(config, photos=tuple(check(Manifest.from_rows(rows)).column("path")))


def store(path: Path, data: Manifest, groups: Groups, config: Config) -> None:
    """Write all groups' images, (G, 2, V, size, size, 3) uint8, thing and twin; whole or not at all."""
    with replacing(path) as part:
        _fill(part, data, groups, config)


def _fill(part: Path, data: Manifest, groups: Groups, config: Config) -> None:
    size = config.stored_size
    out = np.lib.format.open_memmap(part, "w+", np.uint8, (len(groups), 2, config.views, size, size, 3))
    take_space(part)
    pictures = Pictures(data, (size, size))

    def images(index: int) -> Images:
        rows = groups[index].ravel()
        found = torch.stack([pictures.read_bytes(int(row)) for row in rows]).permute(0, 2, 3, 1)
        return found.view(2, config.views, size, size, 3).numpy()

    threads = min(8, os.cpu_count() or 1)
    for index, made in enumerate(in_order(images, range(len(groups)), threads=threads, waiting=2 * threads)):
        out[index] = made
    out.flush()


def photo_places(config: Config) -> NDArray[np.int64]:
    """Which of a step's groups are cut from photos: evenly spread, for all processes to have about as many."""
    return np.flatnonzero(spread(config.batch_size, config.photo_share if config.photos else 0.0))


def rendered_places(config: Config) -> NDArray[np.int64]:
    """The others."""
    return np.delete(np.arange(config.batch_size), photo_places(config))


def drawn(count: int, step: int, config: Config) -> NDArray[np.int64]:
    """The rendered groups of a step, in the order of the file."""
    return np.sort(batch_rows(step, count, len(rendered_places(config)), config.seed))


def contexts_drawn(rows: NDArray[np.int64], step: int, config: Config) -> NDArray[np.int64]:
    """In which of their contexts a step shows its rendered groups, (len(rows), shown)."""
    rng = np.random.default_rng([config.seed, 2, step])
    return np.stack([rng.permutation(config.views)[: config.shown] for _ in rows])


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

    Blocks that the model has besides, at the end of a stage, keep theirs: new, they pass on what they get, as the scale
    of their last norm is 0 (Goyal et al. 2017, Sec. 5.1; timm starts so), and the model gives what the other gives.

    Raises:
        TrainError: if its layout differs otherwise.
        idmetric.checkpoints.format.CheckpointError: if it cannot be opened.
    """
    other = IDSim(source, device="cpu")
    own, given = ({k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (model, other))
    besides = own.keys() - given.keys()
    starts = {f"backbone.layer{stage}.{block}." for stage, block in _blocks(own) - _blocks(given) if block}
    if not given.items() <= own.items() or any(not name.startswith(tuple(starts)) for name in besides):
        raise TrainError(f"--init {source}: its layers are not those of this run (--channels, --layers)")
    model.load_state_dict({k: v.float() for k, v in other.state_dict().items()}, strict=False)
    return other.revision


def _blocks(names: Iterable[str]) -> set[tuple[int, int]]:
    """Stage and number of each block that the names of weights tell of."""
    found = (re.match(r"backbone\.layer(\d+)\.(\d+)\.", name) for name in names)
    return {(int(m[1]), int(m[2])) for m in found if m}


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
        self.things = _things(self.data, self.groups)
        self.files = photo_files(config.photos) if len(photo_places(config)) else []
        self.families = families(self.files)
        measures = measurable(held_out) if len(held_out) else []
        self.validation = held_out if measures else None
        self.best = "ssr" if "ssr" in measures else ""
        self.steps, self.cache = config.steps, Path()
        torch.manual_seed(config.seed)
        args = {**MODEL.backbone_args, "channels": config.channels}
        if config.layers != RESNET_18:  # models and runs from before there was this setting keep their hash
            args["layers"] = config.layers
        made = replace(MODEL, image_size=config.image_size, backbone_args=args, mirror_sizes=config.mirror_sizes)
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
        if "layers" not in args:
            del told["layers"]
        if begun:
            told["init"] = begun  # by content: a folder may change
        self.settings: dict[str, Any] = {
            **told,
            "groups": len(self.groups),
            "data": _digest(names),
            "photos": _photo_digest(self.files, self.families),
        }
        share(config.batch_size, processes.rank, processes.count)

    def prepare(self, out: Path) -> None:
        """Read the groups, and the photos, into one file each, unless they are there from before."""
        self.cache = Path(self.config.cache or out / CACHE)
        self.processes.on_main(self._store)
        count = len(np.load(self.cache, mmap_mode="r"))
        cut_out = len(photo_places(self.config))
        if count + cut_out < self.config.batch_size:
            besides = f" beside {cut_out} from photos" if cut_out else ""
            raise TrainError(f"{count} groups do not fill a batch of {self.config.batch_size}{besides}: give more data")

    @property
    def photo_cache(self) -> Path:
        """The file of the photos."""
        return self.cache.with_name(f"{self.cache.name}.photos.npy")

    def _store(self) -> None:
        config = self.config
        decisive = ("data", "views", "stored_size", "groups")
        self._keep(self.cache, decisive, lambda path: store(path, self.data, self.groups, config))
        if self.files:
            made = partial(store_photos, files=self.files, size=config.photo_size)
            self._keep(self.photo_cache, ("photos", "photo_size"), made)

    def _keep(self, path: Path, decisive: Sequence[str], make: Callable[[Path], None]) -> None:
        """Make a file, unless it is there; the note beside it tells what it holds."""
        note = path.with_name(f"{path.name}.json")
        wanted = {name: self.settings[name] for name in decisive}
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(path):
                if not path.is_file():  # nor did another run make it just now
                    note.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")  # first: a file has its note
                    make(path)
        if not note.is_file() or json.loads(note.read_text(encoding="utf-8")) != wanted:
            raise TrainError(
                f"{path} holds other images than these data and settings give: delete it, or name another --cache"
            )

    def modules(self) -> Mapping[str, nn.Module]:
        """See `Recipe`."""
        return {"model": self.model}

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW; only matrices and filters decay."""
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        plain = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": self.config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, self.config.lr)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then a cosine to 0."""
        warmup = self.config.warmup
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))

    def load(self, step: int) -> dict[str, Any]:
        """This process's share of a step's images, (b, 2, shown, H, W, 3) uint8, and what all of them show, (B, 2)."""
        config, size = self.config, self.config.stored_size
        own = share(config.batch_size, self.rank, self.count)
        images = np.empty((len(own), 2, config.shown, size, size, 3), np.uint8)
        things = np.empty((config.batch_size, 2), np.int64)

        photos, rendered = photo_places(config), rendered_places(config)
        groups = np.load(self.cache, mmap_mode="r")
        rows = drawn(len(groups), step, config)
        things[rendered] = self.things[rows]
        for place, row, contexts in zip(rendered, rows, contexts_drawn(rows, step, config), strict=True):
            if place in own:
                images[place - own.start] = groups[row][:, contexts]

        if len(photos):
            cuts = self.cuts(step)
            things[photos] = self.things.max() + 1 + cuts.photos
            mine = slice(*np.searchsorted(photos, (own.start, own.stop)))
            images[photos[mine] - own.start] = cut(np.load(self.photo_cache, mmap_mode="r"), cuts[mine], size)
        return {"images": torch.from_numpy(images), "things": torch.from_numpy(things), "step": step}

    def cuts(self, step: int) -> Cuts:
        """What a step's groups from photos show."""
        config = self.config
        rng = np.random.default_rng([config.seed, 7, step])
        return draw_cuts(self.families, len(photo_places(config)), config.shown, rng, config.pasted)

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
            out = self.model.embed_pixels(pixels.contiguous(memory_format=torch.channels_last))
        assert out.patches is not None
        features = self.processes.gather(out.cls.float().view(*images.shape[:3], -1))
        tokens = self.processes.gather(out.patches.float().view(*images.shape[:3], *out.patches.shape[1:]))
        things = self.processes.place(batch["things"])  # of all processes
        first = global_loss(features, config.temperature, things)
        # photos beside photos, for the next groups' things are the negatives: those of its own kind are harder
        order = torch.from_numpy(np.append(rendered_places(config), photo_places(config))).to(tokens.device)
        second = patch_loss(tokens[order], config.patch_temperature, config.patch_negatives, things[order])
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


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While a file is made no other run makes it; what killed runs left of it goes, for it may be gigabytes."""
    place = path.with_name(f".{path.name}.lock")
    busy = TrainError(f"another run is making {path}: start when it is there, or name another --cache")
    with contextlib.ExitStack() as stack:
        with writing(path, place):
            held = stack.enter_context(locked(place, busy))
        if held:  # where there are no locks, its maker may be alive
            clear_leftovers(path)
        yield


def _things(data: Manifest, groups: Groups) -> NDArray[np.int64]:
    """A number for the identity that each group and its twin show, (G, 2)."""
    names = data.column("identity")
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return np.asarray([[number[names[row]] for row in group[:, 0]] for group in groups], dtype=np.int64)


def _photo_digest(files: Sequence[Path], families: Sequence[Sequence[int]]) -> str:
    """Of the photos' contents, and of which are in a folder together."""
    told = [
        f"{family[0]} {blake2b(file.read_bytes()).hexdigest()}" for file, family in zip(files, families, strict=True)
    ]
    return _digest(told)


def _digest(names: Sequence[str]) -> str:
    return blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
