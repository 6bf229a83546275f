"""NearID's batches: tuples drawn from seed and step, of which every process reads its share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.metric.files import Progress, in_order
from idmetric.stream import threads
from idmetric.train.batches import Pictures, batch_rows, generator, share, steps_per_epoch
from idmetric.train.features import FeatureCache, picture_keys
from idmetric.train.nearid.data import MISSING, Identity, Rows, Shape, draw
from idmetric.train.processes import Processes

Picture = tuple[int, bool]  # row, and whether its background is black


@dataclass
class NearIDBatches:
    """The batches of a run; they need no model.

    Attributes:
        items: numbers of an epoch's identities. size: tuples in a batch of all processes.
        cache: features of all pictures, by their key in `keys`; None = read them as pixels.
    """

    pictures: Pictures
    identities: Sequence[Identity]
    items: Rows
    shape: Shape
    size: int
    seed: int
    cache: FeatureCache | None = None
    keys: dict[Picture, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.per_epoch = steps_per_epoch(len(self.items), self.size)
        self.oracle = self.pictures.data["oracle"].to_numpy()

    def tuples(self, step: int) -> tuple[Rows, NDArray[np.bool_], Rows]:
        """The whole batch of a step: rows (B, 1 + P + K), -1 = missing; whether they are masked; identities (B,)."""
        numbers = self.items[batch_rows(step, len(self.items), self.size, self.seed)]
        rows = []
        masked = []
        for place, number in enumerate(numbers.tolist()):
            tuple_rows, tuple_masked = draw(self.identities[number], self.shape, generator(self.seed, step, place))
            rows.append(tuple_rows)
            masked.append(tuple_masked)
        return np.stack(rows), np.stack(masked), numbers

    def needed(self, steps: int) -> list[Picture]:
        """The different pictures of these first steps."""
        pictures: set[Picture] = set()
        for step in range(steps):
            rows, masked, _ = self.tuples(step)
            is_filled = rows != MISSING
            pictures.update(zip(rows[is_filled].tolist(), masked[is_filled].tolist(), strict=True))
        return sorted(pictures)

    def load(self, step: int, rank: int, processes: int) -> dict[str, Any]:
        """The pictures of a process's share of a batch, and an index from the slots of the whole batch to pictures.

        Returns:
            pictures (N, 3, H, W) in uint8, or their features (N, T, D) from the cache; index (B, 1 + P + K) into the
            pictures of all processes, each of which sends `each` of them; valid, of the same shape; identity (B,);
            oracle (B, K), NaN where unknown.
        """
        rows, masked, numbers = self.tuples(step)
        valid = rows != MISSING

        # the pictures of each process, one after the other, padded to the most that one of them has
        shares = [share(self.size, number, processes) for number in range(processes)]
        most = max(int(valid[places].sum()) for places in shares)
        index = np.zeros(rows.shape, np.int64)
        for number, places in enumerate(shares):
            is_own = np.zeros_like(valid)
            is_own[places] = valid[places]
            index[is_own] = number * most + np.arange(is_own.sum())

        pictures = []
        picture_rows = []
        for place in shares[rank]:
            for slot in np.flatnonzero(valid[place]).tolist():
                row = int(rows[place, slot])
                is_masked = bool(masked[place, slot])
                if self.cache is not None:
                    picture = self.cache.get(self.keys[row, is_masked])
                else:
                    rng = generator(self.seed, step, place, slot)
                    picture = self.pictures.read_bytes(row, rng, foreground=is_masked)
                pictures.append(picture)
                picture_rows.append(row)

        distractors = rows[:, 1 + self.shape.positives :]
        oracle = np.where(distractors == MISSING, np.nan, self.oracle[distractors])
        return {
            "pictures": torch.stack(pictures),
            "rows": picture_rows,
            "each": most,
            "index": torch.from_numpy(index),
            "valid": torch.from_numpy(valid),
            "identity": torch.from_numpy(numbers),
            "oracle": torch.from_numpy(oracle).float(),
        }

    # Features

    def keep(
        self, cache: FeatureCache, steps: int, tokens: Callable[[Tensor], Tensor], processes: Processes, chunk: int
    ) -> None:
        """Fill a cache with the features of the pictures of these first steps, and use it from now on.

        Args:
            tokens: the trunk: maps pixels (B, 3, H, W) in uint8 to features (B, T, D).
            chunk: pictures that pass the trunk at once on an accelerator. On a CPU they pass one by one, so every bit
                of a picture's features is independent of the other pictures.
        """
        self.keys = processes.on_main(lambda: picture_keys(self.pictures.data, self.needed(steps)))
        pictures = {key: picture for picture, key in self.keys.items()}
        new = sum(key not in cache.parts for key in pictures)
        if processes.main:
            print(f"nearid: features of {new:,} of {len(pictures):,} pictures go to {cache.folder}", flush=True)

        def read(key: str) -> Tensor:
            row, is_masked = pictures[key]
            return self.pictures.read_bytes(row, foreground=is_masked)

        with Progress("pictures", processes.main, verb="computed features of") as progress:
            batch_size = 1 if processes.device.type == "cpu" else chunk
            done = count(1)

            def compute(keys: Sequence[str]) -> Iterator[Tensor]:
                with closing(in_order(read, keys, threads=threads(None), waiting=2 * batch_size)) as pixels:
                    while batch := list(islice(pixels, batch_size)):
                        for features in tokens(torch.stack(batch)):
                            yield features
                            progress(next(done), new // processes.count)

            cache.fill(list(pictures), compute, processes)
        self.cache = cache
