"""Seconds and memory of the table of `idmetric eval folder`, after embedding (docs/reports/scale.md).

    python benchmarks/tables.py [--images 2000 20000 100000] [--channels 512] [--bootstrap 1000]

Features are random, ten images for each identity. "product" is one matrix product of all features with themselves, in
the same blocks and precision; "table" the measures of every query and the pairs; "intervals" their bootstrap. Each
size runs in its own process; memory is its largest resident set.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.protocols.common.intervals import auc, mean
from idmetric.protocols.common.ranked import Search, within
from idmetric.protocols.common.scorers import Settings, VectorScorer
from idmetric.protocols.folder import measures


@dataclass
class Features:
    """Features in memory, in the place of `idmetric.data.embed.Stored`."""

    found: NDArray[np.float32]

    @property
    def keys(self) -> dict[int, str]:
        return {row: str(row) for row in range(len(self.found))}

    def vectors(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        return self.found[rows]


def measure(images: int, channels: int, samples: int) -> None:
    """Print a line of the table."""
    rng, rows = np.random.default_rng(0), np.arange(images)
    identity = rows // 10
    found = rng.standard_normal((images // 10 + 1, channels), dtype=np.float32)[identity]
    found += 2.5 * rng.standard_normal(found.shape, dtype=np.float32)
    scorer = VectorScorer(None, Features(found))  # type: ignore[arg-type]  # it has what the scorer asks for
    search, settings = Search(rows, rows, identity, rows), Settings(bootstrap=samples)

    start = time.perf_counter()
    for part in search.blocks():
        scorer.matrix(rows[part], rows)
    product = time.perf_counter() - start

    start = time.perf_counter()
    queries, _, pairs = within(scorer, search, measures((5,)), 0)
    ranked = time.perf_counter() - start
    start = time.perf_counter()
    for values in queries.values():
        mean(values, identity, settings)
    auc(pairs.score, pairs.same, identity[np.stack([pairs.a, pairs.b], 1)], settings)
    drawn = time.perf_counter() - start

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cells = [f"{images:,}", f"{product:.1f}", f"{2 * images**2 * channels / product / 1e9:.0f}", f"{ranked:.1f}",
             f"{ranked / product:.2f}", f"{drawn:.1f}", f"{memory:.0f}"]  # fmt: skip
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Measure each size in a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[2000, 20000, 100000])
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure(args.images[0], args.channels, args.bootstrap)
        return
    print(f"{os.cpu_count()} cores, {args.channels} channels, {args.bootstrap} resamples")
    print("| images | product, s | GFLOP/s | table, s | table / product | intervals, s | MB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for images in args.images:
        given = ["--images", str(images), "--channels", str(args.channels), "--bootstrap", str(args.bootstrap)]
        subprocess.run([sys.executable, __file__, *given, "--child"], check=True)


if __name__ == "__main__":
    main()
