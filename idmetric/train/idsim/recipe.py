"""ID-Sim (Chae et al., "ID-Sim: An Identity-Focused Similarity Metric", CVPR 2026).

A frozen ViT with LoRA and two heads learns from triplets of anchor, positive and hard negative: InfoNCE on the cosine
of the class features, plus InfoNCE on minus the Sinkhorn distance of the patch features (Eq. 1-3).

    idmetric train idsim --data train.parquet --out run/
    IDSim("run/")

`idmetric data mine triplets` makes the paper's mixture of triplets (1:1:1, section 3.2). Rows of split val, if there
are any, serve for validation. Paper: 10,000 triplets, 3 epochs (C.2); the hardware is not stated. Tables 7 and 8 are
`--backbone`, `--image-size` and `--terms`.

The paper gives two forms of InfoNCE. The default is that of section 3.3 and Eq. 2: an anchor's own hard negative and
the other instances of the batch, without a margin. `--negatives single --margin 0.1` is that of C.3: the hard negative
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from idmetric.data.manifest import ManifestError, take
from idmetric.metric.checkpoints.format import revision_of
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.idsim import IDSim, IDSimConfig
from idmetric.metric.images import read_image
from idmetric.metric.timm_models import fitted, read_weights, resample_positions
from idmetric.train import augment, lora
from idmetric.train.batches import (
    TRAINING,
    VALIDATION,
    Pictures,
    check_batch,
    check_held_out,
    rows_in,
    share,
    steps_per_epoch,
)
from idmetric.train.idsim.config import SMOKE as SMOKE
from idmetric.train.idsim.config import Config as Config  # for `idmetric train`
from idmetric.train.idsim.config import IDSimTraining
from idmetric.train.idsim.data import MicroBatch, TripletLoader, Triplets, read_triplets
from idmetric.train.idsim.loss import accuracy, compare
from idmetric.train.loader import seed_all
from idmetric.train.losses.info_nce import info_nce
from idmetric.train.options import weights_file
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe, decisive, painted
from idmetric.train.validate import validation

if TYPE_CHECKING:
    from pandas import DataFrame


class IDSimRecipe(Recipe):
    """The recipe of ID-Sim."""

    name = "idsim"

    def __init__(self, config: IDSimTraining, data: DataFrame, processes: Processes) -> None:
        self.processes = processes
        triplets = read_triplets(data, TRAINING)
        self.config = config
        step_size = config.batch_size * config.accumulation
        check_batch(step_size, len(triplets), "triplets", "--batch-size times --accumulation")
        share(config.accumulation, processes.rank, processes.count, "micro-batches")  # raises if they cannot be
        self.steps = config.epochs * steps_per_epoch(len(triplets), step_size)
        _check_identities(config, data, triplets)
        validated = read_triplets(data, VALIDATION) if len(rows_in(data, VALIDATION)) else None
        self.held_out: DataFrame | None = None
        if validated:
            check_held_out(data, triplets.used, validated.used)
            self.held_out = take(data, validated.used)
        self.model = _model(config, processes)
        augmentation = partial(augment.idsim, size=self.model.image_size, interpolation=self.model.interpolation)
        pictures = Pictures.of(self.model, data, augmentation if config.augment else None)
        self.loader = TripletLoader(triplets, pictures, config.batch_size, config.accumulation, config.seed)
        # class features are compared, which patches alone do not train
        self.best = "selection" if validated and config.terms != "patch" else ""
        self.settings = decisive(
            config,
            ("backbone_weights", "revision", "checkpointing"),  # "weights" identifies the former two
            weights=self.model.revision.partition("+")[0],  # of the start: adapters have been added to it
            data=triplets.fingerprint,
            validation=validated.fingerprint if validated else "",
        )
        if processes.main:
            count = len(validated) if validated else 0
            print(f"idsim: {len(triplets):,} triplets to train on; {count:,} of split val to validate", flush=True)

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW on LoRA and heads, weight decay 0 (C.2)."""
        return torch.optim.AdamW(self.parameters(), lr=self.config.lr, weight_decay=0.0)

    def load(self, step: int) -> list[MicroBatch]:
        """This process's share of a step's micro-batches."""
        return self.loader.load(step, self.processes.rank, self.processes.count)

    def step(self, batch: list[MicroBatch]) -> Mapping[str, float | Tensor]:
        """The mean loss over micro-batches, a backward pass for each."""
        logged = []
        for part in batch:
            values = self._loss(part)
            self.processes.backward(values["loss"] / len(batch))
            logged.append({name: value.detach() for name, value in values.items()})
        means: dict[str, float | Tensor] = {}
        for name in logged[0]:
            means[name] = torch.stack([values[name] for values in logged]).mean()
        means["images"] = float(3 * self.config.batch_size * len(batch))
        return means

    def _loss(self, part: MicroBatch) -> dict[str, Tensor]:
        """Eq. 1 on a micro-batch."""
        config = self.config
        seed_all(config.seed, *part.place, 3)  # dropout follows from the micro-batch, whichever process embeds it
        pixels, identity = self.processes.place((part.pixels, part.identity))
        with self.processes.autocast():
            embedded = self.model.embed_pixels(pixels.flatten(0, 1) / 255)
        values = {"loss": torch.zeros((), device=identity.device)}
        for term, features, temperature, weight in (
            ("cls", embedded.cls, config.temperature, 1.0),
            ("patch", embedded.patches, config.patch_temperature, config.patch_weight),
        ):
            if features is None or config.terms not in ("both", term):
                continue
            anchor, positive, negative = features.float().chunk(3)
            similar = compare(anchor, positive, negative, identity, config.negatives)
            loss = info_nce(
                similar.positive, similar.values, temperature=temperature, margin=config.margin, valid=similar.negative
            )
            values["loss"] = values["loss"] + weight * loss
            values[f"{term}_loss"] = loss
            values[f"{term}_accuracy"] = accuracy(similar)
        return values

    def validate(self) -> Mapping[str, float]:
        """The measures of `train.validate` on triplets of split val, and "selection".

        "triplet" is the accuracy of the paper's Real Instance Validation, "auc" the ROC AUC of its Identity Validation;
        selection is their mean ("we use them jointly", B.1), or "triplet" if no edits of identity give an "auc".
        """
        if self.held_out is None:
            return {}
        batch_size = 3 * self.config.batch_size
        measures = validation(self.model, self.held_out, batch_size=batch_size, processes=self.processes)
        selected = [measures[name] for name in ("triplet", "auc") if name in measures]
        return {**measures, "selection": float(np.mean(selected))}


build = IDSimRecipe


def _check_identities(config: IDSimTraining, data: DataFrame, triplets: Triplets) -> None:
    """Refuse triplets that have no negatives for each other, if the batch gives negatives."""
    identities = np.unique(triplets.identity[triplets.rows[:, 0]])
    if config.negatives == "batch" and len(identities) == 1:
        raise ManifestError(
            f"all {len(triplets)} triplets are of one identity, {data['identity'][triplets.rows[0, 0]]!r}, so a "
            "triplet has no other negatives in its batch: add triplets of other identities (`idmetric data mine "
            "triplets`), or choose --negatives single"
        )


def _model(config: IDSimTraining, processes: Processes) -> IDSim:
    """Backbone, LoRA and heads on the process's device, in train mode; a head that `terms` leaves out stays frozen."""
    settings = IDSimConfig(config.backbone, config.image_size, config.hidden, backbone_args=config.backbone_args)
    file = weights_file(config.backbone, config.backbone_weights, config.revision)
    model = untrained(settings, file, config.seed)
    lora.attach(
        model.backbone,
        rank=config.rank,
        alpha=config.alpha,
        dropout=config.dropout,
        targets=config.targets,
        seed=config.seed,
    )
    model.mlp_cls.requires_grad_(config.terms != "patch")
    model.mlp_patch.requires_grad_(config.terms != "cls")
    if config.checkpointing:
        model.backbone.set_grad_checkpointing(True)
    return model.to(processes.device).train()


def untrained(settings: IDSimConfig, weights: str, seed: int) -> IDSim:
    """A model on the CPU with a backbone's weights and random heads.

    Args:
        weights: from `weights_file`; "" leaves the backbone random as well.
        seed: of random weights; torch's global random state does not change.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = IDSim(settings, device="cpu")
    model.name = model.short_name = settings.backbone
    if not weights:
        return model
    tensors = read_weights(weights)
    trunk = model.backbone
    if "patch14_dinov2" in settings.backbone and "pos_embed" in tensors:  # resampled as by Meta, and as in the release
        tensors["pos_embed"] = resample_positions(tensors["pos_embed"], trunk.patch_embed.grid_size, 0.1)
    load_state(trunk, fitted(tensors, trunk, settings.backbone, weights), weights)
    model.requires_grad_(False)
    model.take_revision(revision_of(weights))
    return model


def smoke_data(folder: Path) -> DataFrame:
    """Triplets of all three kinds from a few painted identities, some of them to validate."""
    from idmetric.data.curate.mine import hard_negatives
    from idmetric.data.curate.triplets import mixture
    from idmetric.data.manifest import merge, write
    from idmetric.data.painter import Painter

    painter = Painter(size=64, views=2, strength=0.75, edits=True, contexts=True)
    world = painted(folder / "painted", painter, 6, 2)
    # nearest by colors instead of a model's features
    colors = []
    for path in world["path"]:
        small = read_image(path).resize((4, 4))
        colors.append(np.asarray(small, np.float32).ravel())
    mined = hard_negatives(world, np.stack(colors))
    train = mixture(mined, world, world, count=12, split="train", per_identity=2)
    val = mixture(mined, world, world, count=6, split="val", per_identity=2)
    triplets = merge([train, val], shared=True)
    write(triplets, folder / "triplets.parquet")
    return triplets
