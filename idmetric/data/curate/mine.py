"""Mining of hard negatives and hard pairs: images close in a model's space but of different identities.

vectors, _ = embed_rows(manifest, idmetric.load("timm:vit_large_patch16_dinov3.lvd1689m"))
triplets = hard_negatives(manifest, vectors)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from idmetric.data.curate.balance import hashed
from idmetric.data.nearest import Neighbors, nearest_other
from idmetric.data.old_manifest.lineage import has_image, image_keys, lineages, with_parents_found
from idmetric.data.old_manifest.table import Manifest
from idmetric.metric.ties import comparable

Progress = Callable[[int, int], None]
Key = tuple[str | None, str]  # image and text


class Placed(NamedTuple):
    """A copy of a row: the row's number, its new group and slot, and its similarity to the anchor, if it has one."""

    row: int
    group: str
    slot: str
    similarity: float | None = None


def negative_rows(manifest: Manifest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The anchors to find negatives for, and the pool of rows that may be negatives: real images of known identity.

    Anchors are the rows of slot anchor if there are any. Rows of slot negative, copies of others, are not in the pool.
    """
    slot = np.array(manifest.column("slot"), dtype=object)
    is_real = np.array(manifest.column("role"), dtype=object) == "real"
    has_identity = np.asarray(manifest.table["identity"].is_valid())
    is_anchor = slot == "anchor"
    if not is_anchor.any():
        is_anchor = is_real
    in_pool = is_real & has_identity & (slot != "negative")
    return np.flatnonzero(is_anchor & has_identity), np.flatnonzero(in_pool)


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
    anchors, pool = negative_rows(manifest)
    anchors = anchors[usable[anchors]]
    pool = pool[usable[pool]]
    families = lineages(manifest)
    split = np.array(manifest.column("split"), dtype=object)
    nearest: dict[int, list[tuple[int, float]]] = {}
    for part in dict.fromkeys(split[anchors]):
        part_anchors = anchors[split[anchors] == part]
        part_pool = pool[split[pool] == part]
        neighbors = nearest_other(
            vectors, families, k, anchors=part_anchors, pool=part_pool, ceiling=ceiling, progress=progress
        )
        nearest |= dict(zip(part_anchors.tolist(), _ranked(neighbors), strict=True))

    names = manifest.column("id")
    groups = manifest.column("group")
    slots = manifest.column("slot")
    positives_of = _positives(manifest, pool, seed)
    rows: list[Placed] = []
    for anchor in anchors.tolist():
        if not nearest[anchor]:
            continue
        group = groups[anchor] if slots[anchor] == "anchor" else names[anchor]
        rows.append(Placed(anchor, group, "anchor"))
        rows += [Placed(row, group, "positive") for row in positives_of(anchor)]
        rows += [Placed(row, group, "negative", similarity) for row, similarity in nearest[anchor]]
    return grouped(manifest, rows)


def _positives(manifest: Manifest, pool: NDArray[np.int64], seed: int) -> Callable[[int], list[int]]:
    """A function that gives the positives of an anchor: of its group, or one other image of its identity and split."""
    names = manifest.column("id")
    slots = manifest.column("slot")
    groups = manifest.column("group")
    path = manifest.column("path")
    identities = list(zip(manifest.column("identity"), manifest.column("split"), strict=True))
    group_positives: dict[str, list[int]] = defaultdict(list)
    for row, slot in enumerate(slots):
        if slot == "positive":
            group_positives[groups[row]].append(row)
    images: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for row in sorted(pool.tolist(), key=lambda number: names[number]):
        images[identities[row]].append(row)

    def positives_of(anchor: int) -> list[int]:
        if slots[anchor] == "anchor" and groups[anchor] in group_positives:
            return group_positives[groups[anchor]]
        candidates = images[identities[anchor]]
        start = hashed(seed, "positive", names[anchor])[0] % max(1, len(candidates))
        for row in candidates[start:] + candidates[:start]:
            if row != anchor and (path[row] is None or path[row] != path[anchor]):
                return [row]
        return []

    return positives_of


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
    for done, pool in enumerate(pools, 1):
        neighbors = nearest_other(vectors, families, k, anchors=pool, pool=pool, ceiling=ceiling)
        for anchor, ranked in zip(pool.tolist(), _ranked(neighbors), strict=True):
            for row, similarity in ranked:
                pairs[min(anchor, row), max(anchor, row)] = similarity
        if progress is not None:
            progress(done, len(pools))

    closest_first = sorted(pairs, key=lambda pair: (-comparable(pairs[pair]), pair))
    rows: list[Placed] = []
    for number, (anchor, negative) in enumerate(closest_first):
        group = f"pair-{number:06d}"
        rows.append(Placed(anchor, group, "anchor"))
        rows.append(Placed(negative, group, "negative", pairs[anchor, negative]))
    return grouped(manifest, rows)


def _ranked(neighbors: Neighbors) -> list[list[tuple[int, float]]]:
    """The nearest rows of each anchor with their similarities."""
    ranked = []
    for rows, similarities in zip(neighbors.rows.tolist(), neighbors.similarity.tolist(), strict=True):
        pairs = zip(rows, similarities, strict=True)
        ranked.append([(row, similarity) for row, similarity in pairs if row >= 0])
    return ranked


def text_pools(
    manifest: Manifest, families: NDArray[np.int64], usable: NDArray[np.bool_] | None = None
) -> list[NDArray[np.int64]]:
    """Rows with the same text in the same split, if they are of at least two families, in order of appearance."""
    pools: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    identity = manifest.column("identity")
    split = manifest.column("split")
    for row, text in enumerate(manifest.column("text")):
        is_usable = usable is None or usable[row]
        if is_usable and identity[row] is not None and text and text.strip():
            pools[split[row], _plain(text)].append(row)
    return [np.array(rows) for rows in pools.values() if len(np.unique(families[rows])) > 1]


def _plain(text: str) -> str:
    """A text without regard to case and spaces."""
    return " ".join(text.casefold().split())


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
    names = manifest.column("id")
    groups = manifest.column("group")
    slots = manifest.column("slot")
    datasets = list(zip(manifest.column("dataset"), manifest.column("split"), strict=True))
    keys = _target_keys(manifest)
    own_targets: dict[str, set[Key]] = defaultdict(set)  # of each group
    queries_of: dict[Any, list[int]] = defaultdict(list)  # of each data set and split
    targets_of: dict[Any, dict[Key, int]] = defaultdict(dict)
    for row, slot in enumerate(slots):
        if slot == "positive":
            own_targets[groups[row]].add(keys[row])
            if usable[row]:
                targets_of[datasets[row]].setdefault(keys[row], row)
        elif slot == "query" and usable[row]:
            queries_of[datasets[row]].append(row)

    rows: list[Placed] = []
    for dataset, queries in queries_of.items():
        most_own = max(len(own_targets[groups[query]]) for query in queries)
        neighbors = nearest_other(
            vectors,
            np.arange(len(vectors)),
            skip + depth + most_own,
            anchors=np.array(queries, dtype=np.int64),
            pool=np.array([*targets_of[dataset].values()], dtype=np.int64),
            progress=progress,
        )
        for query, ranked in zip(queries, _ranked(neighbors), strict=True):
            others = [target for target in ranked if keys[target[0]] not in own_targets[groups[query]]]
            window = others[skip : skip + depth]
            rng = np.random.default_rng(hashed(seed, "negatives", names[query])[0])
            for rank in np.sort(rng.permutation(len(window))[:k]).tolist():
                row, similarity = window[rank]
                rows.append(Placed(row, groups[query], "negative", similarity))
    return grouped(manifest, rows)


def _target_keys(manifest: Manifest) -> list[Key]:
    """What makes two targets equal: image and text; of a text alone its words."""
    keys: list[Key] = []
    shown = has_image(manifest).tolist()
    for image, text, is_image in zip(image_keys(manifest), manifest.column("text"), shown, strict=True):
        keys.append((image, text or "") if is_image else (None, _plain(text or "")))
    return keys


def grouped(manifest: Manifest, rows: Sequence[Placed]) -> Manifest:
    """Copies of rows of a manifest, with new ids, groups and slots.

    Column x_source holds the row's own x_source or else its old id; `parent` names a copy of the parent, if any.
    """
    names = manifest.column("id")
    sources = names
    if "x_source" in manifest.table.column_names:
        sources = [source or name for source, name in zip(manifest.column("x_source"), names, strict=True)]
    source_of = dict(zip(names, sources, strict=True))
    copies = manifest.take([placed.row for placed in rows])
    copies = copies.replace(
        id=[f"{placed.group}/{placed.slot}/{names[placed.row]}" for placed in rows],
        group=[placed.group for placed in rows],
        slot=[placed.slot for placed in rows],
        parent=[source_of.get(parent, parent) for parent in copies.column("parent")],
        x_source=[sources[placed.row] for placed in rows],
        x_similarity=[placed.similarity for placed in rows],
    )
    return with_parents_found(copies)


def _usable(manifest: Manifest, vectors: NDArray[np.floating]) -> NDArray[np.bool_]:
    if vectors.ndim != 2 or len(vectors) != len(manifest):
        raise ValueError(f"embeddings of shape {vectors.shape} for a manifest of {len(manifest)} rows")
    return np.asarray(np.isfinite(vectors).all(axis=1))
