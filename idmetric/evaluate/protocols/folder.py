"""Retrieval and verification on your own photos: a folder for each identity, or any manifest.

    idmetric eval folder --data photos/ --model tiny --model hsv --out results/

Within each dataset of the manifest, every image of a known identity is a query against all other images (edits and
distractors among them); its positives are the other images of its identity. An image never finds itself, nor a row
that shows the same file. docs/columns.md defines the columns; no paper prints these numbers.

Intervals are by identity: whole identities are drawn again. With several datasets a last row holds the means over them
(each dataset has equal weight); its intervals treat the datasets as independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import listed, named, texts
from idmetric.evaluate.protocols.common.intervals import auc, averages, mean
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Measure, Search, searched
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind
from idmetric.evaluate.statistics.ranking import average_precision, hit_at_k, precision_at_1, recall_at_k
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


@dataclass(frozen=True)
class FolderOptions(Checked):
    """Options of the protocol `folder`."""

    k: tuple[int, ...] = option((5,), "of recall@k and hit@k", least=1, metavar="K")


def run(
    data: Manifest, models: Models, settings: EvalSettings = EvalSettings(), options: FolderOptions = FolderOptions()
) -> list[Result]:
    """A result for each model: a row for each dataset, and their means.

    Raises:
        ValueError: if no identity has two images.
    """
    known = data.take(named(data))
    _searches(known)  # before anything is embedded
    bound = bind(known, models, settings)
    searches, notes = _searches(bound.manifest)
    about = {**settings.as_dict(), "k": list(options.k)}
    results = []
    ids, identities = texts(bound.manifest, "id"), texts(bound.manifest, "identity")

    for scorer, result in bound.results("folder", about, notes):
        for dataset, search in searches.items():
            found, near, both = searched(scorer, search, measures(options.k), settings.seed)
            has = search.positives() > 0
            queries, found = search.queries[has], {name: of[has] for name, of in found.items()}
            row: Row = {"dataset": dataset}
            row |= {name: mean(of, search.identity[queries], settings) for name, of in found.items()}
            row |= auc(both.score, both.same, search.identity[np.stack([both.a, both.b], 1)], settings)
            result.rows.append(row)
            result.keep("queries", dataset=[dataset] * len(queries), id=ids[queries],
                        identity=identities[queries], **found, **near.take(has).columns(ids))  # fmt: skip
            result.keep("pairs", dataset=[dataset] * len(both.a), a=ids[both.a], b=ids[both.b], score=both.score,
                        same=both.same)  # fmt: skip
        if len(result.rows) > 1:
            result.rows.append({"dataset": "mean", **averages(result.rows)})
        results.append(result)

    return results


def _searches(data: Manifest) -> tuple[dict[str, Search], list[str]]:
    """The search of each dataset's images among each other, and notes on images without a positive."""
    names = texts(data, "dataset", "")
    found, notes = {}, []
    for name in dict.fromkeys(names):
        rows = np.flatnonzero(names == name)
        search = found[name or "all"] = Search.of(data, rows, rows)
        has = search.positives() > 0
        place = f" of {name}" if name else ""
        if not has.any():
            raise ValueError(f"no identity{place} has two images: retrieval needs a positive for at least one query")
        if not has.all():
            notes.append(
                f"{int((~has).sum())} images{place} have no positive and are searched but not queried: "
                f"{listed(data.take(rows[~has]).column('identity'))}"
            )

    if not found:
        raise ValueError("no row has an identity: retrieval needs to know which images show the same one")
    return found, notes


def measures(ks: Sequence[int]) -> dict[str, Measure]:
    """The measures of a query, by name."""
    at: dict[str, Measure] = {"mAP": average_precision, "P@1": precision_at_1}
    at |= {f"recall@{k}": partial(recall_at_k, k=k) for k in ks}
    return at | {f"hit@{k}": partial(hit_at_k, k=k) for k in ks}


PROTOCOL = Protocol(
    name="folder",
    run=run,
    options=FolderOptions,
)
