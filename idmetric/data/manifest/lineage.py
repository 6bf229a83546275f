"""Who was made from whom: what the `parent` column says of rows and identities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.split import blocks
from idmetric.data.manifest.table import Manifest


def parent_rows(manifest: Manifest) -> NDArray[np.int64]:
    """Row number (N,) of each row's parent; -1 where it has none, or none in this manifest."""
    row = {name: k for k, name in enumerate(manifest.column("id"))}
    return np.array([row.get(p, -1) for p in manifest.column("parent")], dtype=np.int64)


def with_parents_found(manifest: Manifest) -> Manifest:
    """With `parent` of rows whose parent is not there but as copies (x_source) set to one: of its group, or the first.

    A copy has an id of its own, and stands for the row that it is of. Without a copy, `parent` stays as it is.
    """
    names = manifest.column("id")
    there = set(names)
    first: dict[str, str] = {}
    inside: dict[tuple[str, str | None], str] = {}
    groups = manifest.column("group")
    for name, source, group in zip(names, manifest.column("x_source"), groups, strict=True):
        first.setdefault(source, name)
        inside.setdefault((source, group), name)
    parents = [
        p if p is None or p in there else inside.get((p, g), first.get(p, p))
        for p, g in zip(manifest.column("parent"), groups, strict=True)
    ]
    return manifest.replace(parent=parents)


def kin(manifest: Manifest) -> NDArray[np.int64]:
    """Number (N,) of each row's family: identities joined where one was made from an image of the other.

    As `split.blocks`, but whatever the groups: a triplet holds strangers too. An identity-edit is kin of
    its parent: another identity, and yet so alike by construction that a search would find little else.
    """
    return blocks(manifest.replace(group=None, slot=None))


def followers(manifest: Manifest) -> NDArray[np.bool_]:
    """True (N,) for rows made from an image of another identity: identity-edits, distractors. They go where it goes."""
    parent = parent_rows(manifest)
    identity = np.array(manifest.column("identity"), dtype=object)
    out = np.zeros(len(manifest), dtype=bool)
    has = parent >= 0
    out[has] = identity[has] != identity[parent[has]]
    return out


def without_orphans(manifest: Manifest, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The rows (N,) of `keep`, less the followers whose parent is not kept."""
    parent, follows = parent_rows(manifest), followers(manifest)
    kept: NDArray[np.bool_] = keep.copy()
    for _ in range(len(manifest)):  # a parent may follow as well
        orphaned = kept & follows & ~kept[parent]
        if not orphaned.any():
            break
        kept[orphaned] = False
    return kept
