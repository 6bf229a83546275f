"""The inputs of a step of VisME, and the precision of its queries in a validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.metric.visid.visid import VisIDEmbed
from idmetric.train.batches import Pictures, generator, share
from idmetric.train.processes import Processes
from idmetric.train.visme.batch_sampler import Batch, Pool, Rows
from idmetric.train.visme.data import Prepared
from idmetric.train.visme.wording import QueryWording, WordedRow

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
        starts = {}
        end = 0
        for row, pixels in read.items():
            starts[row] = end
            end += pixels.numel()

        places = []
        for item_row in rows:
            if item_row is None:
                places.append((-1, -1, -1))
            else:
                _, height, width = read[item_row].shape
                places.append((starts[item_row], height, width))
        flat = torch.cat([torch.zeros(0, dtype=torch.uint8), *(pixels.flatten() for pixels in read.values())])
        return cls(flat, torch.tensor(places).reshape(-1, 3))

    def take(self, part: slice, device: torch.device | str = "cpu") -> list[Tensor | None]:
        """The images of some items, in [0, 1]."""
        images: list[Tensor | None] = []
        for start, height, width in self.places[part].tolist():
            if start < 0:
                images.append(None)
                continue
            pixels = self.flat[start : start + 3 * height * width].view(3, height, width)
            images.append(pixels.to(device).float() / 255)
        return images


@dataclass(frozen=True)
class RowLoader:
    """Reads the inputs of the model for a batch of rows; needs no model."""

    pictures: Pictures
    wording: QueryWording
    batch_size: int

    def load(self, batch: Batch, rank: int, count: int) -> dict[str, Any]:
        """A process's share of a batch: queries, then targets, then hard negatives.

        Every process has equally many of each: hard negatives are divided evenly, whatever their queries, and copies of
        a target fill up the last shares; `negative_valid` excludes them.
        """
        pairs = self.wording.pairs(batch.query, batch.target)
        hard = [row for rows in batch.hard for row in rows]
        pair_numbers = share(self.batch_size, rank, count)
        queries = [pairs[number][0] for number in pair_numbers]
        targets = [pairs[number][1] for number in pair_numbers]

        negatives_each = math.ceil(len(hard) / count)
        own_hard = hard[rank * negatives_each : (rank + 1) * negatives_each]
        negatives = [self.wording.candidate(row) for row in own_hard]
        negatives += [targets[0]] * (negatives_each - len(negatives))

        items = [*queries, *targets, *negatives]
        identity, negative_identity = self._codes(pairs, hard)
        negative_count = negatives_each * count
        padding = (0, negative_count - len(hard))
        return {
            "pixels": self.pixels(items),
            "words": [item.words for item in items],
            "rows": [-1 if item.row is None else item.row for item in items],
            "identity": torch.from_numpy(identity),
            "negative_identity": torch.from_numpy(np.pad(negative_identity, padding, constant_values=-1)),
            "negative_valid": torch.arange(negative_count) < len(hard),
        }

    def pixels(self, items: Sequence[WordedRow]) -> Packed:
        """The images of items; one that occurs twice is read once."""
        rows = [item.row for item in items]
        different = (row for row in dict.fromkeys(rows) if row is not None)
        return Packed.of({row: self.pictures.read_bytes(row) for row in different}, rows)

    def _codes(self, pairs: Sequence[tuple[WordedRow, WordedRow]], hard: Sequence[int]) -> tuple[Rows, Rows]:
        """Codes of targets and of hard negatives; candidates of an equal code are not negatives of each other's query.

        Rows with an image have a code of their own, below 0; equal texts share one. In the paper a target is the only
        match in a batch, which does not hold where queries or targets are equal texts without an image.
        """
        all_different = -1 - np.arange(len(pairs) + len(hard))
        codes = all_different[: len(pairs)]
        negative_codes = all_different[len(pairs) :]
        texts: dict[tuple[str, str], int] = {}
        for number, (query, target) in enumerate(pairs):
            if query.row is None:
                codes[number] = texts.setdefault(("query", _plain(query)), len(texts))
            if target.row is None:  # of two texts alone, the target's counts
                codes[number] = texts.setdefault(("candidate", _plain(target)), len(texts))
        for number, row in enumerate(hard):
            if row in self.wording.alone:
                text = _plain(self.wording.candidate(row))
                negative_codes[number] = texts.setdefault(("candidate", text), len(texts))
        return codes, negative_codes


def _plain(item: WordedRow) -> str:
    """The words of an item, in whatever case and spacing."""
    return " ".join(item.words.casefold().split())


def precision_at_1(
    model: VisIDEmbed,
    pictures: Pictures,
    prepared: Prepared,
    *,
    queries: int = 256,
    chunk: int = 16,
    processes: Processes | None = None,
) -> dict[str, float]:
    """Share of queries that find their target as the nearest: {"p@1": mean over datasets, "p@1/NAME": ...}.

    Candidates are the targets of the dataset's queries and up to five hard negatives of each. Each query shows another
    identity; queries, targets and negatives are the same in every validation.

    Args:
        queries: most queries of a dataset. chunk: items embedded at once.
        processes: they share the datasets, and all get all rates.
    """

    def rates_of(pools: Sequence[Pool]) -> dict[str, float]:
        return {pool.name: _rate(model, pictures, prepared, pool, queries, chunk) for pool in pools}

    pools = prepared.data.pools
    if processes is None:
        rates = rates_of(pools)
    else:
        own_pools = pools[processes.rank :: processes.count]
        rates = {}
        for process_rates in processes.all_values(processes.together(lambda: rates_of(own_pools))):
            rates |= process_rates
    return {"p@1": float(np.mean(list(rates.values()))), **{f"p@1/{pool.name}": rates[pool.name] for pool in pools}}


def _rate(model: VisIDEmbed, pictures: Pictures, prepared: Prepared, pool: Pool, queries: int, chunk: int) -> float:
    """The precision at 1 of a dataset."""
    # queries of different identities, with a target each
    rng = generator("validation", pool.name)
    order = rng.permutation(len(pool))
    identity = prepared.data.shown
    _, first_positions = np.unique(identity[np.array(pool.queries)[order]], return_index=True)
    instances = order[np.sort(first_positions)][:queries].tolist()
    target_rows = [pool.draw_target(k, rng) for k in instances]
    pairs = [prepared.wording.pair(pool.queries[k], row) for k, row in zip(instances, target_rows, strict=True)]

    # hard negatives that show none of the queries' identities
    query_identities = {int(identity[pool.queries[k]]) for k in instances}
    hard_rows: set[int] = set()
    for k in instances:
        hard_rows.update(prepared.data.hard.get(pool.rows[k], ())[:_HARD])
    negatives = [row for row in sorted(hard_rows) if int(identity[row]) not in query_identities]
    negative_items = [prepared.wording.candidate(row) for row in negatives]

    query_embeddings = _embed(model, pictures, [query for query, _ in pairs], chunk)
    candidates = [*(target for _, target in pairs), *negative_items]
    similarity = query_embeddings @ _embed(model, pictures, candidates, chunk).T
    if similarity.shape[1] == 1:
        return 1.0

    # candidates that are right as well do not count against a query
    candidate_identity = identity[[*target_rows, *negatives]]
    is_also_right = candidate_identity == identity[target_rows][:, None]
    is_also_right |= _has_equal_texts(pairs, candidates)
    np.fill_diagonal(is_also_right, False)
    similarity[torch.from_numpy(is_also_right)] = -torch.inf
    to_target = similarity.diagonal().clone()
    similarity.fill_diagonal_(-torch.inf)
    return float((to_target > similarity.max(1).values).float().mean())  # a tie loses


def _has_equal_texts(
    pairs: Sequence[tuple[WordedRow, WordedRow]], candidates: Sequence[WordedRow]
) -> NDArray[np.bool_]:
    """Whether each candidate (Q, C) is the text of a query's target, or the target of an equal query of text alone."""
    equal = np.zeros((len(pairs), len(candidates)), dtype=bool)
    for row, (query, target) in enumerate(pairs):
        for column, candidate in enumerate(candidates):
            if target.row is None and candidate.row is None:
                equal[row, column] = _plain(target) == _plain(candidate)
        for column, (other_query, _) in enumerate(pairs):
            if query.row is None and other_query.row is None:
                equal[row, column] |= _plain(query) == _plain(other_query)
    return equal


@torch.no_grad()
def _embed(model: VisIDEmbed, pictures: Pictures, items: Sequence[WordedRow], chunk: int) -> Tensor:
    """Embeddings of items on the CPU, (N, D); four threads read the images."""

    def read(item: WordedRow) -> Tensor | None:
        return None if item.row is None else pictures.read(item.row)

    parts = []
    with ThreadPoolExecutor(4) as pool:
        for start in range(0, len(items), chunk):
            batch = items[start : start + chunk]
            pixels = list(pool.map(read, batch))
            parts.append(model.encode_items(pixels, [item.words for item in batch]).cpu())
    return torch.cat(parts)
