"""ID-Sim (Chae et al., "ID-Sim: An Identity-Focused Similarity Metric", CVPR 2026).

A frozen ViT with LoRA and two heads learns from triplets of anchor, positive and hard negative: InfoNCE on the cosine
of the class features, plus InfoNCE on minus the Sinkhorn distance of the patch features (Eq. 1-3).

    idmetric train idsim --data train.parquet --out run/
    IDSim("run/")

`idmetric data mine triplets` makes the paper's mixture of triplets (1:1:1, section 3.2). Rows of split val, if there
are any, serve for validation. Paper: 10,000 triplets, 3 epochs (C.2); the hardware is not stated. Its ablations are
switches: `--backbone`, `--image-size` (Table 7), `--terms` (Table 8), `--objective`, `--patch-metric` (Table 9).

The paper gives two forms of InfoNCE. The default is that of section 3.3 and Eq. 2: an anchor's own hard negative and
the other instances of the batch, without a margin. `--negatives single --margin 0.1` is that of C.3: the hard negative
alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idmetric.checkpoints.revision import revision_of
from idmetric.checkpoints.weights import load_state
from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.distance.matrix import distance
from idmetric.models import backbone as backbones
from idmetric.models.idsim import IDSim, IDSimConfig
from idmetric.models.tokens import resample_positions
from idmetric.train import augment, lora, pretrained
from idmetric.train.batches import TRAINING, VALIDATION, Pictures, check_held_out, generator, rows_in, steps_per_epoch
from idmetric.train.idsim.config import SMOKE as SMOKE
from idmetric.train.idsim.config import Config
from idmetric.train.idsim.data import Loader, Part, Share, Triplets, read_triplets
from idmetric.train.idsim.loss import Similarities, accuracy, compare, loss_of
from idmetric.train.loader import seed_all
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe, evaluating
from idmetric.train.validate import validation


class IDSimRecipe(Recipe):
    """The recipe of ID-Sim."""

    name = "idsim"

    def __init__(
        self, config: Config, data: Manifest, loader: Loader, held_out: Triplets | None, model: IDSim,
        processes: Processes,
    ) -> None:  # fmt: skip
        self.config, self.data, self.loader, self.held_out = config, data, loader, held_out
        self.model, self.processes = model, processes
        self.rank, self.count = processes.rank, processes.count
        self.steps = config.epochs * steps_per_epoch(len(loader.triplets), config.batch_size * config.accumulation)
        self.best = "selection" if held_out else ""
        free = ("backbone_weights", "revision", "checkpointing")  # "weights" identifies the former two
        self.settings: dict[str, Any] = {
            **{k: v for k, v in asdict(config).items() if k not in free},
            "weights": model.revision.partition("+")[0],  # of the start: adapters have been added to it
            "data": loader.triplets.fingerprint, "validation": held_out.fingerprint if held_out else "",
        }  # fmt: skip

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW on LoRA and heads, weight decay 0 (C.2)."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=self.config.lr, weight_decay=0.0)

    def load(self, step: int) -> list[Part]:
        """This process's share of a step's micro-batches."""
        return self.loader.load(step, self.rank, self.count)

    def step(self, batch: list[Part]) -> Mapping[str, float | Tensor]:
        """The mean loss over micro-batches, a backward pass for each."""
        found: dict[str, list[Tensor]] = defaultdict(list)
        for part in batch:
            values = self._loss(part)
            self.processes.backward(values["loss"] / len(batch))
            for name, value in values.items():
                found[name].append(value.detach())
        means = {name: torch.stack(values).mean() for name, values in found.items()}
        return {**means, "images": float(sum(3 * part.pixels.shape[1] for part in batch))}

    def _loss(self, part: Part) -> dict[str, Tensor]:
        """Eq. 1 on this process's anchors; its mean over processes is the loss of the micro-batch."""
        shared = part.pixels.shape[1] < self.config.batch_size
        # dropout follows from the micro-batch, whichever process embeds it
        seed_all(self.config.seed, *part.place, 3 + (self.rank if shared else 0))
        pixels, identity = self.processes.place((part.pixels, part.identity))
        pixels = pixels / 255 if pixels.dtype == torch.uint8 else pixels
        with self.processes.autocast():
            embedded = self.model.embed_pixels(pixels.flatten(0, 1))
        found: dict[str, Tensor] = {}
        total = torch.zeros((), device=identity.device)
        for term, features in self._terms(embedded.cls, embedded.patches, part):
            anchor, positive, negative = features.float().chunk(3)
            if shared:
                positive, negative = self.processes.gather(positive), self.processes.gather(negative)
            similarities = compare(
                anchor, positive, negative, identity, part.first, self.config.negatives, self.config.patch_metric,
                **self.config.sinkhorn,
            )  # fmt: skip
            loss = self._objective(term, similarities)
            total = total + (loss if term == "cls" else self.config.patch_weight * loss)
            found |= {f"{term}_loss": loss, f"{term}_accuracy": accuracy(similarities)}
        return {"loss": total, **found}

    def _terms(self, cls: Tensor, patches: Tensor | None, part: Part) -> list[tuple[str, Tensor]]:
        """The features that the loss compares, (3b, D) and (3b, P, D)."""
        assert patches is not None
        found = [("cls", cls)] if self.config.terms != "patch" else []
        if self.config.terms == "cls":
            return found
        if patches.shape[1] > self.config.max_tokens:
            chance = generator(self.config.seed, *part.place, "tokens")  # the same in all processes
            chosen = np.sort(chance.permutation(patches.shape[1])[: self.config.max_tokens])
            patches = patches[:, torch.from_numpy(chosen).to(patches.device)]
        return [*found, ("patch", patches)]

    def _objective(self, term: str, similarities: Similarities) -> Tensor:
        c, prefix = self.config, "" if term == "cls" else "patch_"
        return loss_of(
            similarities, c.objective, temperature=getattr(c, f"{prefix}temperature"), margin=c.margin,
            hinge_margin=c.hinge_margin, threshold=getattr(c, f"{prefix}threshold"),
        )  # fmt: skip

    def validate(self) -> Mapping[str, float]:
        """The measures of `train.validate` on triplets of split val, the accuracy by patches, and "selection".

        "triplet" is the accuracy of the paper's Real Instance Validation, "auc" the ROC AUC of its Identity Validation;
        selection is their mean ("we use them jointly", B.1), or "triplet" if no edits of identity give an "auc".
        """
        if self.held_out is None:
            return {}
        size, terms = self.config.batch_size, self.config.terms
        rows = self.data.take(self.held_out.used)
        found = validation(self.model, rows, batch_size=3 * size, processes=self.processes)
        chosen = [found[name] for name in ("triplet", "auc") if name in found]
        if terms != "cls" and self.config.validate_patches:
            pictures = Pictures.of(self.model, self.data)
            found |= patch_accuracy(self.model, pictures, self.held_out, self.config.validate_patches, size)
        if terms == "patch":  # class features are not trained
            chosen = [found["triplet_patch"]]
        return {**found, "selection": float(np.mean(chosen))}

    def save(self, folder: Path) -> None:
        """Write the model with LoRA folded into its weights: the result opens without peft."""
        with lora.folded(self.model.backbone):
            super().save(folder)


def build(config: Config, data: Manifest, processes: Processes) -> IDSimRecipe:
    """Prepare triplets and model for training.

    Raises:
        ManifestError: if there are no triplets, or they contradict themselves, with the command that makes them; if
            training and validation share images or identities.
        ValueError: if they fill no batch, or processes cannot share one.
        CheckpointError: if the backbone cannot be loaded.
    """
    triplets = read_triplets(data, TRAINING)
    Share.of(config.batch_size, config.accumulation, processes.rank, processes.count)
    steps_per_epoch(len(triplets), config.batch_size * config.accumulation)
    identities = set(triplets.identity[triplets.rows[:, 0]].tolist())
    if config.negatives == "batch" and len(identities) == 1:
        raise ManifestError(
            f"all {len(triplets)} triplets are of one identity, {data[int(triplets.rows[0, 0])].identity!r}, so a "
            "triplet has no other negatives in its batch: add triplets of other identities (`idmetric data mine "
            "triplets`), or choose --negatives single"
        )
    held_out = read_triplets(data, VALIDATION) if len(rows_in(data, VALIDATION)) else None
    if held_out:
        check_held_out(data, triplets.used, held_out.used)
    model = _model(config, processes)
    steps = partial(
        augment.idsim, size=model.image_size, scale=config.crop, jitter=config.jitter, jitter_p=config.jitter_p,
        blur_p=config.blur_p, keep_shape=config.keep_shape, interpolation=model.interpolation,
    )  # fmt: skip
    pictures = Pictures.of(model, data, steps if config.augment else None)
    loader = Loader(triplets, pictures, config.batch_size, config.accumulation, config.noise, config.seed)
    if processes.main:
        print(_summary(triplets, held_out), flush=True)
    return IDSimRecipe(config, data, loader, held_out, model, processes)


def _summary(triplets: Triplets, held_out: Triplets | None) -> str:
    kinds = ", ".join(f"{count:,} {name}" for name, count in triplets.mixtures.items())
    validated = f"; {len(held_out):,} to validate" if held_out else "; none of split val to validate"
    return f"idsim: {len(triplets):,} triplets to train on{f' ({kinds})' if kinds else ''}{validated}"


def _model(config: Config, processes: Processes) -> IDSim:
    """Backbone, LoRA and heads on the process's device, in train mode; a head that `terms` leaves out stays frozen."""
    names = ("backbone", "image_size", "hidden", "backbone_args", "features", "residual", "center")
    settings = IDSimConfig(**{name: getattr(config, name) for name in names})
    file = pretrained.weights_file(config.backbone, config.backbone_weights, config.revision)
    model = untrained(settings, file, config.seed)
    lora.attach(model.backbone, config.rank, config.alpha, config.dropout, config.targets, seed=config.seed)
    model.mlp_cls.requires_grad_(config.terms != "patch")
    model.mlp_patch.requires_grad_(config.terms != "cls")
    if config.checkpointing:
        model.backbone.set_grad_checkpointing(True)
    return model.to(processes.device).train()


def untrained(settings: IDSimConfig, weights: str, seed: int) -> IDSim:
    """A model on the CPU with a backbone's weights and random heads.

    Args:
        weights: from `pretrained.weights_file`; "" leaves the backbone random as well.
        seed: of random weights; torch's global random state does not change.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = IDSim(settings, device="cpu")
    model.name = settings.backbone
    if weights:
        _load_backbone(model, settings, weights)
        model.take_revision(revision_of(weights))
    return model


def _load_backbone(model: IDSim, settings: IDSimConfig, weights: str) -> None:
    """Load weights at the model's image size; DINOv2's positions are resampled as by Meta, and as in the release."""
    name, args = settings.backbone, settings.backbone_args
    if "_dinov3" in name:  # no table of positions to resample; biases that the model lacks are refused
        state = backbones.pretrained_state(name, weights, args)
    else:
        state = backbones.build(name, image_size=settings.image_size, args=args, weights=weights).state_dict()
    if "patch14_dinov2" in name:
        patch = state["patch_embed.proj.weight"].shape[-1]
        table = backbones.pretrained_state(name, weights, args)["pos_embed"]
        state["pos_embed"] = resample_positions(table, (settings.image_size // patch,) * 2, 0.1)
    load_state(model.backbone, state, weights)
    model.requires_grad_(False)


@torch.no_grad()
def patch_accuracy(
    model: IDSim, pictures: Pictures, triplets: Triplets, limit: int, batch_size: int
) -> dict[str, float]:
    """Share of triplets in which the positive is nearer than the negative; a tie counts as wrong.

    Args:
        pictures: without augmentation. limit: most triplets, always the same. batch_size: triplets embedded at once.

    Returns:
        "triplet_patch" by the Sinkhorn distance of patches, "triplet_joint" by its sum with that of class features
        ("joint CLS+patch embedding", B.3).
    """
    chosen = generator("validation of patches").permutation(len(triplets))[:limit]
    right: dict[str, list[Tensor]] = {"patch": [], "joint": []}
    with evaluating(model), ThreadPoolExecutor(4) as pool:
        for start in range(0, len(chosen), batch_size):
            rows = triplets.rows[chosen[start : start + batch_size]].T
            pixels = torch.stack(list(pool.map(pictures.read, rows.ravel().tolist())))
            found, count = model(pixels.to(model.device)), rows.shape[1]
            anchor, positive, negative = (found[k * count : (k + 1) * count] for k in range(3))
            for kind, hits in right.items():
                hits.append(distance(anchor, positive, kind) < distance(anchor, negative, kind))
    return {f"triplet_{kind}": torch.cat(hits).float().mean().item() for kind, hits in right.items()}


def smoke_data(folder: Path) -> Manifest:
    """Triplets of all three kinds from a few rendered identities, some of them to validate."""
    from idmetric.data.curate.mine import hard_negatives
    from idmetric.data.curate.triplets import mixture
    from idmetric.data.manifest.table import merge, read
    from idmetric.data.world.write import Plan, write_world

    path = folder / "triplets.parquet"
    if path.is_file():
        return read(path)
    plan = Plan(size=64, views=2, distractors=0, context_edits=1, identity_edits=1, strengths=(0.75,))
    world = write_world(folder / "world", plan, 6)
    number = [int(name.split("~")[0].rsplit("-", 1)[1]) for name in world.column("identity")]
    world = world.replace(split=["val" if n >= 4 else "train" for n in number])
    # nearest by colors instead of a model's features
    looks = np.stack([np.asarray(world.image(k).resize((4, 4)), np.float32).ravel() for k in range(len(world))])
    mined = hard_negatives(world, looks).manifest
    parts = [
        mixture(mined, world, world, count=count, split=split, per_identity=2)
        for split, count in (("train", 12), ("val", 6))
    ]
    merge(parts, shared=True).write(path)
    return read(path)
