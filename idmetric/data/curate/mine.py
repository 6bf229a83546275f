"""Mining of hard negatives and hard pairs: images close in a model's space but of different identities.

vectors, _ = embed_rows(table, idmetric.load("timm:vit_large_patch16_dinov3.lvd1689m"))
triplets = hard_negatives(table, vectors)
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idmetric.data.curate.balance import hashed, plain_text
from idmetric.data.manifest import numbered, take, with_columns
from idmetric.data.nearest import Ints, nearest_other
from idmetric.data.split import blocks
from idmetric.metric.ties import comparable

Vectors = NDArray[np.floating]


def negative_rows(table: pd.DataFrame) -> tuple[Ints, Ints]:
    """The anchors to find negatives for, and the pool of rows that may be negatives: real images of known identity.

    Anchors are the rows of slot anchor if there are any. Rows of slot negative, copies of others, are not in the pool.
    """
    has_identity = table["identity"].notna()
    is_real = table["role"] == "real"
    is_anchor = table["slot"] == "anchor"
    if not is_anchor.any():
        is_anchor = is_real
    is_copy = table["slot"] == "negative"
    anchors = np.flatnonzero(is_anchor & has_identity)
    pool = np.flatnonzero(is_real & has_identity & ~is_copy)
    return anchors, pool


def hard_negatives(
    table: pd.DataFrame,
    vectors: Vectors,
    k: int = 1,
    *,
    ceiling: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
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

    Returns:
        Rows of groups with slots anchor, positive (if there is one) and negative. Own columns are x_source (id in the
        given manifest) and x_similarity (of negatives).
    """
    table = numbered(table)
    is_usable = _usable(table, vectors)
    anchors, pool = negative_rows(table)
    anchors = anchors[is_usable[anchors]]
    pool = pool[is_usable[pool]]
    families = blocks(table, groups=False)
    split = table["split"].fillna("").to_numpy()
    rows, similarity = _unfilled(len(anchors), k)
    for name in pd.unique(split[anchors]):
        is_part = split[anchors] == name
        part_pool = pool[split[pool] == name]
        rows[is_part], similarity[is_part] = nearest_other(
            vectors,
            families,
            k,
            anchors=anchors[is_part],
            pool=part_pool,
            ceiling=ceiling,
        )
    negatives = _pairs(anchors, rows, similarity)

    # an anchor that has negatives, its positives and its negatives
    anchors = np.unique(negatives["anchor"])
    parts = {
        "anchor": pd.DataFrame({"anchor": anchors, "row": anchors}),
        "positive": _positives(table, anchors, pool, seed),
        "negative": negatives,
    }
    placed = pd.concat(parts, names=["slot"]).reset_index("slot")
    placed = placed.sort_values("anchor", kind="stable")
    is_anchor = table["slot"] == "anchor"
    groups = table["group"].where(is_anchor, table["id"])
    placed["group"] = groups[placed["anchor"]].to_numpy()
    return grouped(table, placed)


def _unfilled(anchors: int, k: int) -> tuple[Ints, NDArray[np.float64]]:
    """Rows (A, k) of -1 and similarities (A, k) of NaN."""
    rows = np.full((anchors, k), -1)
    similarity = np.full((anchors, k), np.nan)
    return rows, similarity


def _pairs(anchors: Ints, rows: Ints, similarity: NDArray[np.float64]) -> pd.DataFrame:
    """Anchors (A,) with their nearest rows (A, k) and similarities (A, k) as columns anchor, row and similarity."""
    columns = {
        "anchor": anchors.repeat(rows.shape[1]),
        "row": rows.ravel(),
        "similarity": similarity.ravel(),
    }
    pairs = pd.DataFrame(columns)
    return pairs.query("row >= 0")


def _positives(table: pd.DataFrame, anchors: Ints, pool: Ints, seed: int) -> pd.DataFrame:
    """The positives of anchors, of their group, or one other image of their identity and split: columns anchor, row."""
    group_of_positive = table["group"].where(table["slot"] == "positive")
    positives_of = table.groupby(group_of_positive).indices
    by_name = table.loc[pool].sort_values("id")
    by_name = by_name.fillna({"split": ""})
    images_of = by_name.groupby(["identity", "split"]).groups
    path = table["path"].to_numpy()

    pairs = []
    for row in table.loc[anchors].itertuples():
        if row.slot == "anchor" and row.group in positives_of:
            pairs += [(row.Index, positive) for positive in positives_of[row.group]]
            continue
        key = (row.identity, row.split or "")
        images = list(images_of.get(key, ()))
        start = hashed(seed, "positive", row.id) % max(1, len(images))
        for image in images[start:] + images[:start]:
            if image != row.Index and path[image] != row.path:
                pairs.append((row.Index, image))
                break
    return pd.DataFrame(pairs, columns=["anchor", "row"], dtype=np.int64)


def hard_pairs(
    table: pd.DataFrame,
    vectors: Vectors,
    k: int = 1,
    *,
    ceiling: float | None = None,
) -> pd.DataFrame:
    """Pairs of images with the same text and different identities, nearest in the space of an auxiliary model.

    VisME, section 4.1, step 2: "candidate negative pairs that share the same editing instruction but originate from
    different source identities ... select the pairs whose generated images are closest". Texts are compared without
    case and spaces; pairs stay within a split.

    Args:
        vectors: embeddings (N, D); rows of NaN are left out.
        k: number of nearest images that each image is paired with; a pair that is found from both sides counts once.
        ceiling: leave out pairs with at least this similarity. This is the denoising of step 2: a closer pair likely
            shows the same subject, or an edit without effect. The paper states no value.

    Returns:
        Rows of groups with slots anchor and negative, closest pairs first; own columns x_source, x_similarity.
    """
    families = blocks(table, groups=False)
    rows, similarity = _unfilled(len(table), k)
    is_usable = _usable(table, vectors)
    for pool in text_pools(table, families, is_usable):
        rows[pool], similarity[pool] = nearest_other(
            vectors,
            families,
            k,
            anchors=pool,
            pool=pool,
            ceiling=ceiling,
        )

    # each pair once, the closest first
    sides = ["anchor", "row"]
    all_rows = np.arange(len(table))
    pairs = _pairs(all_rows, rows, similarity)
    pairs[sides] = np.sort(pairs[sides], axis=1)
    pairs = pairs.drop_duplicates(sides)
    pairs["rank"] = -comparable(pairs["similarity"])
    pairs = pairs.sort_values(["rank", *sides], ignore_index=True)

    names = [f"pair-{number:06d}" for number in range(len(pairs))]
    pairs["group"] = pd.Series(names, dtype=object)
    anchors = pairs[["anchor", "group"]].set_axis(["row", "group"], axis=1)
    anchors["slot"] = "anchor"
    pairs["slot"] = "negative"
    placed = pd.concat([anchors, pairs])
    placed = placed.sort_index(kind="stable")
    return grouped(table, placed)


def text_pools(table: pd.DataFrame, families: Ints, is_usable: NDArray[np.bool_] | bool = True) -> list[Ints]:
    """Rows with the same text in the same split, if they are of at least two families."""
    table = numbered(table)
    words = table["text"].fillna("").map(plain_text)
    is_usable = is_usable & table["identity"].notna() & (words != "")
    rows = table.assign(words=words, family=families)[is_usable]
    pools = []
    for _, pool in rows.groupby(["split", "words"], dropna=False, sort=False):
        if pool["family"].nunique() > 1:
            pools.append(pool.index.to_numpy())
    return pools


def query_rows(table: pd.DataFrame) -> Ints:
    """Rows of queries and of their targets, which have to be embedded."""
    is_asked = table["slot"].isin(["query", "positive"])
    return np.flatnonzero(is_asked)


def query_negatives(
    table: pd.DataFrame,
    vectors: Vectors,
    k: int = 5,
    *,
    skip: int = 30,
    depth: int = 100,
    seed: int = 0,
) -> pd.DataFrame:
    """Draw k negatives of each query from ranks skip + 1 to skip + depth of other targets in its data set and split.

    VisME takes "k = 5 hard negatives same as" B3 (4.2.1 and 5.1). B3's code ranks the targets of a data set for each
    query by a teacher, passes over the first 30 or 70, which may be right as well, and draws from the next 100, either
    for each query, as here, or for a cluster of queries together. The negatives join their queries' groups:

        mined = query_negatives(table, vectors)               # k = 5 of ranks 31 to 130
        merge([table, mined], shared=True)

    Equal targets, such as the classes of a data set, are ranked once; those of the query itself are left out. A query
    finds none if there are no more than `skip` others.

    Args:
        vectors: embeddings (N, D) of the rows, with their texts; rows of NaN are left out.
        seed: of the draw, which follows from it and the query's id.

    Returns:
        Rows of slot negative in the queries' groups; own columns are x_source (id of the target) and x_similarity.
    """
    table = numbered(table)
    targets = _target_numbers(table)
    items = table.assign(target=targets)
    positives = items[items["slot"] == "positive"]
    targets_of_groups = positives.groupby("group")["target"].agg(set)
    is_asked = items["slot"].isin(["query", "positive"])
    searched = items[is_asked & _usable(table, vectors)]

    placed = []
    for _, rows in searched.groupby(["dataset", "split"], dropna=False, sort=False):
        queries = rows[rows["slot"] == "query"]
        answers = rows[rows["slot"] == "positive"]
        different = answers.drop_duplicates("target")
        right_targets = [targets_of_groups.get(group, set()) for group in queries["group"]]
        most = max(map(len, right_targets), default=0)
        ranked, similarity = nearest_other(
            vectors,
            np.arange(len(vectors)),
            skip + depth + most,
            anchors=queries.index.to_numpy(),
            pool=different.index.to_numpy(),
        )
        for number, query in enumerate(queries.itertuples()):
            candidates = ranked[number]
            is_right = np.isin(targets[candidates], list(right_targets[number]))
            is_row = candidates >= 0
            ranks = np.flatnonzero(is_row & ~is_right)
            window = ranks[skip : skip + depth]
            rng = np.random.default_rng(hashed(seed, "negatives", query.id))
            drawn = np.sort(rng.permutation(len(window))[:k])
            for rank in window[drawn]:
                placed.append((candidates[rank], query.group, "negative", similarity[number, rank]))
    columns = ["row", "group", "slot", "similarity"]
    return grouped(table, pd.DataFrame(placed, columns=columns))


def _target_numbers(table: pd.DataFrame) -> Ints:
    """A number for each row (N,), equal for equal targets: image and text; of a text alone its words."""
    images = table["path"].fillna("")
    texts = table["text"].fillna("")
    words = texts.map(plain_text)
    keys = [images, texts.where(images != "", words)]
    return np.asarray(table.groupby(keys).ngroup())


def grouped(table: pd.DataFrame, placed: pd.DataFrame) -> pd.DataFrame:
    """Copies of rows of a manifest, with new ids, groups and slots.

    Column x_source holds the row's own x_source or else its old id; `parent` names a copy of the parent, if any.

    Args:
        placed: a line for each copy: row (its number), group, slot, and perhaps similarity (to the anchor).
    """
    sources = table["id"]
    if "x_source" in table:
        sources = table["x_source"].fillna(table["id"])
    source_of = dict(zip(table["id"], sources, strict=True))
    placed = placed.reindex(columns=["row", "group", "slot", "similarity"])
    placed = placed.reset_index(drop=True)
    with_sources = table.assign(x_source=sources)
    copies = take(with_sources, placed["row"])
    parents = [source_of.get(parent, parent) for parent in copies["parent"]]
    copies = with_columns(
        copies,
        id=placed["group"] + "/" + placed["slot"] + "/" + copies["id"],
        group=placed["group"],
        slot=placed["slot"],
        parent=parents,
        x_similarity=placed["similarity"].astype(float),
    )
    return with_parents_found(copies)


def with_parents_found(table: pd.DataFrame) -> pd.DataFrame:
    """The manifest with `parent` set to a copy of the parent (by x_source) if the parent itself is missing.

    A copy in the row's group is preferred to the first copy. If there is no copy, `parent` stays as it is.
    """
    backwards = table[::-1]  # the first copy of a source is the last one written
    copies = dict(zip(backwards["x_source"], backwards["id"], strict=True))
    keys = zip(backwards["x_source"], backwards["group"], strict=True)
    copies_in_group = dict(zip(keys, backwards["id"], strict=True))

    present = {None, *table["id"]}
    parents = []
    for parent, group in zip(table["parent"], table["group"], strict=True):
        if parent not in present:
            copy = copies.get(parent, parent)
            parent = copies_in_group.get((parent, group), copy)
        parents.append(parent)
    return with_columns(table, parent=parents)


def _usable(table: pd.DataFrame, vectors: Vectors) -> NDArray[np.bool_]:
    if vectors.ndim != 2 or len(vectors) != len(table):
        raise ValueError(f"embeddings of shape {vectors.shape} for a manifest of {len(table)} rows")
    is_finite = np.isfinite(vectors)
    return np.asarray(is_finite.all(axis=1))
