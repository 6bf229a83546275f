"""Retrieval on photos, the README's tables: the protocol `folder` on the splits "dev" and "dev2" of one manifest.

    idmetric eval photos --data DATA --model tiny --model untrained:tiny --model hsv --model pixels --out results/

DATA holds manifest.csv with the columns split, dataset, identity, path. Within each dataset of the split "dev", every
photo is a query against all other photos; its positives are the other photos of its identity. mAP is the mean over
queries that have a positive, AUC is over all unordered pairs. --split dev2 measures the other split.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from idmetric.evaluate.protocols import folder
from idmetric.evaluate.protocols.common.protocol import NoOptions, Protocol
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

SPLITS = ("dev", "dev2")  # in the order of their age


def run(
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: NoOptions = NoOptions(),
) -> list[Result]:
    """A result for each model: a row for each dataset of the first of `SPLITS` that the data have, and their means.

    Raises:
        ValueError: as `folder.run`, or if the manifest has splits but none of these.
    """
    names = set(data.column("split"))
    present = [split for split in SPLITS if split in names]
    if present:
        data = data.filter(split=present[0])
    elif any(names):
        raise ValueError(f"no split {SPLITS[0]!r} in the manifest; for other data there is `idmetric eval folder`")
    return [replace(result, protocol="photos") for result in folder.run(data, models, settings)]


PROTOCOL = Protocol(
    name="photos",
    run=run,
    options=NoOptions,
)
