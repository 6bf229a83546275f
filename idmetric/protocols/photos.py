"""Retrieval on photos: mAP and same/different AUC of a model, its untrained twin, and two simple baselines.

    python -m idmetric.protocols.photos DATA --model tiny
    idmetric eval photos --data DATA --model tiny --model untrained:tiny --model hsv --model pixels --out results/

DATA holds manifest.csv with the columns split, dataset, identity, path. Within each dataset of the split "dev", every
photo is a query against all other photos; its positives are the other photos of its identity. mAP is the mean over
queries that have a positive, AUC is over all unordered pairs. The first command prints the README's table; the second
gives the same numbers with intervals, and the other numbers of `idmetric eval folder`.
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

SPLIT = "dev"


def command(args: argparse.Namespace, data: Manifest, models: Models, settings: Settings) -> list[Result]:
    """Run with the options of the command line."""
    return run(data, models, settings)


def run(data: Manifest, models: Models, settings: Settings = Settings()) -> list[Result]:
    """A result for each model: a row for each dataset of the split "dev", and their means.

    Raises:
        ValueError: as `folder.run`, or if the manifest has splits but not this one.
    """
    chosen = data.filter(split=SPLIT) if SPLIT in data.column("split") else None
    if chosen is None:
        if any(data.column("split")):
            raise ValueError(f"no split {SPLIT!r} in the manifest; for other data there is `idmetric eval folder`")
        chosen = data
    return [replace(result, protocol="photos") for result in folder.run(chosen, models, settings)]


def table(results: Sequence[Result]) -> str:
    """The README's table: a row per method, mAP and AUC per dataset and their means."""
    sets = [str(row["dataset"]) for row in results[0].rows]
    head = ["method", *(f"{name} {what}" for name in sets for what in ("mAP", "AUC"))]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for result in results:
        values = [row[what] for row in result.rows for what in ("mAP", "AUC")]
        cells = [f"{v.value:.3f}" if isinstance(v, Value) else "-" for v in values]
        lines.append("| " + " | ".join([result.model, *cells]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Retrieval on photos: a model against simple baselines.")
    parser.add_argument("data", type=Path, help="folder with manifest.csv")
    parser.add_argument("--model", default="tiny", help="a name, folder or Hub repository (default: tiny)")
    args = parser.parse_args(argv)
    metric = load_embedder(args.model)
    models: dict[str, Any] = {f"{type(metric).__name__}({args.model!r})": metric}
    if isinstance(metric, IDSim):
        models["its untrained twin"] = untrained_twin(metric)
    models |= {"HSV histogram": open_model("hsv"), "32x32 pixels": open_model("pixels")}
    print(table(run(read(args.data / "manifest.csv"), models, Settings(bootstrap=0))))


if __name__ == "__main__":
    main()
