"""CPU seconds of mining hard negatives and pairs, compared with an earlier version of the package.

    git worktree add ../earlier VERSION
    python benchmarks/mining.py --old ../earlier                                   # 4,000 images, 512 numbers each
    python benchmarks/mining.py --old ../earlier --old-python ../earlier-venv/bin/python --images 10000

Both versions read the same manifest and the same random vectors. Each turn is a process of its own, on one thread, and
the versions take turns; the table has the fastest of each, without imports. "search" is the exact search alone,
without its manifest.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_IMAGES = 4  # of an identity
_TEXTS = 20  # instructions that edits share


def write_data(folder: Path, images: int, channels: int) -> None:
    """Write a manifest of photos with texts, and a vector for each of them."""
    rng = np.random.default_rng(0)
    identity = np.arange(images) // _IMAGES
    centers = rng.standard_normal((identity[-1] + 1, channels), dtype=np.float32)
    np.save(folder / "vectors.npy", centers[identity] + rng.standard_normal((images, channels), dtype=np.float32))
    with open(folder / "data.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "identity", "path", "split", "text"])
        for row, number in enumerate(identity.tolist()):
            split = "val" if number % 10 == 0 else "train"
            writer.writerow([f"row {row}", f"i{number}", f"{row}.jpg", split, f"text {row % _TEXTS}"])


def measure(folder: Path) -> None:
    """Print the CPU seconds of each step as JSON; runs in either version of the package."""
    from idmetric.data.curate.mine import hard_negatives, hard_pairs
    from idmetric.data.nearest import nearest_other

    try:
        from idmetric.data.manifest import read
    except ImportError:  # an earlier version
        from idmetric.data.manifest.table import read  # type: ignore[import-not-found, no-redef]

    vectors = np.load(folder / "vectors.npy")
    groups = np.arange(len(vectors)) // _IMAGES
    steps: dict[str, Callable[[], object]] = {
        "search": lambda: nearest_other(vectors, groups, 5),
        "negatives": lambda: hard_negatives(table, vectors, 5),
        "negatives below a ceiling": lambda: hard_negatives(table, vectors, 5, ceiling=0.5),
        "pairs": lambda: hard_pairs(table, vectors, 5),
    }
    table = read(folder / "data.csv")
    seconds = {}
    for name, step in steps.items():
        step()  # imports what it needs
        start = time.process_time()
        step()
        seconds[name] = time.process_time() - start
    print(json.dumps(seconds))


def run(python: str, package: Path, folder: Path) -> dict[str, float]:
    """Return the seconds of each step by the package in a checkout."""
    command = [python, "-W", "ignore", str(Path(__file__).resolve()), "--data", str(folder)]
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(package.resolve())}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=folder)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="checkout of the earlier version")
    parser.add_argument("--old-python", default=sys.executable, help="its Python (default: this one)")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)  # of a process that measures
    args = parser.parse_args()
    if args.data is not None:
        measure(args.data)
        return
    if args.old is None:
        parser.error("give the checkout of an earlier version: --old FOLDER")

    new, old = [], []
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name), args.images, args.channels)
        for _ in range(args.turns):
            old.append(run(args.old_python, args.old, Path(name)))
            new.append(run(sys.executable, HERE, Path(name)))

    print(f"| {args.images:,} images | old, CPU s | new, CPU s | new / old |\n|---|---|---|---|")
    for step in new[0]:
        before, after = (min(turn[step] for turn in turns) for turns in (old, new))
        print(f"| {step} | {before:.2f} | {after:.2f} | {after / before:.2f} |")


if __name__ == "__main__":
    main()
