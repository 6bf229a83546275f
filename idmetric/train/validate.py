"""Scores on validation rows during training: each image is embedded once; the rows decide which measures there are.

validation(model, take(data, data["split"] == "val"))  # {"map": 0.81, "auc": 0.97, "ssr": 0.42, "pa": 0.77}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest import take
from idmetric.data.split import VIEW_ROLES, blocks, parent_rows
from idmetric.evaluate.protocols.common.matched import Matched, matched
from idmetric.evaluate.statistics.margins import directed_margins, margin_rates, oracle_agreement
from idmetric.evaluate.statistics.ranking import average_precision, roc_auc
from idmetric.metric.embedder import Embedder
from idmetric.metric.ties import comparable
from idmetric.train.batches import first_rows
from idmetric.train.embed import Array, embed_rows
from idmetric.train.processes import Processes

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = NDArray[np.int64]
_CHUNK = 256  # queries at once in the ranking


def validation(
    model: Embedder, data: DataFrame, *, batch_size: int = 32, processes: Processes | None = None
) -> dict[str, float]:
    """Measures of a model on rows; correlations lie in -1..1, the others in 0..1; higher = better.

    The model is in eval mode during the validation. No random numbers are drawn.

    Args:
        batch_size: images per pass.
        processes: of a training run; all of them call this, share the embedding, and get the same numbers.

    Returns:
        The measures that the rows allow, of these:
        "map": mean average precision over the queries with a positive; each image of known identity is a query against
            all others, including edits and distractors.
        "auc": area under the ROC curve of same identity or not, over pairs of a view with another image of its
            family: an identity and its identity-edits (ID-Sim's Identity Validation, B.1).
        "triplet": share of triplets (slots anchor, positive, negative) in which the positive is nearer than the
            negative (ID-Sim's Real Instance Validation, B.1); a tie counts as wrong.
        "ssr", "pa": success of views against their distractors and identity-edits (NearID, section 3.4).
        "part_ssr", "part_pa": the same against part-edits (NearID on Mind-the-Glitch).
        "oracle", "oracle_pair": correlation with the part-edits' oracle scores (NearID's M-O and M-O pair).
    """
    rows = _Rows(data)
    is_measurable = len(_queries(rows)[1]) or _other_measures(np.ones((len(data), 1)), rows)
    if not is_measurable:  # said before images are read
        raise ValueError(
            f"nothing can be measured on {len(data)} validation rows: give two images of an identity, or triplets "
            "(slots anchor, positive, negative)"
        )
    vectors = embed_rows(model, data, rows.images, batch_size, processes)[rows.image]
    return _retrieval(vectors, rows) | _other_measures(vectors, rows)


def _other_measures(vectors: Array, rows: _Rows) -> dict[str, float]:
    """All measures but retrieval, from a vector for each row."""
    margins = _margins(vectors, _matched(rows, ("distractor", "identity-edit")))
    return _families(vectors, rows) | _triplets(vectors, rows) | _rates("", margins) | _part_edits(vectors, rows)


class _Rows:
    """The columns of a manifest of N rows that the measures need.

    Attributes:
        images: first row of each different image, (M,). image: place in `images` of each row's image, (N,).
        identity: its number, -1 where unknown. family: its block, without groups. view: whether its role is a view's.
    """

    def __init__(self, data: DataFrame) -> None:
        self.data = data
        self.images, self.image = np.unique(first_rows(data), return_inverse=True)
        self.identity, _ = data["identity"].factorize()
        self.family = blocks(data, groups=False)
        self.view = data["role"].isin(VIEW_ROLES).to_numpy()


# Retrieval and verification


def _queries(rows: _Rows) -> tuple[Rows, Rows]:
    """Images of known identity, and the places among them of the images that have a positive."""
    named = rows.images[rows.identity[rows.images] >= 0]
    _, inverse, counts = np.unique(rows.identity[named], return_inverse=True, return_counts=True)
    return named, np.flatnonzero(counts[inverse] > 1)


def _retrieval(vectors: Array, rows: _Rows) -> dict[str, float]:
    named, queries = _queries(rows)
    identity = rows.identity[named]
    gallery = vectors[named]
    precisions: list[float] = []
    for start in range(0, len(queries), _CHUNK):
        block = queries[start : start + _CHUNK]
        for query, scores in zip(block, gallery[block] @ gallery.T, strict=True):
            same = identity == identity[query]
            precisions.append(average_precision(np.delete(scores, query), np.delete(same, query)))
    return {"map": float(np.mean(precisions))} if precisions else {}


def _families(vectors: Array, rows: _Rows) -> dict[str, float]:
    named = rows.images[rows.identity[rows.images] >= 0]
    scores = []
    same = []
    for members in _groups(rows.family[named]):
        chosen = named[members]
        if len(np.unique(rows.identity[chosen])) == 1:
            continue
        view = rows.view[chosen]
        # two edits may look alike, and whether they show one identity is unknown
        pairs = np.triu(view[:, None] | view, 1)
        scores.append((vectors[chosen] @ vectors[chosen].T)[pairs])
        same.append((rows.identity[chosen][:, None] == rows.identity[chosen])[pairs])
    relevant = np.concatenate(same) if same else np.zeros(0, dtype=bool)
    if relevant.all() or not relevant.any():
        return {}
    return {"auc": roc_auc(np.concatenate(scores), relevant)}


def _triplets(vectors: Array, rows: _Rows) -> dict[str, float]:
    slots: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, name, slot in rows.data[["group", "slot"]].dropna().itertuples():
        slots[name][slot].append(row)
    wins = []
    for group in slots.values():
        for anchor, positive, negative in product(group["anchor"], group["positive"], group["negative"]):
            margin = vectors[anchor] @ vectors[positive] - vectors[anchor] @ vectors[negative]
            wins.append(comparable(margin) > 0)
    return {"triplet": float(np.mean(wins))} if wins else {}


# Matched contexts


def _matched(rows: _Rows, roles: Sequence[str]) -> Matched:
    """Views of identities, each with its image of these roles by one engine, as NearID's protocol matches them."""
    data = rows.data
    parents = parent_rows(data)
    is_edit = data["role"].isin(roles).to_numpy() & (parents >= 0)
    is_view = rows.view & np.isin(rows.identity, rows.identity[parents[is_edit]])
    chosen = np.flatnonzero(is_edit | is_view)
    samples = matched(take(data, chosen), roles, data["engine"].fillna("")[chosen].to_numpy())
    row_of = np.append(chosen, -1)  # -1 stays -1
    return replace(samples, views=row_of[samples.views], made=row_of[samples.made])


def _cosines(vectors: Array, a: Rows, b: Rows) -> Array:
    """Cosines of rows to rows; NaN where one of them is missing (-1)."""
    cosines = np.einsum("...d,...d", vectors[a], vectors[b])
    return np.where((a >= 0) & (b >= 0), cosines, np.nan)


def _margins(vectors: Array, samples: Matched) -> Array:
    views = samples.views
    between = _cosines(vectors, *np.broadcast_arrays(views[:, :, None], views[:, None]))
    return directed_margins(between, _cosines(vectors, views, samples.made))


def _rates(prefix: str, margins: Array) -> dict[str, float]:
    """SSR and PA, if any margin is valid."""
    if not np.isfinite(margins).any():
        return {}
    rates = margin_rates(margins)
    return {f"{prefix}ssr": rates.ssr, f"{prefix}pa": rates.pa}


def _part_edits(vectors: Array, rows: _Rows) -> dict[str, float]:
    """SSR and PA against part-edits, and their correlation with the oracle: NearID's M-O and M-O pair."""
    samples = _matched(rows, ("part-edit",)).of_edited_views()
    measures = _rates("part_", _margins(vectors, samples))
    oracle = np.append(rows.data["oracle"], np.nan)[samples.made]  # -1, a missing image: the last
    views, edits = np.broadcast_arrays(samples.views[:, :, None], samples.made[:, None])
    try:
        agreement = oracle_agreement(_cosines(vectors, views, edits), oracle)
    except ValueError:  # fewer than two scores
        return measures
    if agreement.whole is not None:
        measures["oracle"] = agreement.whole
    measures["oracle_pair"] = agreement.pair
    return measures


def _groups(numbers: Rows) -> list[Rows]:
    """Places of each number, in order of first appearance."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers.tolist()):
        places[number].append(place)
    return [np.array(members, dtype=np.int64) for members in places.values()]
