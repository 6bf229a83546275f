"""The inputs of a step of VisME, and the precision of its queries in a validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idmetric.metric.models.visid import VisIDEmbed
from idmetric.train.batches import Pictures, generator, share
from idmetric.train.processes import Processes
from idmetric.train.visme.batch_sampler import Batch, Pool, Rows
from idmetric.train.visme.data import Prepared
from idmetric.train.visme.wording import Item, Wording

_HARD = 5  # hard negatives of a query in a validation, at most


class Packed(NamedTuple):
    """The images of items, in any sizes, in two tensors; items of text alone have none.

    Each tensor from a loading process takes an open file, of which many systems allow 1,024; a batch has thousands of
    images.
    """

    flat: Tensor  # uint8, the different images one after the other
    places: Tensor  # int64 (N, 3): start of each item's image in `flat`, its height and width; -1 without one

    @classmethod
    def of(cls, read: Mapping[int, Tensor], rows: Sequence[int | None]) -> Packed:
        """The images of these rows, each uint8 (3, H, W)."""
        parts = [pixels.flatten() for pixels in read.values()]
        starts = dict(zip(read, np.cumsum([0, *map(len, parts)]).tolist(), strict=False))
        places = [(-1, -1, -1) if row is None else (starts[row], *read[row].shape[1:]) for row in rows]
        flat = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8)
        return cls(flat, torch.tensor(places).reshape(-1, 3))

    def take(self, part: slice, device: torch.device | str = "cpu") -> list[Tensor | None]:
        """The images of some items, in [0, 1]."""
        found: list[Tensor | None] = []
        for start, height, width in self.places[part].tolist():
            pixels = self.flat[start : start + 3 * height * width] if start >= 0 else None
            found.append(None if pixels is None else pixels.view(3, height, width).to(device).float() / 255)
        return found


@dataclass(frozen=True)
class Loader:
    """Reads the inputs of the model for a batch of rows; needs no model."""

    pictures: Pictures
    wording: Wording
    batch_size: int

    def load(self, batch: Batch, rank: int, count: int) -> dict[str, Any]:
        """A process's share of a batch: queries, then targets, then hard negatives.

        Every process has equally many of each: hard negatives are divided evenly, whatever their queries, and copies of
        a target fill up the last shares; `negative_valid` excludes them.
        """
        pairs = self.wording.pairs(batch.query, batch.target)
        hard = [row for rows in batch.hard for row in rows]
        each = -(-len(hard) // count)
        own = share(self.batch_size, rank, count)
        mine = [self.wording.candidate(row) for row in hard[rank * each : (rank + 1) * each]]
        mine += [pairs[own[0]][1]] * (each - len(mine))
        items = [*(pairs[i][side] for side in (0, 1) for i in own), *mine]
        identity, negative = self._codes(pairs, hard)
        padding = each * count - len(hard)
        return {
            "pixels": self.pixels(items),
            "words": [item.words for item in items],
            "rows": [-1 if item.row is None else item.row for item in items],
            "identity": torch.from_numpy(identity),
            "negative_identity": torch.from_numpy(np.pad(negative, (0, padding), constant_values=-1)),
            "negative_valid": torch.arange(each * count) < len(hard),
        }

    def pixels(self, items: Sequence[Item]) -> Packed:
        """The images of items; one that occurs twice is read once."""
        rows = [item.row for item in items]
        different = (row for row in dict.fromkeys(rows) if row is not None)
        return Packed.of({row: self.pictures.read_bytes(row) for row in different}, rows)

    def _codes(self, pairs: Sequence[tuple[Item, Item]], hard: Sequence[int]) -> tuple[Rows, Rows]:
        """Numbers of targets and hard negatives, equal for candidates that are not negatives of each other's query.

        In the paper a target is the only match in a batch; of equal texts alone, as queries or as targets, it is not.
        """
        numbers = -1 - np.arange(len(pairs) + len(hard))  # all different
        codes, negative = numbers[: len(pairs)], numbers[len(pairs) :]
        texts: dict[tuple[bool, str], int] = {}
        for place, sides in enumerate(pairs):
            for side, item in enumerate(sides):  # of two texts alone, the target's counts
                if item.row is None:
                    codes[place] = texts.setdefault(_key(side, item), len(texts))
        for place, row in enumerate(hard):
            if row in self.wording.alone:
                negative[place] = texts.setdefault(_key(1, self.wording.candidate(row)), len(texts))
        return codes, negative


def _key(side: int, item: Item) -> tuple[bool, str]:
    """A text alone, as query (0) or candidate (1), in whatever case and spacing."""
    return bool(side), " ".join(item.words.casefold().split())


def precision_at_1(
    model: VisIDEmbed, pictures: Pictures, prepared: Prepared, *, queries: int = 256, chunk: int = 16,
    processes: Processes | None = None,
) -> dict[str, float]:  # fmt: skip
    """Share of queries that find their target as the nearest: {"p@1": mean over datasets, "p@1/NAME": ...}.

    Candidates are the targets of the dataset's queries and up to five hard negatives of each. Each query shows another
    identity; queries, targets and negatives are the same in every validation.

    Args:
        queries: most queries of a dataset. chunk: items embedded at once.
        processes: they share the datasets, and all get all rates.
    """
    rank, count = (processes.rank, processes.count) if processes else (0, 1)
    pools = prepared.data.pools

    def own() -> dict[str, float]:
        return {p.name: _rate(model, pictures, prepared, p, queries, chunk) for p in pools[rank::count]}

    parts = processes.all_values(processes.together(own)) if processes else [own()]
    rates = {name: rate for part in parts for name, rate in part.items()}
    return {"p@1": float(np.mean(list(rates.values()))), **{f"p@1/{pool.name}": rates[pool.name] for pool in pools}}


def _rate(model: VisIDEmbed, pictures: Pictures, prepared: Prepared, pool: Pool, queries: int, chunk: int) -> float:
    rng = generator("validation", pool.name)
    order = rng.permutation(len(pool))
    of_row, hard = prepared.data.shown, prepared.data.hard
    _, first = np.unique(of_row[np.array(pool.queries)[order]], return_index=True)
    chosen = order[np.sort(first)][:queries].tolist()
    pairs = [prepared.wording.pair(pool.queries[i], pool.draw_target(i, rng)) for i in chosen]
    shown = {int(of_row[pool.queries[i]]) for i in chosen}
    near = {h for i in chosen for h in hard.get(pool.rows[i], ())[:_HARD]}
    others = [prepared.wording.candidate(h) for h in sorted(near) if int(of_row[h]) not in shown]
    query = _embed(model, pictures, [q for q, _ in pairs], chunk)
    found = query @ _embed(model, pictures, [t for _, t in pairs] + others, chunk).T
    equal = np.array([
        [*(_same_text(a, b) for b in pairs), *(b.row is None and a[1] == b for b in others)] for a in pairs
    ])  # fmt: skip
    np.fill_diagonal(equal, False)
    found[torch.from_numpy(equal)] = -torch.inf  # to find the same text is correct
    best = found.diagonal().clone()
    found.fill_diagonal_(-torch.inf)
    return float((best > found.max(1).values).float().mean()) if found.shape[1] > 1 else 1.0


def _same_text(a: tuple[Item, Item], b: tuple[Item, Item]) -> bool:
    """Whether two samples search for the same text, or have the same text alone as their query."""
    return any(x.row is None and x == y for x, y in zip(a, b, strict=True))


@torch.no_grad()
def _embed(model: VisIDEmbed, pictures: Pictures, items: Sequence[Item], chunk: int) -> Tensor:
    """Embeddings of items on the CPU, (N, D); four threads read the images."""
    parts = []
    with ThreadPoolExecutor(4) as pool:
        for k in range(0, len(items), chunk):
            some = items[k : k + chunk]
            pixels = list(pool.map(lambda item: None if item.row is None else pictures.read(item.row), some))
            parts.append(model.encode_items(pixels, [item.words for item in some]).cpu())
    return torch.cat(parts)
