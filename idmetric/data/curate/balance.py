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
from idmetric.data.manifest.lineage import followers, image_keys, without_orphans
from idmetric.data.manifest.table import Manifest


def balanced(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Equal quotas of all datasets, except that small datasets give all their identities.

    ID-Sim, A.1 "Balanced sampling procedure", steps 1-3: every dataset gets a quota of total / N; datasets with fewer
    identities give all of them, and the remainder is divided equally among the rest, repeatedly. One pass from the
    smallest dataset to the largest does the same; the remainder of a division goes to the largest.

    Args:
        sizes: dataset -> number of its identities.
        total: number of identities to select; if there are fewer, all are selected.
    """
    left, quotas = total, {}
    order = sorted(sizes, key=lambda name: (sizes[name], name))
    for place, name in enumerate(order):
        quotas[name] = min(sizes[name], left // (len(order) - place))
        left -= quotas[name]
    return {name: quotas[name] for name in sizes}


def shares(count: int, ratio: Sequence[float]) -> list[int]:
    """Whole numbers in the proportions of a ratio that sum to `count`."""
    ends = np.floor(np.cumsum(ratio) / np.sum(ratio) * count + 0.5 + 1e-9).astype(int)
    return [int(n) for n in np.diff(np.r_[0, ends])]


# Selecting rows


def own_rows(manifest: Manifest) -> dict[str, list[int]]:
    """identity -> its rows, without followers."""
    found: dict[str, list[int]] = defaultdict(list)
    for row, (identity, follows) in enumerate(zip(manifest.column("identity"), followers(manifest), strict=True)):
        if identity is not None and not follows:
            found[identity].append(row)
    return found


def identities_by(manifest: Manifest, column: str) -> dict[str, list[str]]:
    """Value of a column ("" if empty) -> the identities of that value in their first row, without followers."""
    found: dict[str, list[str]] = defaultdict(list)
    values = manifest.column(column)
    for identity, rows in own_rows(manifest).items():
        found[values[rows[0]] or ""].append(identity)
    return found


def choose(manifest: Manifest, quotas: Mapping[str, int], seed: int = 0) -> Manifest:
    """All rows of a random selection of identities by the quota of each dataset, with their followers."""
    groups = identities_by(manifest, "dataset")
    drawn = (lowest(pool, quotas.get(name, 0), (seed, "identity")) for name, pool in groups.items())
    return keep_identities(manifest, {identity for some in drawn for identity in some})


def two_views(manifest: Manifest, seed: int = 0) -> Manifest:
    """Two images of each identity, drawn uniformly, as anchor and positive of a group with the identity's name.

    ID-Sim, A.1, step 4. Identities with one image are left out.
    """
    slot = {
        row: place
        for rows in _drawn(manifest, 2, seed).values()
        if len(rows) == 2
        for row, place in zip(rows, ("anchor", "positive"), strict=True)
    }
    pairs = manifest.take(sorted(slot))
    return pairs.replace(group=pairs.column("identity"), slot=[slot[row] for row in sorted(slot)])


def distinct(manifest: Manifest) -> Manifest:
    """Each image of an identity once, without rows that repeat its file or bytes (as in manifests of triplets).

    The first of repeated rows stays and becomes the parent of rows that were made from its copies.
    """
    first: dict[tuple[str | None, str], str] = {}
    names, keys = manifest.column("id"), zip(manifest.column("identity"), image_keys(manifest), strict=True)
    same = {name: first.setdefault(key, name) for name, key in zip(names, keys, strict=True)}
    parents = [same.get(p, p) for p in manifest.column("parent")]
    return manifest.replace(parent=parents).take(np.array([same[name] == name for name in names], dtype=bool))


def unique(manifest: Manifest) -> Manifest:
    """The first of all identities that share the text or the Objaverse id.

    NearID, section 3.3: "strict uniqueness constraints based on paired textual descriptions and ObjaverseID". The value
    of an identity comprises all its images, ignoring case and spaces; empty values do not match. The id is in column
    x_objaverse_id or among the parameters.
    """
    columns = {c: column_values(manifest, c) for c in ("text", "x_objaverse_id", "parameters.objaverse_id")}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    kept = set()
    for identity, rows in own_rows(manifest).items():
        keys = set()
        for column, values in columns.items():
            found = [values[k] for k in rows if values[k] is not None] if values else []
            if texts := {" ".join(str(value).casefold().split()) for value in found} - {""}:
                keys.add((column, tuple(sorted(texts))))
        if not keys & seen:
            kept.add(identity)
            seen |= keys

    return keep_identities(manifest, kept)


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
    return _with_followers(manifest, np.array([i in names for i in manifest.column("identity")], dtype=bool))


def keep_images(manifest: Manifest, count: int, seed: int = 0) -> Manifest:
    """At most `count` images of each identity, drawn uniformly, with their followers."""
    chosen = [row for rows in _drawn(manifest, count, seed).values() for row in rows]
    return _with_followers(manifest, np.isin(np.arange(len(manifest)), chosen))


def _drawn(manifest: Manifest, count: int, seed: int) -> dict[str, list[int]]:
    """identity -> at most `count` of its rows, without followers, drawn uniformly, in random order."""
    names, own = manifest.column("id"), own_rows(manifest)
    return {i: sorted(own[i], key=lambda row: hashed(seed, "image", i, names[row]))[:count] for i in own}


def _with_followers(manifest: Manifest, own: NDArray[np.bool_]) -> Manifest:
    return manifest.take(without_orphans(manifest, own | followers(manifest)))
