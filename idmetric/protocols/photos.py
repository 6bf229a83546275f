"""Retrieval on photos: mAP and same/different AUC of a model, its untrained twin, and two simple baselines.

    python -m idmetric.protocols.photos DATA --model tiny

DATA holds manifest.csv with the columns split, dataset, identity, path. Within each dataset of the split "dev", every
photo is a query against all the others; its positives are the other photos of its identity. mAP is the mean over
queries that have a positive, AUC is over all unordered pairs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.embedder import Embedder
from idmetric.evaluate.ranking import average_precision, roc_auc
from idmetric.idsim import IDSim
from idmetric.images import read_image
from idmetric.loading import load

Array = NDArray[np.float64]


def hsv_histogram(paths: Sequence[Path]) -> Array:
    """Square-rooted HSV histogram, 8 x 4 x 4 bins, at 128 x 128 pixels: (N, 128), unit rows."""
    rows = []
    for path in paths:
        hsv = np.asarray(read_image(path).resize((128, 128)).convert("HSV")).reshape(-1, 3)
        bins = (hsv // (32, 64, 64) * (16, 4, 1)).sum(1)
        rows.append(np.sqrt(np.bincount(bins, minlength=128) / len(hsv)))
    return _unit(np.stack(rows))


def small_pixels(paths: Sequence[Path]) -> Array:
    """The image at 32 x 32 pixels, its mean subtracted: (N, 3072), unit rows."""
    rows = [np.asarray(read_image(p).resize((32, 32)), dtype=np.float64).ravel() / 255 for p in paths]
    return _unit(np.stack([row - row.mean() for row in rows]))


def _unit(x: Array) -> Array:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12))


def retrieval(similarity: Array, identities: Sequence[str]) -> tuple[float, float]:
    """mAP and same/different AUC of a similarity matrix (N, N) among photos of the given identities."""
    names = np.asarray(identities)
    same = names[:, None] == names[None]
    others = ~np.eye(len(names), dtype=bool)
    precisions = [
        average_precision(similarity[i][others[i]], same[i][others[i]]) for i in range(len(names)) if same[i].sum() > 1
    ]
    upper = np.triu(others)
    return float(np.mean(precisions)), roc_auc(similarity[upper], same[upper])


def read_split(data: Path, split: str = "dev") -> dict[str, tuple[list[Path], list[str]]]:
    """Dataset name -> (paths, identities), from data/manifest.csv."""
    found: dict[str, tuple[list[Path], list[str]]] = {}
    with (data / "manifest.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["split"] == split:
                paths, identities = found.setdefault(row["dataset"], ([], []))
                paths.append(data / row["path"])
                identities.append(row["identity"])
    return found


def model_features(metric: Embedder) -> Callable[[Sequence[Path]], Array]:
    """Embedding of photos by a metric, as unit rows."""

    def features(paths: Sequence[Path]) -> Array:
        return _unit(metric.embed(list(paths), patches=False).cls.double().cpu().numpy())

    return features


def untrained_twin(metric: IDSim, seed: int = 0) -> IDSim:
    """The same architecture with random weights."""
    torch.manual_seed(seed)
    return IDSim(metric._config, device=metric.device)


def table(data: Path, methods: dict[str, Callable[[Sequence[Path]], Array]]) -> str:
    """A Markdown table: a row per method, mAP and AUC per dataset and their means."""
    sets = read_split(data)
    head = ["method", *(f"{name} {what}" for name in sets for what in ("mAP", "AUC")), "mean mAP", "mean AUC"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, features in methods.items():
        cells = []
        for paths, identities in sets.values():
            x = features(paths)
            cells.append(retrieval(x @ x.T, identities))
        means = np.mean(cells, axis=0)
        numbers = [value for pair in (*cells, means) for value in pair]
        lines.append("| " + " | ".join([method, *(f"{v:.3f}" for v in numbers)]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Retrieval on photos: a model against simple baselines.")
    parser.add_argument("data", type=Path, help="folder with manifest.csv")
    parser.add_argument("--model", default="tiny", help="a name, folder or Hub repository (default: tiny)")
    args = parser.parse_args(argv)
    metric = load(args.model)
    methods = {f"{type(metric).__name__}({args.model!r})": model_features(metric)}
    if isinstance(metric, IDSim):
        methods["its untrained twin"] = model_features(untrained_twin(metric))
    methods |= {"HSV histogram": hsv_histogram, "32x32 pixels": small_pixels}
    print(table(args.data, methods))


if __name__ == "__main__":
    main()
