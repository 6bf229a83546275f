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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from idmetric.data.curate.masking import inherit_masks
from idmetric.data.manifest import merge, take
from idmetric.train import augment
from idmetric.train.batches import VALIDATION, Pictures, check_batch, check_held_out, rows_in, share
from idmetric.train.features import FeatureCache, trunk_id
from idmetric.train.gradcache import cached_backward
from idmetric.train.losses.near_id import Tuples, distractor_cosines, near_id_terms
from idmetric.train.losses.near_id_objectives import circle_ranked, oracle_info_nce, sigmoid_ranked, symmetric_info_nce
from idmetric.train.nearid import siglip
from idmetric.train.nearid.batches import NearIDBatches
from idmetric.train.nearid.config import SMOKE as SMOKE
from idmetric.train.nearid.config import Config as Config  # for `idmetric train`
from idmetric.train.nearid.config import NearIDTraining
from idmetric.train.nearid.data import check, digest, find, items, rows_of
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe as Interface
from idmetric.train.recipe import decisive, painted
from idmetric.train.validate import validation

if TYPE_CHECKING:
    from pandas import DataFrame

MASKS = True  # the check before training reads them too


def smoke_data(folder: Path) -> DataFrame:
    """Painted identities with distractors, others with part-edits as in MTG, and some of both to validate."""
    from idmetric.data.painter import Painter

    near = painted(folder / "near", Painter(size=64, distractors=True), 9, 3)
    parts = painted(folder / "parts", Painter(seed=1, size=64, views=2, parts=True), 4, 1)
    return merge([near, parts])


class NearIDRecipe(Interface):
    """The recipe of NearID."""

    name = "nearid"
    prefetch = 1  # batches that a loading process holds: one takes 0.2 GB of pixels, or 0.9 GB of cached features

    def __init__(self, config: NearIDTraining, data: DataFrame, processes: Processes) -> None:
        self.processes = processes
        identities, notes = find(data, engines=config.engines)
        data = inherit_masks(data)  # a distractor's mask is that of its view (released code)
        check(data, identities, config.shape, notes, oracle=config.objective.startswith("oracle"))
        tuples = items(identities, config.repeat)
        check_batch(config.batch_size, len(tuples), "tuples of identities")
        share(config.batch_size, processes.rank, processes.count)  # raises if it cannot be
        self.config = config
        validated, _ = find(data, VALIDATION)
        check_held_out(data, rows_of(identities), rows_of(validated))
        self.held_out = take(data, rows_in(data, VALIDATION)) if validated else None
        if processes.main:
            parts = sum(identity.parts for identity in identities)
            left_out = f"; left out: {'; '.join(notes)}" if notes else ""
            print(
                f"nearid: {len(identities):,} identities, {parts:,} of them with part-edits alone, {config.repeat} "
                f"times per epoch; {len(validated):,} to validate{left_out}",
                flush=True,
            )

        self.model = siglip.start(config).to(processes.device)
        augmentation = partial(augment.nearid, size=self.model.image_size, interpolation=self.model.interpolation)
        self.batches = NearIDBatches(
            Pictures.of(self.model, data, augmentation if config.augment else None),
            identities,
            tuples,
            config.shape,
            config.batch_size,
            config.seed,
        )
        self.steps = config.steps or config.epochs * self.batches.per_epoch
        self.settings = decisive(
            config,
            ("chunk", "cache", "backbone_weights", "revision"),  # "weights" identifies the latter two
            weights=self.model.revision,
            data=digest(data, identities),
            identities=len(identities),
        )

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW (section 4.1)."""
        return torch.optim.AdamW(self.parameters(), lr=self.config.lr, weight_decay=self.config.weight_decay)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then cosine annealing to 0 (section 4.1)."""
        warmup = min(self.config.warmup, self.steps // 10)
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup)))

    def load(self, step: int) -> dict[str, Any]:
        """This process's share of a step's batch; see `NearIDBatches.load`."""
        return self.batches.load(step, self.processes.rank, self.processes.count)

    def prepare(self, out: Path) -> None:
        """Fill the cache of features, if one is asked for; see `NearIDBatches.keep`."""
        if self.config.cache:
            trunk = trunk_id(self.model, siglip.trunk_state(self.model), self.processes.precision)
            cache = FeatureCache(self.config.cache, trunk)
            self.batches.keep(cache, self.steps, self._tokens, self.processes, self.config.chunk)

    # Step

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Run the trunk without gradients, then the head and the loss of all processes' tuples (Eq. 3 or Table 4)."""
        pictures = batch["pictures"]
        chunks = []
        for chunk in pictures.split(self.config.chunk):
            is_pixels = chunk.dtype == torch.uint8
            chunks.append(self._tokens(chunk) if is_pixels else self.processes.place(chunk))
        padding = batch["each"] - len(pictures)  # every process sends the same number
        if padding:
            chunks += torch.split(chunks[0][:1].expand(padding, -1, -1), self.config.chunk)
        names = ("index", "valid", "identity", "oracle")
        slots = self.processes.place({name: batch[name] for name in names})
        values = cached_backward(
            lambda tokens: self.model.backbone.forward_head(tokens, pre_logits=True),
            chunks,
            lambda embedded: self._loss(embedded, **slots),
            self.processes,
        )
        return {**values, "images": float(len(pictures))}

    def _tokens(self, pixels: Tensor) -> Tensor:
        """The frozen trunk's features (B, T, D) of 8-bit pixels, in the precision in which the head reads them."""
        x = self.model.normalize(self.processes.place(pixels).float() / 255)
        with torch.no_grad(), self.processes.autocast():
            tokens: Tensor = self.model.backbone.forward_features(x)
        return tokens.to(self.processes.dtype)

    def _loss(
        self, embedded: Tensor, index: Tensor, valid: Tensor, identity: Tensor, oracle: Tensor
    ) -> dict[str, Tensor]:
        slots = embedded[index]
        is_positive = slice(1, 1 + self.config.shape.positives)
        is_distractor = slice(is_positive.stop, None)
        tuples = Tuples(
            anchor=slots[:, 0],
            positive=slots[:, is_positive],
            distractor=slots[:, is_distractor],
            positive_valid=valid[:, is_positive],
            distractor_valid=valid[:, is_distractor],
            identity=identity,
        )
        return values_of(self.config, tuples, oracle)

    # Result

    def validate(self) -> Mapping[str, float]:
        """SSR, PA and more (section 3.4) on the rows of split val."""
        if self.held_out is None:
            return {}
        with self.processes.autocast():
            measures = validation(self.model, self.held_out, batch_size=self.config.chunk, processes=self.processes)
        self.best = next((name for name in ("ssr", "part_ssr", "map") if name in measures), "")
        return measures


build = NearIDRecipe


def values_of(config: NearIDTraining, tuples: Tuples, oracle: Tensor) -> dict[str, Tensor]:
    """The loss of a batch, its terms if they have names, and the share of anchors in order.

    Args:
        config: of the recipe. tuples: the whole batch. oracle: scores (B, K) of distractors, NaN where unknown.

    Returns:
        "loss"; for the NearID loss "discrimination", "ranking" and "cohesion"; with distractors, `ordered`.
    """
    tau = config.temperature
    alpha = config.alpha
    distractors = config.objective.endswith("-distractors")
    values: dict[str, Tensor] = {}
    if config.objective == "nearid":
        terms = near_id_terms(tuples, temperature=tau)
        loss = terms.discrimination + alpha * terms.ranking + config.beta * terms.cohesion
        values = {name: value.detach() for name, value in terms._asdict().items()}
    elif config.objective.startswith("info-nce"):
        loss = symmetric_info_nce(tuples, temperature=tau, distractors=distractors)
    elif config.objective.startswith("oracle"):
        loss = oracle_info_nce(tuples, oracle, temperature=tau, distractors=distractors, alpha=alpha)
    elif config.objective == "siglip":
        loss = sigmoid_ranked(tuples, temperature=tau, alpha=alpha, per_anchor=config.sigmoid_per_anchor)
    else:
        loss = circle_ranked(tuples, temperature=tau, alpha=alpha)
    if tuples.distractor.shape[1]:
        values["ordered"] = ordered(tuples)
    return {"loss": loss, **values}


@torch.no_grad()
def ordered(tuples: Tuples) -> Tensor:
    """Share of anchors nearer to all their positives than to all their distractors, among anchors with both."""
    positive = distractor_cosines(tuples.anchor, tuples.positive)
    positive = positive.masked_fill(~tuples.positive_valid, torch.inf)
    distractor = distractor_cosines(tuples.anchor, tuples.distractor)
    distractor = distractor.masked_fill(~tuples.distractor_valid, -torch.inf)
    has_both = tuples.positive_valid.any(1) & tuples.distractor_valid.any(1)
    is_ordered = positive.amin(1) > distractor.amax(1)
    is_ordered &= has_both
    return is_ordered.sum() / has_both.sum().clamp_min(1)
