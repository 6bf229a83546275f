"""Embedded models side by side: size, speed, retrieval, distractors, matched patches, calibration.

    python benchmarks/tiny/compare.py DATA --model tiny --model OLD --out results/

DATA holds manifest.csv with the splits "dev", whose masks (if it has any) the matches are measured against, and "dev2";
OLD is a folder with weights. Other objects are rendered into OUT.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from world import protocol
from world.protocol import WorldOptions
from world.rendered import rendered_objects

from idmetric import load
from idmetric.data.manifest.table import read
from idmetric.evaluate.protocols import calibrate, folder, matches
from idmetric.evaluate.protocols.calibrate import CalibrateOptions
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.metric.models.embedder import Embedder

SPLITS = ("dev", "dev2")  # of the photos, in the order of their age
RATES = (0.01, 0.001)
IMAGES = 40


def milliseconds(models: dict[str, Embedder]) -> list[float]:
    """Median time of one 224 px image, alone in its batch; the models take turns."""
    image = torch.rand(1, 3, 224, 224)
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(IMAGES):
        for name, model in models.items():
            begin = time.perf_counter()
            model.embed(image)
            taken[name].append(time.perf_counter() - begin)
    return [1e3 * statistics.median(times[3:]) for times in taken.values()]


def rows(title: str, results: list[Result], columns: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """A row for each row and column of the results, with a value for each model."""
    found: dict[str, list[str]] = {}
    for column in columns:
        for at, result in enumerate(results):
            for row in result.rows:
                value = row.get(column)
                if isinstance(value, Value):
                    of = ", ".join(str(row[k]) for k in ("bench", "dataset", "which", "what") if row.get(k))
                    cells = found.setdefault(f"{title}, {of}, {column}", ["-"] * len(results))
                    cells[at] = f"{value.value:.3f}"
    return list(found.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Embedded models side by side.")
    parser.add_argument("data", type=Path, help="folder with manifest.csv")
    parser.add_argument("--model", action="append", required=True, help="a name or folder; repeat")
    parser.add_argument("--out", type=Path, required=True, help="folder for embeddings and rendered objects")
    args = parser.parse_args()

    torch.set_num_threads(2)
    models: dict[str, Any] = {name: load(name, device="cpu") for name in args.model}
    data = read(args.data / "manifest.csv").filter(split=SPLITS)
    dev, dev2 = (data.filter(split=split) for split in SPLITS)
    bench = protocol.bench(args.out / "world", WorldOptions(grids=0))
    settings = EvalSettings(bootstrap=0, store=args.out / "embeddings")
    by_patches = replace(settings, distance="patch")

    lines = [
        ("MB in half precision", [f"{sum(p.numel() for p in m.parameters()) * 2 / 1e6:.1f}" for m in models.values()]),
        ("ms for an image", [f"{ms:.0f}" for ms in milliseconds(models)]),
        *rows("photos, dev", folder.run(dev, models, settings), ("mAP",)),
        *rows("photos, dev2", folder.run(dev2, models, settings), ("mAP",)),
        *rows("world, class features", protocol.run(bench, models, settings), ("SSR",)),
        *rows("world, patches", protocol.run(bench, models, by_patches), ("SSR",)),
    ]
    if any(dev.sources("mask")):
        lines += rows("matches, photos", matches.run(dev, models, settings), tuple(matches.COLUMNS))
    things = rendered_objects(args.out)
    lines += rows("matches", matches.run(things, models, settings), tuple(matches.COLUMNS))
    options = CalibrateOptions(rates=RATES, strangers=50000)
    columns = ("ECE", "distance", "true accept", "false accept")
    lines += rows("calibration on dev", calibrate.run(dev, models, settings, options), columns)
    lines += rows("calibration on both", calibrate.run(data, models, settings, options), ("ECE",))

    print("| |", " | ".join(models), "|\n|---|" + "---|" * len(models))
    for title, values in lines:
        print("|", title, "|", " | ".join(values), "|")


if __name__ == "__main__":
    main()
