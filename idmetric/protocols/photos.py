"""Retrieval on photos: mAP and same/different AUC of a model, its untrained twin, and two simple baselines.

    python -m idmetric.protocols.photos DATA --model tiny
    idmetric eval photos --data DATA --model tiny --model untrained:tiny --model hsv --model pixels --out results/

DATA holds manifest.csv with the columns split, dataset, identity, path. Within each dataset of the split "dev", every
photo is a query against all other photos; its positives are the other photos of its identity. mAP is the mean over
queries that have a positive, AUC is over all unordered pairs. The first command prints the README's tables, of the
splits "dev" and "dev2"; the second gives the same numbers with intervals, and the other numbers of `idmetric eval
folder`, for "dev" or, with --split dev2, for that.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from idmetric.data.manifest.table import Manifest, read
from idmetric.models.idsim import IDSim
from idmetric.models.load import load_embedder
from idmetric.protocols import folder
from idmetric.protocols.common.models import open_model, untrained_twin
from idmetric.protocols.common.result import Result, Value
from idmetric.protocols.common.scorers import Models, Settings

SPLITS = ("dev", "dev2")  # in the order of their age


def run(data: Manifest, models: Models, settings: Settings = Settings()) -> list[Result]:
    """A result for each model: a row for each dataset of the first of `SPLITS` that the data have, and their means.

    Raises:
        ValueError: as `folder.run`, or if the manifest has splits but none of these.
    """
    own = _splits(data)
    if not own and any(data.column("split")):
        raise ValueError(f"no split {SPLITS[0]!r} in the manifest; for other data there is `idmetric eval folder`")
    chosen = data.filter(split=own[0]) if own else data
    return [replace(result, protocol="photos") for result in folder.run(chosen, models, settings)]


def _splits(data: Manifest) -> list[str]:
    """Those of `SPLITS` that the data have."""
    return [split for split in SPLITS if split in data.column("split")]


def table(results: Sequence[Result]) -> str:
    """A table of the README: a row per method, mAP and AUC per dataset and their means."""
    sets = [str(row["dataset"]) for row in results[0].rows]
    head = ["method", *(f"{name} {what}" for name in sets for what in ("mAP", "AUC"))]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for result in results:
        values = [row[what] for row in result.rows for what in ("mAP", "AUC")]
        cells = [f"{v.value:.3f}" if isinstance(v, Value) else "-" for v in values]
        lines.append("| " + " | ".join([result.model, *cells]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Retrieval on photos: a model against simple baselines.")
    parser.add_argument("data", type=Path, help="folder with manifest.csv")
    parser.add_argument("--model", default="tiny", help="a name, folder or Hub repository (default: tiny)")
    args = parser.parse_args(argv)
    metric = load_embedder(args.model)
    models: dict[str, Any] = {f"{type(metric).__name__}({args.model!r})": metric}
    if isinstance(metric, IDSim):
        models["its untrained twin"] = untrained_twin(metric)
    models |= {"HSV histogram": open_model("hsv"), "32x32 pixels": open_model("pixels")}
    data = read(args.data / "manifest.csv")
    parts = [data.filter(split=split) for split in _splits(data)] or [data]
    print("\n\n".join(table(run(part, models, Settings(bootstrap=0))) for part in parts))


if __name__ == "__main__":
    main()
