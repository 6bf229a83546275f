"""NearID's batches: tuples drawn from seed and step, of which every process reads its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.embed.pipeline import Input, batches
from idmetric.io.progress import Progress
from idmetric.train.batches import Pictures, batch_rows, generator, share, steps_per_epoch
from idmetric.train.features import FeatureCache, picture_keys
from idmetric.train.nearid.data import MISSING, Identity, Rows, Shape, draw
from idmetric.train.processes import Processes

Picture = tuple[int, bool]  # row, and whether its background is black


@dataclass
class Batches:
    """The batches of a run; they need no model.

    Attributes:
        items: numbers of an epoch's identities. size: tuples in a batch of all processes.
        cache: features of pictures, by their key in `keys`; None = read all pictures as pixels.
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
        self.oracle = np.array(self.pictures.data.column("oracle"), dtype=float)

    def tuples(self, step: int) -> tuple[Rows, NDArray[np.bool_], Rows]:
        """The whole batch of a step: rows (B, 1 + P + K), -1 = missing; whether they are masked; identities (B,)."""
        numbers = self.items[batch_rows(step, len(self.items), self.size, self.seed)]
        drawn = [
            draw(self.identities[number], self.shape, generator(self.seed, step, place))
            for place, number in enumerate(numbers.tolist())
        ]
        rows, masked = (np.stack(column) for column in zip(*drawn, strict=True))
        return rows, masked, numbers

    def needed(self, steps: int) -> Counter[Picture]:
        """How often each picture occurs in these first steps."""
        found = Counter[Picture]()
        for step in range(steps):
            rows, masked, _ = self.tuples(step)
            found.update(zip(rows[rows != MISSING].tolist(), masked[rows != MISSING].tolist(), strict=True))
        return found

    def load(self, step: int, rank: int, processes: int) -> dict[str, Any]:
        """The pictures of a process's share of a batch, and an index from the slots of the whole batch to pictures.

        Returns:
            features (N, T, D) of the pictures in the cache, then pixels (M, 3, H, W) in uint8 of the other pictures,
            each None if empty; index (B, 1 + P + K) into the pictures of all processes, each of which sends `each` of
            them; valid, of the same shape; identity (B,); oracle (B, K), NaN where unknown.
        """
        rows, masked, numbers = self.tuples(step)
        valid = rows != MISSING
        keys = {at: self._key((int(rows[at]), bool(masked[at]))) for at in zip(*np.nonzero(valid), strict=True)}
        places = []  # slots of each process's pictures, first those in the cache
        for other in range(processes):
            own = share(self.size, other, processes)
            places.append(sorted((at for at in keys if at[0] in own), key=lambda at: not keys[at]))
        each = max(map(len, places))
        index = np.zeros(rows.shape, np.int64)
        for other, listed in enumerate(places):
            for number, at in enumerate(listed):
                index[at] = other * each + number

        mine = places[rank]
        features = [self.cache.get(keys[at]) for at in mine if keys[at] and self.cache is not None]
        pixels = [
            self.pictures.read_bytes(
                int(rows[at]), generator(self.seed, step, *at), foreground=bool(masked[at])
            )
            for at in mine[len(features) :]
        ]  # fmt: skip
        near = rows[:, 1 + self.shape.positives :]
        oracle = np.where(near == MISSING, np.nan, self.oracle[near])
        return {
            "features": torch.stack(features) if features else None,
            "pixels": torch.stack(pixels) if pixels else None,
            "each": each, "images": len(mine), "rows": [int(rows[at]) for at in mine],
            "index": torch.from_numpy(index), "valid": torch.from_numpy(valid),
            "identity": torch.from_numpy(numbers), "oracle": torch.from_numpy(oracle).float(),
        }  # fmt: skip

    def _key(self, picture: Picture) -> str:
        """A picture's key in the cache; "" if the cache lacks it."""
        key = self.keys.get(picture, "")
        return key if self.cache is not None and key in self.cache.files else ""

    # Features

    def keep(
        self,
        cache: FeatureCache,
        steps: int,
        tokens: Callable[[Tensor], Tensor],
        each: int,
        processes: Processes,
        chunk: int,
    ) -> None:
        """Fill a cache with the features of the pictures of these first steps, and use it from now on.

        If there is not enough room, the most frequent pictures are kept, and the others are read as pixels.

        Args:
            tokens: the trunk: maps pixels (B, 3, H, W) in uint8 to features (B, T, D).
            each: bytes of a picture's features.
            chunk: pictures that pass the trunk at once on an accelerator. On a CPU they pass one by one, so every bit
                of a picture's features is independent of the other pictures.
        """
        needed = self.needed(steps)
        order = sorted(needed, key=lambda picture: (-needed[picture], picture))
        keys = processes.on_main(lambda: picture_keys(self.pictures.data, order))
        picture, wanted = {keys[found]: found for found in reversed(order)}, [keys[found] for found in order]
        new = len(cache.missing(wanted, each))
        if processes.main:
            print(
                f"nearid: {len(order):,} pictures pass the trunk {sum(needed.values()):,} times; {new:,} new ones, "
                f"{new * each / 1e9:.2f} GB, go to {cache.folder} (at most {cache.limit / 1e9:g} GB)",
                flush=True,
            )

        def read(key: str) -> Input[str]:
            row, dark = picture[key]
            return Input(key, pixels=self.pictures.read_bytes(row, foreground=dark))

        with Progress("pictures", processes.main, verb="computed features of") as progress:
            done = count()

            def compute(part: Sequence[str]) -> Iterator[Tensor]:
                for batch in batches(part, read, batch_size=1 if processes.device.type == "cpu" else chunk):
                    for features in tokens(torch.stack([one.pixels for one in batch])):
                        yield features
                        progress(next(done) + 1, new // processes.count)

            cache.fill(wanted, compute, processes, each)
        self.cache, self.keys = cache, keys
