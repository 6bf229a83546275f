"""NearID (Cvejic et al., "NearID: Identity Representation Learning via Near-identity Distractors", arXiv 2604.01973).

SigLIP2 stays frozen; its attention-pooling head, 3.6 % of the parameters, learns to rank another view of the identity
above near-identity distractors, and these above the other identities of the batch (Eq. 1-3).

    idmetric train nearid --data nearid.parquet --out run/
    NearID("run/")

Paper: 11 epochs of 128 tuples a batch, about 3,350 steps, 6.5 hours on one A100 (appendix 0.D); SSR 30.7 % -> 99.2 %
(Table 1). Table 3 is `--objective`, Table 8 `--alpha`, Table 9 `--beta`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idmetric.data.curate.masking import inherit_masks
from idmetric.data.manifest.table import Manifest, merge
from idmetric.metric.models.nearid import NearID
from idmetric.train import augment
from idmetric.train.batches import VALIDATION, Pictures, check_held_out, rows_in, share
from idmetric.train.features import FeatureCache, trunk_id
from idmetric.train.gradcache import cached_backward
from idmetric.train.losses.arrays import cosines
from idmetric.train.losses.near_id import Tuples, near_id_terms
from idmetric.train.losses.near_id_objectives import circle_ranked, oracle_info_nce, sigmoid_ranked, symmetric_info_nce
from idmetric.train.nearid import siglip
from idmetric.train.nearid.batches import Batches
from idmetric.train.nearid.config import SMOKE as SMOKE
from idmetric.train.nearid.config import Config
from idmetric.train.nearid.data import Identity, check, digest, find, items, rows_of
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe as Interface
from idmetric.train.recipe import painted
from idmetric.train.validate import validation

MASKS = True  # the check before training reads them too


def smoke_data(folder: Path) -> Manifest:
    """Painted identities with distractors, others with part-edits as in MTG, and some of both to validate."""
    from idmetric.data.painter import Painter

    near = painted(folder / "near", Painter(size=64, distractors=True), 9, 3)
    parts = painted(folder / "parts", Painter(seed=1, size=64, views=2, parts=True), 4, 1)
    return merge([near, parts])


class Recipe(Interface):
    """The recipe of NearID."""

    name = "nearid"
    prefetch = 1  # batches that a loading process holds: one takes 0.2 GB of pixels, or 0.9 GB of cached features

    def __init__(
        self,
        config: Config,
        data: Manifest,
        identities: list[Identity],
        held_out: Manifest | None,
        model: NearID,
        processes: Processes,
    ) -> None:
        self.config, self.held_out, self.model, self.processes = config, held_out, model, processes
        self.best = ""  # known with the first validation
        self.rank, self.count = processes.rank, processes.count
        changes = partial(augment.nearid, size=model.image_size, interpolation=model.interpolation)
        self.batches = Batches(
            Pictures.of(model, data, changes if config.augment else None),
            identities,
            items(identities, config.repeat),
            config.shape,
            config.batch_size,
            config.seed,
        )
        self.steps = config.steps or config.epochs * self.batches.per_epoch
        free = ("chunk", "cache", "backbone_weights", "revision")  # "weights" identifies the latter two
        self.settings: dict[str, Any] = {
            **{name: value for name, value in asdict(config).items() if name not in free},
            "weights": model.revision,
            "data": digest(data, identities),
            "identities": len(identities),
        }

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW (section 4.1)."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=self.config.lr, weight_decay=self.config.weight_decay)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then cosine annealing to 0 (section 4.1)."""
        warmup = min(self.config.warmup, self.steps // 10)
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup)))

    def load(self, step: int) -> dict[str, Any]:
        """This process's share of a step's batch; see `Batches.load`."""
        return self.batches.load(step, self.rank, self.count)

    def prepare(self, out: Path) -> None:
        """Fill the cache of features, if one is asked for; see `Batches.keep`."""
        if not self.config.cache:
            return
        trunk = trunk_id(self.model, siglip.trunk_state(self.model), self.processes.precision)
        cache = FeatureCache(self.config.cache, trunk)
        self.batches.keep(cache, self.steps, self._tokens, self.processes, self.config.chunk)

    # Step

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Run the trunk without gradients, then the head and the loss of all processes' tuples (Eq. 3 or Table 4)."""
        chunks = list(batch["pictures"].split(self.config.chunk))
        if batch["pictures"].dtype == torch.uint8:
            chunks = [self._tokens(part) for part in chunks]
        else:
            chunks = [part.to(self.processes.device, non_blocking=True) for part in chunks]
        padding = batch["each"] - len(batch["pictures"])  # every process sends the same number
        if padding:
            chunks += torch.split(chunks[0][:1].expand(padding, -1, -1), self.config.chunk)
        where = {name: batch[name].to(self.processes.device) for name in ("index", "valid", "identity", "oracle")}
        found = cached_backward(
            lambda tokens: self.model.backbone.forward_head(tokens, pre_logits=True),
            chunks,
            lambda embedded: self._loss(embedded, **where),
            self.processes,
        )
        return {**found, "images": float(len(batch["pictures"]))}

    def _tokens(self, pixels: Tensor) -> Tensor:
        """The frozen trunk's features (B, T, D) of 8-bit pixels, in the precision in which the head reads them."""
        x = self.model.normalize(pixels.to(self.processes.device, non_blocking=True).float() / 255)
        with torch.no_grad(), self.processes.autocast():
            tokens: Tensor = self.model.backbone.forward_features(x)
        return tokens.to(self.processes.dtype)

    def _loss(
        self, embedded: Tensor, index: Tensor, valid: Tensor, identity: Tensor, oracle: Tensor
    ) -> dict[str, Tensor]:
        slots, first = embedded[index], 1 + self.config.shape.positives
        tuples = Tuples(slots[:, 0], slots[:, 1:first], slots[:, first:], valid[:, 1:first], valid[:, first:], identity)
        return values_of(self.config, tuples, oracle)

    # Result

    def validate(self) -> Mapping[str, float]:
        """SSR, PA and more (section 3.4) on the rows of split val."""
        if self.held_out is None:
            return {}
        with self.processes.autocast():
            found = validation(self.model, self.held_out, batch_size=self.config.chunk, processes=self.processes)
        self.best = next((name for name in ("ssr", "part_ssr", "map") if name in found), "")
        return found


def values_of(config: Config, tuples: Tuples, oracle: Tensor) -> dict[str, Tensor]:
    """The loss of a batch, its terms if they have names, and the share of anchors in order.

    Args:
        config: of the recipe. tuples: the whole batch. oracle: scores (B, K) of distractors, NaN where unknown.

    Returns:
        "loss"; for the NearID loss "discrimination", "ranking" and "cohesion"; with distractors, `ordered`.
    """
    tau, alpha = config.temperature, config.alpha
    distractors = config.objective.endswith("-distractors")
    more: dict[str, Tensor] = {}
    if config.objective == "nearid":
        terms = near_id_terms(tuples, temperature=tau)
        loss = terms.discrimination + alpha * terms.ranking + config.beta * terms.cohesion
        more = {name: value.detach() for name, value in terms._asdict().items()}
    elif config.objective.startswith("info-nce"):
        loss = symmetric_info_nce(tuples, temperature=tau, distractors=distractors)
    elif config.objective.startswith("oracle"):
        loss = oracle_info_nce(tuples, oracle, temperature=tau, distractors=distractors, alpha=alpha)
    elif config.objective == "siglip":
        loss = sigmoid_ranked(tuples, temperature=tau, alpha=alpha, per_anchor=config.sigmoid_per_anchor)
    else:
        loss = circle_ranked(tuples, temperature=tau, alpha=alpha)
    if tuples.distractor.shape[1]:
        more["ordered"] = ordered(tuples)
    return {"loss": loss, **more}


def ordered(tuples: Tuples) -> Tensor:
    """Share of anchors nearer to all their positives than to all their distractors, among anchors with both."""
    with torch.no_grad():
        anchor = tuples.anchor[:, None]
        near = cosines(anchor, tuples.positive)[:, 0].masked_fill(~tuples.positive_valid, torch.inf)
        far = cosines(anchor, tuples.distractor)[:, 0].masked_fill(~tuples.distractor_valid, -torch.inf)
        both = tuples.positive_valid.any(1) & tuples.distractor_valid.any(1)
        return ((near.amin(1) > far.amax(1)) & both).sum() / both.sum().clamp_min(1)


def build(config: Config, data: Manifest, processes: Processes) -> Recipe:
    """Prepare tuples and model for training."""
    share(config.batch_size, processes.rank, processes.count)  # refuses a batch that cannot be shared
    identities, notes = find(data, engines=config.engines)
    data = inherit_masks(data)  # a distractor's mask is that of its view (released code)
    check(data, identities, config.shape, notes, oracle=config.objective.startswith("oracle"))
    others, _ = find(data, VALIDATION)
    check_held_out(data, rows_of(identities), rows_of(others))
    held_out = data.take(rows_in(data, VALIDATION)) if others else None
    if processes.main:
        parts = sum(identity.parts for identity in identities)
        print(
            f"nearid: {len(identities):,} identities, {parts:,} of them with part-edits alone, {config.repeat} times "
            f"per epoch; {len(others):,} to validate" + (f"; left out: {'; '.join(notes)}" if notes else ""),
            flush=True,
        )
    model = siglip.start(config).to(processes.device)
    return Recipe(config, data, identities, held_out, model, processes)
