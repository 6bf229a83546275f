"""Groups of `idmetric gallery cluster` against the identities of labeled photos, by the threshold it cuts at.

    python benchmarks/tiny/clusters.py DATA --split dev --out results/

DATA holds manifest.csv with the columns split, dataset, identity, path. Prints scikit-learn's adjusted Rand index and
the number of groups, for the whole split and for each of its datasets.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from idmetric import load
from idmetric.data.embed import embed_rows
from idmetric.data.manifest.table import read
from idmetric.gallery.linkage import cluster
from idmetric.metric.files.tables import aligned

RATES = (0.01, 0.05, 0.1)  # false accepts of the calibration's thresholds


def agreement(vectors: NDArray[np.float32], identities: NDArray[np.object_], threshold: float) -> tuple[float, int]:
    """The adjusted Rand index of groups cut at a distance with the identities, and the number of groups."""
    groups = cluster(vectors, threshold)
    return float(adjusted_rand_score(identities, groups)), len(np.unique(groups))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Groups of gallery cluster against identities.")
    parser.add_argument("data", type=Path, help="folder with manifest.csv")
    parser.add_argument("--split", action="append", required=True, help="splits of the manifest, in one folder; repeat")
    parser.add_argument("--dataset", action="append", help="datasets of the splits (default: all); repeat")
    parser.add_argument("--model", default="tiny", help="a name or folder")
    parser.add_argument("--threshold", action="append", type=float, help="in addition to the calibration's; repeat")
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the embeddings")
    args = parser.parse_args()

    metric = load(args.model, device="cpu")
    data = read(args.data / "manifest.csv")
    data = data.filter(lambda row: row.split in args.split and row.identity is not None)
    if args.dataset:
        data = data.filter(lambda row: row.dataset in args.dataset)
    vectors, problems = embed_rows(data, metric, store=args.out / "embeddings")
    if problems:
        raise SystemExit(f"{len(problems)} images cannot be read, such as {data.column('path')[min(problems)]}")
    identities = np.array(data.column("identity"), dtype=object)
    datasets = np.array(data.column("dataset"), dtype=object)

    thresholds = list(args.threshold or [])
    if metric.calibration is not None:
        thresholds += [metric.calibration.threshold_at(rate).distance for rate in RATES]
    names = list(dict.fromkeys(datasets))
    lines = [["threshold", "all", *names]]
    for threshold in sorted(thresholds):
        cells = [f"{threshold:.3f}"]
        for rows in (np.ones(len(data), bool), *(datasets == name for name in names)):
            index, groups = agreement(vectors[rows], identities[rows], threshold)
            cells.append(f"{index:.2f}, {groups}")
        lines.append(cells)
    print("\n".join(aligned(lines)))


if __name__ == "__main__":
    main()
