"""Sampling of identities and images for a training set, as in the papers.

`balanced` computes the number of identities from each dataset; `choose`, `two_views`, `distinct` and `unique` select
them. `idmetric.data.curate.recipes` combines these functions.

A selection depends on the seed and the names of identities and images alone, not on their order: the names with the
smallest hashes are selected. Removing an image from the manifest therefore does not change the selection of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from idmetric.data.curate.filters import column_values
from idmetric.data.old_manifest.lineage import followers, image_keys, without_orphans
from idmetric.data.old_manifest.table import Manifest


def balanced(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Equal quotas of all datasets, except that small datasets give all their identities.

    ID-Sim, A.1 "Balanced sampling procedure", steps 1-3: every dataset gets a quota of total / N; datasets with fewer
    identities give all of them, and the remainder is divided equally among the rest, repeatedly. One pass from the
    smallest dataset to the largest does the same; the remainder of a division goes to the largest.

    Args:
        sizes: dataset -> number of its identities.
        total: number of identities to select; if there are fewer, all are selected.
    """
    quotas = {}
    remaining = total
    smallest_first = sorted(sizes, key=lambda name: (sizes[name], name))
    for number, name in enumerate(smallest_first):
        quotas[name] = min(sizes[name], remaining // (len(sizes) - number))
        remaining -= quotas[name]
    return {name: quotas[name] for name in sizes}


def shares(count: int, ratio: Sequence[float]) -> list[int]:
    """Whole numbers in the proportions of a ratio that sum to `count`."""
    ends = np.floor(np.cumsum(ratio) / np.sum(ratio) * count + 0.5 + 1e-9).astype(int)
    counts: list[int] = np.diff(ends, prepend=0).tolist()
    return counts


# Selecting rows


def own_rows(manifest: Manifest) -> dict[str, list[int]]:
    """identity -> its rows, without followers."""
    rows: dict[str, list[int]] = defaultdict(list)
    is_follower = followers(manifest)
    for row, identity in enumerate(manifest.column("identity")):
        if identity is not None and not is_follower[row]:
            rows[identity].append(row)
    return rows


def identities_by(manifest: Manifest, column: str) -> dict[str, list[str]]:
    """Value of a column ("" if empty) -> the identities of that value in their first row, without followers."""
    identities: dict[str, list[str]] = defaultdict(list)
    values = manifest.column(column)
    for identity, rows in own_rows(manifest).items():
        identities[values[rows[0]] or ""].append(identity)
    return identities


def choose(manifest: Manifest, quotas: Mapping[str, int], seed: int = 0) -> Manifest:
    """All rows of a random selection of identities by the quota of each dataset, with their followers."""
    chosen: list[str] = []
    for name, identities in identities_by(manifest, "dataset").items():
        chosen += lowest(identities, quotas.get(name, 0), (seed, "identity"))
    return keep_identities(manifest, chosen)


def two_views(manifest: Manifest, seed: int = 0) -> Manifest:
    """Two images of each identity, drawn uniformly, as anchor and positive of a group with the identity's name.

    ID-Sim, A.1, step 4. Identities with one image are left out.
    """
    slot_of: dict[int, str] = {}
    for rows in _drawn(manifest, 2, seed).values():
        if len(rows) == 2:
            anchor, positive = rows
            slot_of |= {anchor: "anchor", positive: "positive"}
    pairs = manifest.take(sorted(slot_of))
    return pairs.replace(group=pairs.column("identity"), slot=[slot_of[row] for row in sorted(slot_of)])


def distinct(manifest: Manifest) -> Manifest:
    """Each image of an identity once, without rows that repeat its file or bytes (as in manifests of triplets).

    The first of repeated rows stays and becomes the parent of rows that were made from its copies.
    """
    first_names: dict[tuple[str | None, str], str] = {}
    first_of = {}  # row's name -> name of the first row with the same image and identity
    names = manifest.column("id")
    for name, identity, image in zip(names, manifest.column("identity"), image_keys(manifest), strict=True):
        first_of[name] = first_names.setdefault((identity, image), name)
    parents = [first_of.get(parent, parent) for parent in manifest.column("parent")]
    is_first = np.array([first_of[name] == name for name in names], dtype=bool)
    return manifest.replace(parent=parents).take(is_first)


def unique(manifest: Manifest) -> Manifest:
    """The first of all identities that share the text or the Objaverse id.

    NearID, section 3.3: "strict uniqueness constraints based on paired textual descriptions and ObjaverseID". The value
    of an identity comprises all its images, ignoring case and spaces; empty values do not match. The id is in column
    x_objaverse_id or among the parameters.
    """
    columns = {}
    for name in ("text", "x_objaverse_id", "parameters.objaverse_id"):
        columns[name] = column_values(manifest, name) or [None] * len(manifest)
    seen: set[tuple[str, tuple[str, ...]]] = set()
    chosen = []
    for identity, rows in own_rows(manifest).items():
        keys = set()
        for name, values in columns.items():
            texts = {" ".join(str(values[row]).casefold().split()) for row in rows if values[row] is not None}
            texts.discard("")
            if texts:
                keys.add((name, tuple(sorted(texts))))
        if keys.isdisjoint(seen):
            chosen.append(identity)
            seen |= keys
    return keep_identities(manifest, chosen)


def lowest(names: Sequence[str], count: int, seed: Sequence[Hashable]) -> list[str]:
    """A random selection of `count` names: the ones with the lowest hashes."""
    return sorted(names, key=lambda name: hashed(*seed, name))[:count]


def hashed(*parts: Hashable) -> tuple[int, str]:
    """A pseudorandom number in 0..2^64 - 1 that the parts determine, and the parts as text to break ties."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big"), text


def keep_identities(manifest: Manifest, chosen: Collection[str]) -> Manifest:
    """The rows of these identities with their followers."""
    names = set(chosen)
    is_chosen = [identity in names for identity in manifest.column("identity")]
    return _with_followers(manifest, np.array(is_chosen, dtype=bool))


def keep_images(manifest: Manifest, count: int, seed: int = 0) -> Manifest:
    """At most `count` images of each identity, drawn uniformly, with their followers."""
    is_chosen = np.zeros(len(manifest), dtype=bool)
    for rows in _drawn(manifest, count, seed).values():
        is_chosen[rows] = True
    return _with_followers(manifest, is_chosen)


def _drawn(manifest: Manifest, count: int, seed: int) -> dict[str, list[int]]:
    """identity -> at most `count` of its rows, without followers, drawn uniformly, in random order."""
    names = manifest.column("id")
    drawn = {}
    for identity, rows in own_rows(manifest).items():
        hashes = {row: hashed(seed, "image", identity, names[row]) for row in rows}
        drawn[identity] = sorted(rows, key=lambda row: hashes[row])[:count]
    return drawn


def _with_followers(manifest: Manifest, is_chosen: NDArray[np.bool_]) -> Manifest:
    return manifest.take(without_orphans(manifest, is_chosen | followers(manifest)))
