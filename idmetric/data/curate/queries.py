"""Hard negatives of queries: targets of other queries that an auxiliary model ranks high, but not first (VisME, 4.2.1).

    mined = query_negatives(manifest, vectors)               # k = 5 of ranks 31 to 130
    merge([manifest, mined.manifest], shared=True)           # the negatives join their queries' groups

VisME takes "k = 5 hard negatives same as" B3 (section 5.1). B3's code ranks the targets of a data set for each query by
a teacher, passes over the first 30 or 70, which may be right as well, and draws from the next 100, either for each
query, as here, or for a cluster of queries together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from idmetric.data.curate.balance import hashed
from idmetric.data.curate.mine import Mined, Progress, grouped
from idmetric.data.manifest.same_image import has_image, image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import comparable
from idmetric.store.nearest import cosines

_CELLS = 2**24  # similarities held at once
_NOISE = 1e-5  # of a cosine in float32, at most
Key = tuple[str | None, str]  # image and text


def query_rows(manifest: Manifest) -> NDArray[np.int64]:
    """Rows of queries and of their targets, which have to be embedded."""
    return np.flatnonzero([slot in ("query", "positive") for slot in manifest.column("slot")])


def query_negatives(
    manifest: Manifest,
    vectors: NDArray[np.floating],
    k: int = 5,
    *,
    skip: int = 30,
    depth: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Mined:
    """Draw k negatives of each query from ranks skip + 1 to skip + depth of other targets in its data set and split.

    Equal targets, such as the classes of a data set, are ranked once; those of the query itself are left out. A query
    finds none if there are no more than `skip` others.

    Args:
        vectors: embeddings (N, D) of the rows, with their texts; rows of NaN are left out.
        seed: of the draw, which follows from it and the query's id.
        progress: called with (queries done, queries).

    Returns:
        Rows of slot negative in the queries' groups; free columns are x_source (id of the target) and x_similarity.
    """
    if min(k, depth) < 1 or skip < 0:
        raise ValueError(f"k={k}, skip={skip}, depth={depth}: k and depth are at least 1, and skip at least 0")
    if vectors.ndim != 2 or len(vectors) != len(manifest):
        raise ValueError(f"embeddings of shape {vectors.shape} for a manifest of {len(manifest)} rows")
    names, groups, slots = (manifest.column(c) for c in ("id", "group", "slot"))
    keys, unit = _keys(manifest), _unit(vectors)
    own: dict[str, set[Key]] = defaultdict(set)
    for row, slot in enumerate(slots):
        if slot == "positive":
            own[groups[row]].add(keys[row])

    rows: list[tuple[int, str, str, float | None]] = []
    without: list[str] = []
    places = _places(manifest, np.asarray(np.isfinite(unit).all(axis=1)))
    done, total = 0, sum(len(queries) for queries, _ in places)
    for queries, targets in places:
        first: dict[Key, int] = {}
        for row in targets:
            first.setdefault(keys[row], row)
        pool, at = list(first.values()), {key: n for n, key in enumerate(first)}
        ranked = unit[pool]
        step = max(1, _CELLS // max(1, len(pool)))
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            for q, line in zip(part, unit[part] @ ranked.T, strict=True):
                line[[at[key] for key in own[groups[q]] if key in at]] = -np.inf
                near = _nearest(unit[q], ranked, line, skip + depth)[skip:]
                rng = np.random.default_rng(hashed(seed, "negatives", names[q])[0])
                drawn = near[np.sort(rng.permutation(len(near))[:k])].tolist()
                rows += [(pool[n], groups[q], "negative", float(line[n])) for n in drawn]
                if not drawn:
                    without.append(names[q])
            done += len(part)
            if progress is not None:
                progress(done, total)

    return Mined(grouped(manifest, rows), without)


def _nearest(
    query: NDArray[np.float32], pool: NDArray[np.float32], scores: NDArray[np.floating], count: int
) -> NDArray[np.int64]:
    """At most `count` places of a pool, nearest first; of equally near ones the first first.

    Args:
        scores: of the pool by a product of matrices; -inf where a target is left out.
    """
    count = min(count, int(np.isfinite(scores).sum()))
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    near = np.flatnonzero(scores >= least - _NOISE)
    exact = cosines(query, pool[near])  # the product's noise depends on a target's place in it
    found: NDArray[np.int64] = near[np.argsort(-comparable(exact), kind="stable")][:count]
    return found


def _keys(manifest: Manifest) -> list[Key]:
    """Image and text of each row; texts alone are equal without regard to case and spaces."""
    images, texts = image_keys(manifest), manifest.column("text")
    return [
        (image, text or "") if shown else (None, " ".join((text or "").casefold().split()))
        for image, text, shown in zip(images, texts, has_image(manifest).tolist(), strict=True)
    ]


def _places(manifest: Manifest, usable: NDArray[np.bool_]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Queries and targets of each data set and split."""
    found: dict[tuple[str | None, str | None], tuple[list[int], list[int]]] = {}
    columns = (manifest.column(c) for c in ("dataset", "split", "slot"))
    for row, (dataset, split, slot) in enumerate(zip(*columns, strict=True)):
        if usable[row] and slot in ("query", "positive"):
            queries, targets = found.setdefault((dataset, split), ([], []))
            (queries if slot == "query" else targets).append(row)
    return list(found.values())


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norm > 0, norm, 1), dtype=np.float32)
