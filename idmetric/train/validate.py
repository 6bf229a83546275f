"""Scores on validation rows during training: each image is embedded once; the rows decide which measures there are.

validation(model, data.filter(split="val"))  # {"map": 0.81, "auc": 0.97, "ssr": 0.42, "pa": 0.77}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import VIEW_ROLES, image_keys, lineages, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.common.matched import Matched, matched
from idmetric.evaluate.statistics.margins import directed_margins, margin_rates, oracle_agreement
from idmetric.evaluate.statistics.ranking import average_precision, roc_auc
from idmetric.metric.distance.ties import comparable
from idmetric.metric.models.embedder import Embedder
from idmetric.train.embed import Array, embed_rows
from idmetric.train.processes import Processes

Rows = NDArray[np.int64]
_CHUNK = 256  # queries at once in the ranking


def validation(
    model: Embedder, data: Manifest, *, batch_size: int = 32, processes: Processes | None = None
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
    if not len(_queries(rows)[1]) and not _quick(np.ones((len(data), 1)), rows):  # before images are read
        raise ValueError(
            f"nothing can be measured on {len(data)} validation rows: give two images of an identity, or triplets "
            "(slots anchor, positive, negative)"
        )
    by_row = embed_rows(model, data, rows.images, batch_size, processes)[rows.image]
    return _retrieval(by_row, rows) | _quick(by_row, rows)


def _quick(vectors: Array, rows: _Rows) -> dict[str, float]:
    """All measures but retrieval."""
    return (
        _families(vectors, rows)
        | _triplets(vectors, rows)
        | _rates("", _margins(vectors, _matched(rows, ("distractor", "identity-edit"))))
        | _part_edits(vectors, rows)
    )


class _Rows:
    """The columns of a manifest of N rows that the measures need.

    Attributes:
        images: first row of each different image, (M,). image: place in `images` of each row's image, (N,).
        identity: its number, -1 where unknown. family: see `lineages`. view: whether the role is that of a view.
    """

    def __init__(self, data: Manifest) -> None:
        self.data, names = data, data.column("identity")
        first: dict[tuple[str, str | None], int] = {}  # an image with two identities counts as two
        keys = zip(image_keys(data), names, strict=True)
        shown = [first.setdefault(key, row) for row, key in enumerate(keys)]
        self.images, self.image = np.unique(np.array(shown, dtype=np.int64), return_inverse=True)
        number = {name: k for k, name in enumerate(dict.fromkeys(n for n in names if n is not None))}
        self.identity = np.array([number.get(n, -1) for n in names], dtype=np.int64)
        self.family, self.view = lineages(data), np.isin(data.column("role"), VIEW_ROLES)


# Retrieval and verification


def _queries(rows: _Rows) -> tuple[Rows, Rows]:
    """Images of known identity, and the places among them of the images that have a positive."""
    named = rows.images[rows.identity[rows.images] >= 0]
    _, inverse, counts = np.unique(rows.identity[named], return_inverse=True, return_counts=True)
    return named, np.flatnonzero(counts[inverse] > 1)


def _retrieval(vectors: Array, rows: _Rows) -> dict[str, float]:
    named, queries = _queries(rows)
    identity, x = rows.identity[named], vectors[named]
    precisions: list[float] = []
    for start in range(0, len(queries), _CHUNK):
        chosen = queries[start : start + _CHUNK]
        for query, scores in zip(chosen, x[chosen] @ x.T, strict=True):
            same = identity == identity[query]
            precisions.append(average_precision(np.delete(scores, query), np.delete(same, query)))
    return {"map": float(np.mean(precisions))} if precisions else {}


def _families(vectors: Array, rows: _Rows) -> dict[str, float]:
    named = rows.images[rows.identity[rows.images] >= 0]
    scores, same = [], []
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
    slots: dict[object, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, (group, slot) in enumerate(zip(rows.data.column("group"), rows.data.column("slot"), strict=True)):
        if slot is not None:
            slots[group][slot].append(row)
    wins = [
        comparable(vectors[a] @ vectors[p] - vectors[a] @ vectors[n]) > 0
        for group in slots.values()
        for a in group["anchor"]
        for p in group["positive"]
        for n in group["negative"]
    ]
    return {"triplet": float(np.mean(wins))} if wins else {}


# Matched contexts


def _matched(rows: _Rows, roles: Sequence[str]) -> Matched:
    """Views of identities, each with its image of these roles by one engine, as NearID's protocol matches them."""
    data, parents, engine = rows.data, parent_rows(rows.data), rows.data.column("engine")
    made = np.isin(data.column("role"), roles) & (parents >= 0)
    concerned = rows.view & np.isin(rows.identity, rows.identity[parents[made]])
    chosen = np.flatnonzero(made | concerned)
    found = matched(data.take(chosen), roles, lambda row: engine[chosen[row]] or "")
    # -1 stays -1
    views, images = (np.append(chosen, -1)[places] for places in (found.views, found.made))
    return replace(found, views=views, made=images)


def _cosines(vectors: Array, a: Rows, b: Rows) -> Array:
    """Cosines of rows to rows; NaN where one of them is missing (-1)."""
    found = np.einsum("...d,...d", vectors[a], vectors[b])
    return np.where((a >= 0) & (b >= 0), found, np.nan)


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
    found = _rates("part_", _margins(vectors, samples))
    oracle = np.array([*rows.data.column("oracle"), None], dtype=float)[samples.made]  # -1, a missing image: the last
    views, made = np.broadcast_arrays(samples.views[:, :, None], samples.made[:, None])
    try:
        agreement = oracle_agreement(_cosines(vectors, views, made), oracle)
    except ValueError:  # fewer than two scores
        return found
    whole = {} if agreement.whole is None else {"oracle": agreement.whole}
    return {**found, **whole, "oracle_pair": agreement.pair}


def _groups(numbers: Rows) -> list[Rows]:
    """Places of each number, in order of first appearance."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers.tolist()):
        places[number].append(place)
    return [np.array(members, dtype=np.int64) for members in places.values()]
