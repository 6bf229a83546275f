"""Who was made from whom: what the `parent` column says of rows and identities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.same_image import image_keys
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


def blocks(manifest: Manifest) -> NDArray[np.int64]:
    """Number (N,) of each row's block of identities that belong together, in order of appearance.

    Rows belong together if they have one identity or one group, if one was made from the other, if both were made from
    the same image (an edit shows the scene of its parent, be the parent in this manifest or not), and if they hold the
    same image (`image_keys`), as where tables list a file under several names.
    """
    # an image without an identity is a block of its own
    identity = [name or f"\0{row}" for row, name in enumerate(manifest.column("identity"))]
    number = {name: k for k, name in enumerate(dict.fromkeys(identity))}
    root = list(range(len(number)))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = root[root[k]]
            k = root[k]
        return k

    def join(names: list[str], values: list[str | None]) -> None:
        """Join the rows that share a value."""
        first: dict[str, str] = {}
        for name, value in zip(names, values, strict=True):
            if value is not None:
                x, y = find(number[name]), find(number[first.setdefault(value, name)])
                root[max(x, y)] = min(x, y)

    join([*identity, *identity], [*manifest.column("id"), *manifest.column("parent")])
    join(identity, manifest.column("group"))
    join(identity, list(image_keys(manifest)))
    found = [find(number[name]) for name in identity]
    order = {k: n for n, k in enumerate(dict.fromkeys(found))}
    return np.array([order[k] for k in found], dtype=np.int64)


def lineages(manifest: Manifest) -> NDArray[np.int64]:
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
