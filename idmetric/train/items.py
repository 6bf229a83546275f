"""What a model of images and texts embeds at a step, and how well its queries find their targets (VisME)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idmetric.train.batches import Pictures, generator, share
from idmetric.train.pools import Prepared
from idmetric.train.sampling import Batch, Data, Plan, Rows
from idmetric.train.wording import Item, Wording
from idmetric.visid import VisIDConfig, VisIDEmbed


@dataclass(frozen=True)
class Sizes:
    """`VisIDEmbed.size_for` without the model."""

    settings: VisIDConfig

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        return VisIDEmbed.size_for(self, height, width)  # type: ignore[arg-type]  # it reads the settings alone


@dataclass(frozen=True)
class Loader:
    """Rows of a batch to what the model embeds; without the model."""

    pictures: Pictures
    wording: Wording
    data: Data
    plan: Plan
    same: str

    def load(self, batch: Batch, step: int, rank: int, count: int) -> dict[str, Any]:
        """A process's share of a batch: queries, then targets, then hard negatives.

        Every process has equally many of each: hard negatives are shared out evenly, whosesoever they are, and the last
        shares are filled up with copies of a target, which `negative_valid` leaves out.
        """
        turns = [step + place for place in range(self.plan.batch)]
        pairs = [self.wording.pair(int(q), int(t), n)
                 for q, t, n in zip(batch.query, batch.target, turns, strict=True)]  # fmt: skip
        hard = (
            np.concatenate([*batch.hard, np.zeros(0, np.int64)])
            if self.plan.hard_as == "candidates"
            else batch.query[:0]
        )
        each = -(-len(hard) // count)
        own = share(self.plan.batch, rank, count)
        mine = [self.wording.candidate(int(r)) for r in hard[rank * each : (rank + 1) * each]]
        mine += [pairs[own[0]][1]] * (each - len(mine))
        items = [*(pairs[i][0] for i in own), *(pairs[i][1] for i in own), *mine]
        identity, negative = self._codes(batch.target, [target for _, target in pairs], hard)
        padding = each * count - len(hard)
        return {
            "pixels": self.pixels(items),
            "words": [item.words for item in items],
            "rows": [-1 if item.row is None else item.row for item in items],
            "identity": torch.from_numpy(identity),
            "negative_identity": torch.from_numpy(np.pad(negative, (0, padding), constant_values=-1)),
            "negative_valid": torch.arange(each * count) < len(hard),
        }

    def pixels(self, items: Sequence[Item]) -> list[Tensor | None]:
        """The images of items; one that occurs twice is read once."""
        read: dict[int, Tensor] = {}
        for item in items:
            if item.row is not None and item.row not in read:
                read[item.row] = self.pictures.read(item.row)
        return [None if item.row is None else read[item.row] for item in items]

    def _codes(self, target: Rows, items: Sequence[Item], hard: Rows) -> tuple[Rows, Rows]:
        """Numbers of targets and hard negatives: equal for candidates that are no negatives of each other's queries."""
        alone = -1 - np.arange(len(target) + len(hard))  # of something that nothing else is
        codes, negative = alone[: len(target)].copy(), alone[len(target) :].copy()
        if self.same == "identities":
            codes, negative = self.data.shown[target].copy(), self.data.shown[hard].copy()
        if self.same != "none":
            texts: dict[str, int] = {}
            for place, item in enumerate(items):
                if item.row is None:
                    text = " ".join(item.words.casefold().split())
                    codes[place] = len(self.data.shown) + texts.setdefault(text, len(texts))
        return codes, negative


def precision_at_1(
    model: VisIDEmbed, pictures: Pictures, prepared: Prepared, *, queries: int = 256, hard: int = 5, chunk: int = 16
) -> dict[str, float]:
    """Share of queries whose nearest candidate is their target: {"p@1": mean over datasets, "p@1/NAME": ...}.

    Candidates are the targets of the dataset's other queries and hard negatives of all of them. No two queries show
    the same; queries, targets and negatives are the same in every validation, whatever the training.

    Args:
        queries: most queries of a dataset. hard: most hard negatives of a query. chunk: items embedded at once.
    """
    rates = {}
    for pool in prepared.data.pools:
        rng = generator("validation", pool.name)
        order = rng.permutation(len(pool))
        _, first = np.unique(prepared.data.shown[pool.queries[order]], return_index=True)
        chosen = order[np.sort(first)][:queries]
        targets = pool.draw_targets(chosen, rng)
        pairs = [prepared.wording.pair(int(pool.queries[i]), int(t), k) for k, (i, t) in
                 enumerate(zip(chosen, targets, strict=True))]  # fmt: skip
        shown = set(prepared.data.shown[pool.queries[chosen]].tolist())
        near = {int(h) for i in chosen for h in prepared.data.designated(int(pool.rows[i]))[:hard]}
        others = [prepared.wording.candidate(h) for h in sorted(near) if int(prepared.data.shown[h]) not in shown]
        query = _embed(model, pictures, [q for q, _ in pairs], chunk)
        found = query @ _embed(model, pictures, [t for _, t in pairs] + others, chunk).T
        equal = np.array([[a.row is None and a.words == b.words for _, b in pairs] for _, a in pairs])
        np.fill_diagonal(equal, False)
        found[:, : len(pairs)][torch.from_numpy(equal)] = -torch.inf  # the same text is no mistake
        best = found.diagonal().clone()
        found.fill_diagonal_(-torch.inf)
        rates[pool.name] = float((best > found.max(1).values).float().mean()) if found.shape[1] > 1 else 1.0
    return {"p@1": float(np.mean(list(rates.values()))), **{f"p@1/{name}": rate for name, rate in rates.items()}}


@torch.no_grad()
def _embed(model: VisIDEmbed, pictures: Pictures, items: Sequence[Item], chunk: int) -> Tensor:
    """Embeddings of items on the CPU, (N, D); images are read by four threads."""
    parts = []
    with ThreadPoolExecutor(4) as pool:
        for k in range(0, len(items), chunk):
            some = items[k : k + chunk]
            pixels = list(pool.map(lambda item: None if item.row is None else pictures.read(item.row), some))
            parts.append(model.encode_items(pixels, [item.words for item in some]).cpu())
    return torch.cat(parts)
