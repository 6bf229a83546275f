"""Mining of hard negatives and hard pairs: images close in a model's space but of different identities.

vectors = embed_rows(manifest, idmetric.load("timm:vit_large_patch16_dinov3.lvd1689m")).vectors
triplets = hard_negatives(manifest, vectors)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.curate.balance import hashed
from idmetric.data.manifest.lineage import has_image, image_keys, lineages, with_parents_found
from idmetric.data.manifest.table import Manifest
from idmetric.metric.distance.ties import comparable
from idmetric.metric.scoring.nearest import Neighbors, nearest_other

Progress = Callable[[int, int], None]
Key = tuple[str | None, str]  # image and text
Placed = tuple[int, str, str, float | None]  # row, its group and slot, and its similarity


def negative_rows(manifest: Manifest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The anchors to find negatives for, and the pool of rows that may be negatives: real images of known identity.

    Anchors are the rows of slot anchor if there are any. Rows of slot negative, copies of others, are not in the pool.
    """
    role, slot = (np.array(manifest.column(c), dtype=object) for c in ("role", "slot"))
    real, named = role == "real", np.asarray(manifest.table["identity"].is_valid())
    anchors = slot == "anchor" if (slot == "anchor").any() else real
    return np.flatnonzero(anchors & named), np.flatnonzero(real & named & (slot != "negative"))


def hard_negatives(
    manifest: Manifest,
    vectors: NDArray[np.floating],
    k: int = 1,
    *,
    ceiling: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Manifest:
    """Triplets of each anchor with the nearest real images of other identities in its split.

    ID-Sim, A.1: "for each anchor image, we search the training pool for the nearest neighbor in DINOv3 embedding
    space". In curated manifests the rows of slot anchor are the anchors and keep their group's positive; otherwise
    every image is an anchor, and its positive is another image of its identity, drawn at random. Images of the anchor's
    lineage are left out: such edits are other identities, but nearest by construction.

    Args:
        vectors: embeddings (N, D) of the rows, from `embed_rows`; rows of NaN are left out.
        k: number of negatives of each anchor.
        ceiling: leave out images with at least this cosine similarity, likely the same subject under another name.
        seed: of the positives.
        progress: as in `nearest_other`, for each split.

    Returns:
        Rows of groups with slots anchor, positive (if there is one) and negative. Free columns are x_source (id in the
        given manifest) and x_similarity (of negatives).
    """
    usable = _usable(manifest, vectors)
    anchors, pool = (rows[usable[rows]] for rows in negative_rows(manifest))
    families, split = lineages(manifest), np.array(manifest.column("split"), dtype=object)
    near: dict[int, list[tuple[int, float]]] = {}
    for part in dict.fromkeys(split[anchors]):
        here, inside = anchors[split[anchors] == part], pool[split[pool] == part]
        found = nearest_other(vectors, families, k, anchors=here, pool=inside, ceiling=ceiling, progress=progress)
        near |= dict(zip(here.tolist(), _pairs(found), strict=True))

    names, groups, slots = (manifest.column(c) for c in ("id", "group", "slot"))
    own = {a: groups[a] if slots[a] == "anchor" else names[a] for a in near}  # the group of each anchor
    positives = _positives(manifest, pool, seed)
    rows: list[Placed] = []
    for a in filter(near.get, anchors.tolist()):
        rows += [(a, own[a], "anchor", None), *((p, own[a], "positive", None) for p in positives(a))]
        rows += [(row, own[a], "negative", similarity) for row, similarity in near[a]]
    return grouped(manifest, rows)


def _positives(manifest: Manifest, pool: NDArray[np.int64], seed: int) -> Callable[[int], list[int]]:
    """A function that gives the positives of an anchor: of its group, or one other image of its identity and split."""
    names, identity, split, slots, groups, path = (
        manifest.column(c) for c in ("id", "identity", "split", "slot", "group", "path")
    )
    given: dict[str, list[int]] = defaultdict(list)
    for row in range(len(manifest)):
        if slots[row] == "positive":
            given[groups[row]].append(row)
    same: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for row in sorted(pool.tolist(), key=names.__getitem__):
        same[identity[row], split[row]].append(row)

    def of(anchor: int) -> list[int]:
        if slots[anchor] == "anchor" and groups[anchor] in given:
            return given[groups[anchor]]
        others = same[identity[anchor], split[anchor]]
        start = hashed(seed, "positive", names[anchor])[0] % max(1, len(others))
        turned = others[start:] + others[:start]
        return [r for r in turned if r != anchor and (path[r] is None or path[r] != path[anchor])][:1]

    return of


def hard_pairs(
    manifest: Manifest,
    vectors: NDArray[np.floating],
    k: int = 1,
    *,
    ceiling: float | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Pairs of images with the same text and different identities, nearest in the space of an auxiliary model.

    VisME, section 4.1, step 2: "candidate negative pairs that share the same editing instruction but originate from
    different source identities ... select the pairs whose generated images are closest". Texts are compared without
    case and spaces; pairs stay within a split.

    Args:
        vectors: embeddings (N, D); rows of NaN are left out.
        k: number of nearest images that each image is paired with; a pair that is found from both sides counts once.
        ceiling: leave out pairs with at least this similarity. This is the denoising of step 2: a closer pair likely
            shows the same subject, or an edit without effect. The paper states no value.
        progress: called with (texts done, texts).

    Returns:
        Rows of groups with slots anchor and negative, closest pairs first; free columns x_source, x_similarity.
    """
    families = lineages(manifest)
    pools = text_pools(manifest, families, _usable(manifest, vectors))
    pairs: dict[tuple[int, int], float] = {}
    for number, pool in enumerate(pools, 1):
        found = nearest_other(vectors, families, k, anchors=pool, pool=pool, ceiling=ceiling)
        for a, near in zip(pool.tolist(), _pairs(found), strict=True):
            for b, similarity in near:
                pairs[min(a, b), max(a, b)] = similarity
        if progress is not None:
            progress(number, len(pools))

    best = sorted(pairs, key=lambda pair: (-comparable(pairs[pair]), pair))
    rows: list[Placed] = []
    for number, (a, b) in enumerate(best):
        rows += [(a, f"pair-{number:06d}", "anchor", None), (b, f"pair-{number:06d}", "negative", pairs[a, b])]
    return grouped(manifest, rows)


def _pairs(near: Neighbors) -> list[list[tuple[int, float]]]:
    """The nearest rows of each anchor with their similarities."""
    both = zip(near.rows.tolist(), near.similarity.tolist(), strict=True)
    return [[(row, s) for row, s in zip(rows, similarities, strict=True) if row >= 0] for rows, similarities in both]


def text_pools(
    manifest: Manifest, families: NDArray[np.int64], usable: NDArray[np.bool_] | None = None
) -> list[NDArray[np.int64]]:
    """Rows with the same text in the same split, if they are of at least two families, in order of appearance."""
    pools: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    columns = (manifest.column(c) for c in ("identity", "text", "split"))
    for row, (identity, text, part) in enumerate(zip(*columns, strict=True)):
        if identity is not None and text and text.strip() and (usable is None or usable[row]):
            pools[part, " ".join(text.casefold().split())].append(row)
    return [np.array(rows) for rows in pools.values() if len(set(families[rows].tolist())) > 1]


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
) -> Manifest:
    """Draw k negatives of each query from ranks skip + 1 to skip + depth of other targets in its data set and split.

    VisME takes "k = 5 hard negatives same as" B3 (4.2.1 and 5.1). B3's code ranks the targets of a data set for each
    query by a teacher, passes over the first 30 or 70, which may be right as well, and draws from the next 100, either
    for each query, as here, or for a cluster of queries together. The negatives join their queries' groups:

        mined = query_negatives(manifest, vectors)               # k = 5 of ranks 31 to 130
        merge([manifest, mined], shared=True)

    Equal targets, such as the classes of a data set, are ranked once; those of the query itself are left out. A query
    finds none if there are no more than `skip` others.

    Args:
        vectors: embeddings (N, D) of the rows, with their texts; rows of NaN are left out.
        seed: of the draw, which follows from it and the query's id.
        progress: as in `nearest_other`, for each data set and split.

    Returns:
        Rows of slot negative in the queries' groups; free columns are x_source (id of the target) and x_similarity.
    """
    usable = _usable(manifest, vectors)
    names, groups, slots, texts, dataset, split = (
        manifest.column(c) for c in ("id", "group", "slot", "text", "dataset", "split")
    )
    keys: list[Key] = [  # texts alone are equal without regard to case and spaces
        (image, text or "") if shown else (None, " ".join((text or "").casefold().split()))
        for image, text, shown in zip(image_keys(manifest), texts, has_image(manifest).tolist(), strict=True)
    ]
    own: dict[str, set[Key]] = defaultdict(set)
    places: dict[Any, tuple[list[int], dict[Key, int]]] = {}  # queries and targets of each data set and split
    for row, slot in enumerate(slots):
        if slot == "positive":
            own[groups[row]].add(keys[row])
        if usable[row] and slot in ("query", "positive"):
            queries, targets = places.setdefault((dataset[row], split[row]), ([], {}))
            if slot == "query":
                queries.append(row)
            else:
                targets.setdefault(keys[row], row)

    rows: list[Placed] = []
    for queries, targets in places.values():
        count = skip + depth + max((len(own[groups[q]]) for q in queries), default=0)
        each, asked, pool = (np.array([*x], dtype=np.int64) for x in (range(len(vectors)), queries, targets.values()))
        near = nearest_other(vectors, each, count, anchors=asked, pool=pool, progress=progress)
        for q, ranked in zip(queries, _pairs(near), strict=True):
            window = [(n, s) for n, s in ranked if keys[n] not in own[groups[q]]][skip : skip + depth]
            rng = np.random.default_rng(hashed(seed, "negatives", names[q])[0])
            drawn = np.sort(rng.permutation(len(window))[:k]).tolist()
            rows += [(window[n][0], groups[q], "negative", window[n][1]) for n in drawn]
    return grouped(manifest, rows)


def grouped(manifest: Manifest, rows: Sequence[Placed]) -> Manifest:
    """Copies of rows (number, group, slot, similarity or None) of a manifest, with new ids.

    Column x_source holds the row's own x_source or else its old id; `parent` names a copy of the parent, if any.
    """
    names = manifest.column("id")
    known = manifest.column("x_source") if "x_source" in manifest.table.column_names else [None] * len(manifest)
    source = [s or name for s, name in zip(known, names, strict=True)]
    origin = dict(zip(names, source, strict=True))
    copies = manifest.take([r for r, *_ in rows])
    made = copies.replace(
        id=[f"{group}/{slot}/{names[r]}" for r, group, slot, _ in rows],
        group=[group for _, group, _, _ in rows],
        slot=[slot for _, _, slot, _ in rows],
        parent=[origin.get(p, p) for p in copies.column("parent")],
        x_source=[source[r] for r, *_ in rows],
        x_similarity=[s for *_, s in rows],
    )

    return with_parents_found(made)


def _usable(manifest: Manifest, vectors: NDArray[np.floating]) -> NDArray[np.bool_]:
    if vectors.ndim != 2 or len(vectors) != len(manifest):
        raise ValueError(f"embeddings of shape {vectors.shape} for a manifest of {len(manifest)} rows")
    return np.asarray(np.isfinite(vectors).all(axis=1))
