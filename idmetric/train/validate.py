"""Scores on validation rows during training: each image is embedded once; the rows decide which measures there are.

validation(model, data.filter(split="val"))  # {"map": 0.81, "auc": 0.97, "ssr": 0.42, "pa": 0.77}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import VIEW_ROLES, image_keys, lineages, matched_sets, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import comparable
from idmetric.evaluate.margins import directed_margins, margin_rates, oracle_agreement
from idmetric.evaluate.ranking import average_precision, roc_auc
from idmetric.models.embedder import Embedder
from idmetric.train.batches import generator
from idmetric.train.embed import Array, embed_rows, embed_shared
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

    Raises:
        ValueError: if the rows allow none.
        ImageReadError: naming an image that cannot be read.
    """
    rows = _Rows(data)
    if not _measurable(rows):  # before images are read
        raise ValueError(
            f"nothing can be measured on {len(data)} validation rows: give two images of an identity, or triplets "
            "(slots anchor, positive, negative)"
        )
    if processes is None:
        return _measure(embed_rows(model, data, rows.images, batch_size), rows)
    vectors = embed_shared(model, data, rows.images, processes, batch_size)
    return processes.on_main(lambda: _measure(vectors, rows))


def measurable(data: Manifest) -> list[str]:
    """Names of the measures that `validation` would return, without reading images; for use before training."""
    return _measurable(_Rows(data))


def sample(data: Manifest, images: int) -> Manifest:
    """Rows of some whole families (an identity and its edits), always the same ones.

    Args:
        images: rows at most, unless the first family alone has more.
    """
    members = _groups(lineages(data))
    chosen: list[int] = []
    for k in generator("validation of retrieval").permutation(len(members)):
        if chosen and len(chosen) + len(members[k]) > images:
            break
        chosen += members[k].tolist()
    return data.take(np.sort(np.array(chosen, dtype=np.int64)))


def _measurable(rows: _Rows) -> list[str]:
    ranked = ["map"] if len(_queries(rows)[1]) else []  # to rank all would take as long as validation
    return [*ranked, *_cheap(np.ones((len(rows.image), 1)), rows)]


def _measure(vectors: Array, rows: _Rows) -> dict[str, float]:
    """All measures, from the features of `rows.images`."""
    by_row = vectors[rows.image]
    return _retrieval(by_row, rows) | _cheap(by_row, rows)


def _cheap(vectors: Array, rows: _Rows) -> dict[str, float]:
    """All measures but retrieval."""
    return (
        _families(vectors, rows)
        | _triplets(vectors, rows)
        | _margins(vectors, rows, ("distractor", "identity-edit"))
        | _margins(vectors, rows, ("part-edit",), "part_")
        | _oracle(vectors, rows)
    )


class _Rows:
    """The columns of a manifest of N rows that the measures need.

    Attributes:
        images: first row of each different image, (M,). image: place in `images` of each row's image, (N,).
        identity: its number, -1 where unknown. family: see `lineages`. parent: row, or -1.
        role, engine, group, slot: as in the manifest. oracle: NaN if there is none.
    """

    def __init__(self, data: Manifest) -> None:
        names = data.column("identity")
        first: dict[tuple[str, str | None], int] = {}  # an image with two identities counts as two
        keys = zip(image_keys(data), names, strict=True)
        shown = [first.setdefault(key, row) for row, key in enumerate(keys)]
        self.images, self.image = np.unique(np.array(shown, dtype=np.int64), return_inverse=True)
        number = {name: k for k, name in enumerate(dict.fromkeys(n for n in names if n is not None))}
        self.identity = np.array([number.get(n, -1) for n in names], dtype=np.int64)
        self.family, self.parent = lineages(data), parent_rows(data)
        columns = (np.array(data.column(c), dtype=object) for c in ("role", "engine", "group", "slot"))
        self.role, self.engine, self.group, self.slot = columns
        self.oracle = np.array(data.column("oracle"), dtype=float)


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
        view = np.isin(rows.role[chosen].astype(str), VIEW_ROLES)
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
    for row in np.flatnonzero(np.isin(rows.slot.astype(str), ("anchor", "positive", "negative"))):
        slots[rows.group[row]][rows.slot[row]].append(int(row))
    wins = [
        comparable(vectors[a] @ vectors[p] - vectors[a] @ vectors[n]) > 0
        for group in slots.values()
        for a in group["anchor"]
        for p in group["positive"]
        for n in group["negative"]
    ]
    return {"triplet": float(np.mean(wins))} if wins else {}


# Matched contexts


def _margins(vectors: Array, rows: _Rows, roles: Sequence[str], prefix: str = "") -> dict[str, float]:
    """SSR and PA; a sample is an identity's views, each with its distractor by one engine (the first, second, ...)."""
    made, views = _made_from(rows, roles), list(_views(rows))
    samples = matched_sets(
        (owner, place, rows.engine[row], row)
        for owner, own in enumerate(views)
        for place, view in enumerate(own)
        for row in made.get(int(rows.image[view]), ())
    )
    margins = []
    for (owner, _, _), distractors in samples.items():
        x = vectors[views[owner]]
        if len(x) < 2:
            continue
        against = np.full(len(x), np.nan)
        for place, row in distractors.items():
            against[place] = x[place] @ vectors[row]
        margins.append(directed_margins(x @ x.T, against))
    if not margins:
        return {}
    rates = margin_rates(margins)
    return {f"{prefix}ssr": rates.ssr, f"{prefix}pa": rates.pa}


def _oracle(vectors: Array, rows: _Rows) -> dict[str, float]:
    """Mean correlation with the oracle, over two views of each identity: NearID's M-O and M-O pair."""
    own = _made_from(rows, ("part-edit",))
    similarity, oracle = [], []
    for views in _views(rows):
        two = sorted(views, key=lambda view: int(rows.image[view]) not in own)[:2]  # views with edits first
        made = [[r for r in own.get(int(rows.image[v]), ()) if not np.isnan(rows.oracle[r])] for v in two]
        for edits in zip_longest(*made):  # the first, second, ... of each view
            similarity.append(np.full((2, 2), np.nan))
            oracle.append(np.full(2, np.nan))
            for j, row in enumerate(edits):
                if row is not None:
                    oracle[-1][j] = rows.oracle[row]
                    similarity[-1][: len(two), j] = vectors[two] @ vectors[row]
    if not oracle or (np.isfinite(oracle).sum(0) < 2).all():
        return {}
    found = oracle_agreement(np.stack(similarity), np.stack(oracle))
    return ({} if found.whole is None else {"oracle": found.whole}) | {"oracle_pair": found.pair}


def _views(rows: _Rows) -> Iterator[Rows]:
    """The views of each identity, one row for each image, in the manifest's order."""
    chosen = np.isin(rows.role.astype(str), VIEW_ROLES) & (rows.identity >= 0)
    shown = rows.images[chosen[rows.images]]
    return (shown[members] for members in _groups(rows.identity[shown]))


def _made_from(rows: _Rows, roles: Sequence[str]) -> dict[int, list[int]]:
    """Rows of these roles by their parent's image, one row for each image."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for row in np.flatnonzero(np.isin(rows.role.astype(str), roles) & (rows.parent >= 0)):
        found[int(rows.image[rows.parent[row]])].setdefault(int(rows.image[row]), int(row))
    return {parent: list(made.values()) for parent, made in found.items()}


def _groups(numbers: Rows) -> list[Rows]:
    """Places of each number, in order of first appearance."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers.tolist()):
        places[number].append(place)
    return [np.array(members, dtype=np.int64) for members in places.values()]
