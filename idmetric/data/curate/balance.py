"""Sampling of identities and images for a training set, as in the papers.

`balanced` computes the number of identities from each dataset; `choose`, `two_views`, `distinct` and `unique` select
them. `idmetric.data.curate.recipes` combines these functions.

A selection depends on the seed and the names of identities and images alone, not on their order: the names with the
smallest hashes are selected. Removing an image from the manifest therefore does not change the selection of others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idmetric.data.manifest import numbered, take, with_columns
from idmetric.data.split import followers, image_keys, without_orphans


def balanced(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Equal quotas of all datasets, except that small datasets give all their identities.

    ID-Sim, A.1 "Balanced sampling procedure", steps 1-3: every dataset gets a quota of total / N; datasets with fewer
    identities give all of them, and the remainder is divided equally among the rest, repeatedly. One pass from the
    smallest dataset to the largest does the same; the remainder of a division goes to the largest.

    Args:
        sizes: dataset -> number of its identities.
        total: number of identities to select; if there are fewer, all are selected.
    """
    quotas = dict.fromkeys(sizes, 0)
    remaining = total
    smallest_first = sorted(sizes, key=lambda name: (sizes[name], name))
    for number, name in enumerate(smallest_first):
        equal_share = remaining // (len(sizes) - number)
        quotas[name] = min(sizes[name], equal_share)
        remaining -= quotas[name]
    return quotas


def shares(count: int, ratio: Sequence[float]) -> list[int]:
    """Whole numbers in the proportions of a ratio that sum to `count`."""
    ends = np.cumsum(ratio) / np.sum(ratio) * count
    rounded_ends = np.floor(ends + 0.5 + 1e-9)
    whole_ends = rounded_ends.astype(int)
    counts: list[int] = np.diff(whole_ends, prepend=0).tolist()
    return counts


# Selecting rows


def identities(table: pd.DataFrame) -> pd.DataFrame:
    """The first row of each identity, without followers; an empty dataset, domain or category is ""."""
    is_view = _is_view(table)
    views = take(table, is_view)
    firsts = views.drop_duplicates("identity", ignore_index=True)
    kinds = firsts[["dataset", "domain", "category"]].fillna("")
    return firsts.assign(**kinds)


def _is_view(table: pd.DataFrame) -> pd.Series:
    """True for the rows that show an identity and are not followers."""
    has_identity = table["identity"].notna()
    return has_identity & ~followers(table)


def drawn(firsts: pd.DataFrame, column: str, quotas: Mapping[str, int], seed: int) -> list[str]:
    """A random selection of identities for each value of a column, by its quota.

    Args:
        firsts: the result of `identities`.
    """
    chosen: list[str] = []
    for name, rows in firsts.groupby(column):
        quota = quotas.get(name, 0)
        chosen += lowest(rows["identity"], quota, (seed, "identity"))
    return chosen


def choose(table: pd.DataFrame, quotas: Mapping[str, int], seed: int = 0) -> pd.DataFrame:
    """All rows of a random selection of identities by the quota of each dataset, with their followers."""
    firsts = identities(table)
    chosen = drawn(firsts, "dataset", quotas, seed)
    return keep_identities(table, chosen)


def two_views(table: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Two images of each identity, drawn uniformly, as anchor and positive of a group with the identity's name.

    ID-Sim, A.1, step 4. Identities with one image are left out.
    """
    table = numbered(table)
    ranks = _ranks(table, seed)
    sizes = ranks.groupby(table["identity"]).transform("size")
    is_chosen = (sizes >= 2) & (ranks < 2)
    chosen = ranks[is_chosen].sort_index()
    pairs = take(table, chosen.index)
    slots = chosen.map({0: "anchor", 1: "positive"})
    return with_columns(pairs, group=pairs["identity"], slot=slots)


def distinct(table: pd.DataFrame) -> pd.DataFrame:
    """Each image of an identity once, without rows that repeat its file (as in manifests of triplets).

    The first of repeated rows stays and becomes the parent of rows that were made from its copies.
    """
    names = table["id"]
    keys = [
        table["identity"],
        image_keys(table),
    ]
    copies = names.groupby(keys, dropna=False)
    firsts = copies.transform("first")
    first_of = dict(zip(names, firsts, strict=True))
    parents = []
    for parent in table["parent"]:
        parents.append(first_of.get(parent, parent))
    return take(with_columns(table, parent=parents), names == firsts)


def unique(table: pd.DataFrame) -> pd.DataFrame:
    """The first of all identities that share the text or the Objaverse id.

    NearID, section 3.3: "strict uniqueness constraints based on paired textual descriptions and ObjaverseID". The value
    of an identity comprises all its images, ignoring case and spaces; empty values do not match. The id is parameter
    objaverse_id, or a column of this name.
    """
    table = numbered(table)
    objects = table.get("objaverse_id")
    if objects is None:
        parameters = table["parameters"].fillna("{}").map(json.loads)
        objects = parameters.map(lambda values: values.get("objaverse_id"))
    identity = table["identity"].mask(followers(table))
    keys_of: dict[str, set[Hashable]] = {}
    for name in identity.dropna():
        keys_of[name] = set()
    columns = {
        "text": table["text"],
        "object": objects,
    }
    for kind, values in columns.items():
        words = values.fillna("").map(plain_text)
        words = words[words != ""]
        for name, words_of_identity in words.groupby(identity):
            key = (kind, frozenset(words_of_identity))
            keys_of[name].add(key)

    taken: set[Hashable] = set()
    chosen = []
    for name, keys in keys_of.items():
        if keys.isdisjoint(taken):
            chosen.append(name)
            taken |= keys
    return keep_identities(table, chosen)


def plain_text(text: str) -> str:
    """A text without regard to case and spaces."""
    words = str(text).casefold().split()
    return " ".join(words)


def lowest(names: Iterable[str], count: int, seed: Sequence[Hashable]) -> list[str]:
    """A random selection of `count` names: the ones with the lowest hashes."""
    ordered = sorted(names, key=lambda name: hashed(*seed, name))
    return ordered[:count]


def hashed(*parts: Hashable) -> int:
    """A pseudorandom number in 0..2^64 - 1 that the parts determine."""
    text = "\0".join(map(str, parts))
    digest = blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def keep_identities(table: pd.DataFrame, chosen: Collection[str]) -> pd.DataFrame:
    """The rows of these identities with their followers."""
    is_chosen = table["identity"].isin(chosen).to_numpy()
    return _with_followers(table, is_chosen)


def keep_images(table: pd.DataFrame, count: int, seed: int = 0) -> pd.DataFrame:
    """At most `count` images of each identity, drawn uniformly, with their followers."""
    table = numbered(table)
    ranks = _ranks(table, seed)
    chosen = ranks.index[ranks < count]
    is_chosen = table.index.isin(chosen)
    return _with_followers(table, is_chosen)


def _ranks(table: pd.DataFrame, seed: int) -> pd.Series:
    """Row -> its place, from 0, in a random order of its identity's rows; without followers."""
    views = table[_is_view(table)]
    hashes = []
    for identity, name in zip(views["identity"], views["id"], strict=True):
        hashes.append(hashed(seed, "image", identity, name))
    numbers = np.array(hashes, dtype=np.uint64)
    order = np.argsort(numbers)
    shuffled = views.iloc[order]
    return shuffled.groupby("identity").cumcount()


def _with_followers(table: pd.DataFrame, is_chosen: NDArray[np.bool_]) -> pd.DataFrame:
    """The chosen rows with the followers of them."""
    may_stay = is_chosen | followers(table)
    is_kept = without_orphans(table, may_stay)
    return take(table, is_kept)
