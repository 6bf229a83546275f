"""Retrieval and verification on your own photos: a folder for each identity, or any manifest.

    idmetric eval folder --data photos/ --model tiny --model hsv --out results/

Within each dataset of the manifest, every image of a known identity is a query against all other images (edits and
distractors among them); its positives are the other images of its identity. An image never finds itself, nor a row
that shows the same file. docs/reference/columns.md defines the columns; no paper prints these numbers.

Intervals are by identity: whole identities are drawn again. With several datasets a last row holds the means over them
(each dataset has equal weight); its intervals treat the datasets as independent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import listed
from idmetric.evaluate.protocols.common.intervals import auc, averages, mean
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Measure, Search, query_items, searched
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.ranking import average_precision, hit_at_k, precision_at_1, recall_at_k
from idmetric.store import key_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class FolderOptions(Checked):
    """Options of the protocol `folder`."""

    k: tuple[int, ...] = option((5,), "of recall@k and hit@k", least=1, metavar="K")


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: FolderOptions = FolderOptions(),
) -> list[Result]:
    """A result for each model: a row for each dataset, and their means.

    Raises:
        ValueError: if no identity has two images.
    """
    from idmetric.data.manifest import take  # loads pandas, which the help does without

    with_identity = take(data, data["identity"].notna())
    _searches(with_identity)  # before anything is embedded
    bound = bind(with_identity, models, settings)
    searches, notes = _searches(bound.manifest)
    notes += _note_on_copies(bound.manifest)
    about = {**settings.as_dict(), "k": list(options.k)}
    results = []
    for scorer, result in bound.results("folder", about, notes):
        for dataset, search in searches.items():
            _measure(scorer, bound.manifest, dataset, search, options.k, settings, result)
        if len(result.rows) > 1:
            result.rows.append({"dataset": "mean", **averages(result.rows)})
        results.append(result)
    return results


def _searches(data: DataFrame) -> tuple[dict[str, Search], list[str]]:
    """The search of each dataset's images among each other, and notes on images without a positive."""
    names = data["dataset"].fillna("")
    searches = {}
    notes = []
    for name in names.unique():
        rows = np.flatnonzero(names == name)
        search = Search.of(data, rows, rows)
        searches[name or "all"] = search
        has_positive = search.positives() > 0
        of_name = f" of {name}" if name else ""
        if len(set(search.identity[rows].tolist())) == 1:
            notes.append(f"all images{of_name} show one identity: no answer can be wrong, so that mAP is 1.000")
        if not has_positive.any():
            raise ValueError(f"no identity{of_name} has two images: retrieval needs a positive for at least one query")
        if not has_positive.all():
            without = rows[~has_positive]
            notes.append(
                f"{len(without)} images{of_name} have no positive and are searched but not queried: "
                f"{listed(data['identity'][without])}"
            )

    if not searches:
        raise ValueError("no row has an identity: retrieval needs to know which images show the same one")
    return searches, notes


def _note_on_copies(data: DataFrame) -> list[str]:
    """A note on files with the bytes of another image of their identity, which every model finds."""
    files = data[["id", "dataset", "identity", "path"]].drop_duplicates("path")
    files = files.assign(size=files["path"].map(os.path.getsize))
    files = files[files.duplicated(["dataset", "identity", "size"], keep=False)]  # others need not be read
    files = files.assign(content=files["path"].map(key_of))
    copies = files["id"][files.duplicated(["dataset", "identity", "content"])]
    if copies.empty:
        return []
    return [f"{len(copies)} images are copies of another of their identity, which every model finds: {listed(copies)}"]


def _measure(
    scorer: Scorer,
    data: DataFrame,
    dataset: str,
    search: Search,
    ks: Sequence[int],
    settings: EvalSettings,
    result: Result,
) -> None:
    """Add the row of a dataset, its queries with a positive, and all pairs."""
    measured, nearest, pairs = searched(scorer, search, measures(ks), settings.seed)
    has_positive = search.positives() > 0
    measured = {name: values[has_positive] for name, values in measured.items()}
    queried = search.only(has_positive)
    owner = search.identity[queried.queries]
    row: Row = {"dataset": dataset}
    for name, values in measured.items():
        row[name] = mean(values, owner, settings)
    pair_identities = search.identity[np.stack([pairs.a, pairs.b], 1)]
    row |= auc(pairs.score, pairs.same, pair_identities, settings)
    result.rows.append(row)

    ids = data["id"].to_numpy()
    nearest = nearest.take(has_positive)
    result.keep("queries", **query_items(data, queried, measured, nearest, dataset=dataset))
    result.keep(
        "pairs",
        dataset=[dataset] * len(pairs.a),
        a=ids[pairs.a],
        b=ids[pairs.b],
        score=pairs.score,
        same=pairs.same,
    )


def measures(ks: Sequence[int]) -> dict[str, Measure]:
    """The measures of a query, by name."""
    by_name: dict[str, Measure] = {"mAP": average_precision, "P@1": precision_at_1}
    by_name |= {f"recall@{k}": partial(recall_at_k, k=k) for k in ks}
    by_name |= {f"hit@{k}": partial(hit_at_k, k=k) for k in ks}
    return by_name


PROTOCOL = Protocol(
    name="folder",
    run=run,
    options=FolderOptions,
)
