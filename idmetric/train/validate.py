"""Numbers on validation rows while training: each image embedded once, and whatever measures the rows allow.

validation(model, data.filter(split="val"))  # {"map": 0.81, "auc": 0.97, "ssr": 0.42, "pa": 0.77}
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from idmetric.data.manifest.lineage import VIEW_ROLES, lineages, matched_sets, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.distance.finite import NonFiniteError
from idmetric.evaluate.margins import directed_margins, margin_rates, oracle_agreement
from idmetric.evaluate.ranking import average_precision, roc_auc
from idmetric.models.embedder import Embedder
from idmetric.train.batches import Pictures, generator
from idmetric.train.processes import Processes

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
_CHUNK = 256  # queries whose similarities are in memory at once


def validation(
    model: Embedder,
    data: Manifest,
    *,
    batch_size: int = 32,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """Measures of a model on rows; all in 0..1 but the correlations (-1..1), higher = better.

    The model is put into eval mode and back. Random numbers are neither drawn nor used.

    Args:
        batch_size: images per pass. workers: threads that read images.
        progress: called with (images done, images in all).
        processes: of a training run, all of which call this; they share the embedding, and all get the same numbers.

    Returns:
        Those of these that the rows allow:
        "map": mean average precision, each image of known identity a query against all others
            (edits and distractors among them), over the queries with a positive.
        "auc": area under the ROC curve of same identity or not, over pairs of a view with another image of its
            family: an identity and its identity-edits (ID-Sim's Identity Validation, B.1).
        "triplet": share of triplets (slots anchor, positive, negative) whose positive is nearer than the negative
            (ID-Sim's Real Instance Validation, B.1); a tie counts as wrong.
        "ssr", "pa": success of views against their distractors and identity-edits (NearID, section 3.4).
        "part_ssr", "part_pa": the same against part-edits (NearID on Mind-the-Glitch).
        "oracle", "oracle_pair": correlation with the part-edits' oracle scores (NearID's M-O and M-O pair).

    Raises:
        ValueError: if the rows allow none.
        ImageReadError: naming an image that cannot be read.
    """
    rows = _Rows.of(data)
    if not _measurable(rows):  # before images are read
        raise ValueError(
            f"nothing can be measured on {len(data)} validation rows: give two images of an identity, or triplets "
            "(slots anchor, positive, negative)"
        )
    options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "progress": progress}
    if processes is None:
        vectors = embed_rows(model, data, rows.images, **options)
    else:
        vectors = embed_shared(model, data, rows.images, processes, **options)
        return processes.on_main(lambda: _measure(vectors[rows.image], rows))
    return _measure(vectors[rows.image], rows)


def measurable(data: Manifest) -> list[str]:
    """Names of the measures that `validation` would return, without reading images; for use before training."""
    return _measurable(_Rows.of(data))


def sample(data: Manifest, images: int) -> Manifest:
    """Rows of some families (an identity, and what edits made of it), always the same, each family whole.

    Args:
        images: rows at most; of a single larger family, more. Families are drawn by the manifest's order of them.
    """
    members = _groups(lineages(data))
    chosen: list[int] = []
    for k in generator("validation of retrieval").permutation(len(members)):
        if chosen and len(chosen) + len(members[k]) > images:
            break
        chosen += members[k].tolist()
    return data.take(np.sort(np.array(chosen, dtype=np.int64)))


def _measurable(rows: _Rows) -> list[str]:
    others = _others(np.ones((len(rows.image), 1)), rows)
    return [*(["map"] if len(_queries(rows)[1]) else []), *others]  # ranking all would take as long as validation


def _measure(vectors: Array, rows: _Rows) -> dict[str, float]:
    return _retrieval(vectors, rows) | _others(vectors, rows)


def _others(vectors: Array, rows: _Rows) -> dict[str, float]:
    found: dict[str, float] = {}
    for measure in (_families, _triplets, _distractors, _parts, _oracle):
        found |= measure(vectors, rows)
    return found


def embed_rows(
    model: Embedder,
    data: Manifest,
    rows: Sequence[int] | NDArray[np.integer],
    *,
    batch_size: int = 32,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Unit-length global features (N, D) of rows, as `model.embed` makes them, in eval mode; read by threads.

    Raises:
        ImageReadError: naming an image that cannot be read.
        ValueError: if a feature is not finite.
    """
    pictures = Pictures(data, model.size_for, model.interpolation, model.background)
    parts: list[Tensor] = []
    starts = range(0, len(rows), batch_size)
    with _evaluating(model), ThreadPoolExecutor(max(1, workers)) as pool:
        # the next batch is read while this one is embedded
        ahead = [pool.submit(pictures.read, int(row)) for row in rows[:batch_size]]
        for start in starts:
            now = ahead
            ahead = [pool.submit(pictures.read, int(r)) for r in rows[start + batch_size : start + 2 * batch_size]]
            pixels = [future.result() for future in now]
            try:
                parts.append(model.embed(pixels, batch_size=batch_size, patches=False).cls.cpu())
            except NonFiniteError as error:
                raise ValueError(
                    "the model's features are not finite: training has diverged (lower the learning rate)"
                ) from error
            if progress is not None:
                progress(min(start + batch_size, len(rows)), len(rows))
    vectors: Array = F.normalize(torch.cat(parts).double(), dim=-1).numpy()
    return vectors


def embed_shared(
    model: Embedder,
    data: Manifest,
    rows: Sequence[int] | NDArray[np.integer],
    processes: Processes,
    *,
    batch_size: int = 32,
    **options: Any,
) -> Array:
    """`embed_rows` by all processes of a training run: each embeds some of the batches, and all get all features.

    Args:
        options: `workers` and `progress` (of this process's share), see `embed_rows`.

    Raises:
        ImageReadError, ValueError: as `embed_rows`, in the process that met it; OtherFailed in the others.
    """
    if processes.count == 1:
        return embed_rows(model, data, rows, batch_size=batch_size, **options)
    each = -(-len(rows) // (batch_size * processes.count)) * batch_size  # whole batches: those of one process
    start = processes.rank * each
    own = rows[start : start + each] if start < len(rows) else rows[:1]  # one with nothing to do learns the width
    found = processes.together(lambda: embed_rows(model, data, own, batch_size=batch_size, **options))
    share = torch.zeros(each, found.shape[1], dtype=torch.float64, device=processes.device)
    share[: len(found)] = torch.from_numpy(found)
    # the last shares are filled up with what lies behind the last row
    vectors: Array = processes.gather(share)[: len(rows)].cpu().numpy()
    return vectors


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, and each module's own mode after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class _Rows:
    """The columns of a manifest of N rows that the measures need.

    Attributes:
        images: first row of each different image, (M,). image: which of them a row shows, (N,).
        identity: number of it, -1 where unknown. family: see `lineages`. parent: row, or -1.
        role, engine, group, slot: as in the manifest. oracle: NaN where there is none.
    """

    images: Rows
    image: Rows
    identity: Rows
    family: Rows
    parent: Rows
    role: NDArray[np.object_]
    engine: NDArray[np.object_]
    group: NDArray[np.object_]
    slot: NDArray[np.object_]
    oracle: Array

    @classmethod
    def of(cls, data: Manifest) -> _Rows:
        keys = [_key(source, name) for source, name in zip(data.sources(), data.column("identity"), strict=True)]
        first: dict[Any, int] = {}
        shown = [first.setdefault(key, row) for row, key in enumerate(keys)]
        images, image = np.unique(np.array(shown, dtype=np.int64), return_inverse=True)
        names = data.column("identity")
        number = {name: k for k, name in enumerate(dict.fromkeys(n for n in names if n is not None))}
        role, engine, group, slot = (
            np.array(data.column(c), dtype=object) for c in ("role", "engine", "group", "slot")
        )
        return cls(
            images, image, np.array([number.get(n, -1) for n in names], dtype=np.int64),
            lineages(data), parent_rows(data),
            role, engine, group, slot, np.array(data.column("oracle"), dtype=float),
        )  # fmt: skip


def _key(source: str | bytes | None, identity: str | None) -> tuple[Any, ...]:
    """Equal for rows of one image; an image with two identities counts as two."""
    return (hashlib.sha256(source).digest() if isinstance(source, bytes) else source, identity)


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
            others = np.arange(len(named)) != query
            precisions.append(average_precision(scores[others], (identity == identity[query])[others]))
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
    slots: dict[Any, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in np.flatnonzero(np.isin(rows.slot.astype(str), ("anchor", "positive", "negative"))):
        slots[rows.group[row]][rows.slot[row]].append(int(row))
    wins = [
        vectors[a] @ vectors[p] > vectors[a] @ vectors[n]
        for group in slots.values()
        for a in group["anchor"]
        for p in group["positive"]
        for n in group["negative"]
    ]
    return {"triplet": float(np.mean(wins))} if wins else {}


# Matched contexts


def _distractors(vectors: Array, rows: _Rows) -> dict[str, float]:
    rates = _margins(vectors, rows, ("distractor", "identity-edit"))
    return {} if rates is None else {"ssr": rates[0], "pa": rates[1]}


def _parts(vectors: Array, rows: _Rows) -> dict[str, float]:
    rates = _margins(vectors, rows, ("part-edit",))
    return {} if rates is None else {"part_ssr": rates[0], "part_pa": rates[1]}


def _margins(vectors: Array, rows: _Rows, roles: Sequence[str]) -> tuple[float, float] | None:
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
        return None
    rates = margin_rates(margins)
    return rates.ssr, rates.pa


def _oracle(vectors: Array, rows: _Rows) -> dict[str, float]:
    """Mean correlation with the oracle: NearID's M-O and M-O pair, of two views of each identity."""
    own = _made_from(rows, ("part-edit",))
    similarity, oracle = [], []
    for views in _views(rows):
        two = sorted(views, key=lambda view: int(rows.image[view]) not in own)[:2]  # those with edits, if not all have
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
    """Rows of these roles by the image that they were made from, one row for each image."""
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
