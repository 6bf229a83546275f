"""Rows that show the same image, and identities that belong together as one was made from the other (`parent`)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

Owner = TypeVar("Owner", bound=Hashable)
Source = TypeVar("Source", bound=Hashable)
VIEW_ROLES = ("real", "context-edit")  # roles of images that show the identity they are named after


def matched_sets(
    made: Iterable[tuple[Owner, int, Source, int]],
) -> dict[tuple[Owner, Source, int], dict[int, int]]:
    """Group the images made from an identity's views into samples of one image per view (NearID, section 3.4).

    Args:
        made: for each image, the identity, the number of the view that it was made from, its source (such as the
            engine) and its row.

    Returns:
        (identity, source, n) -> view -> row: the n-th image by that source of each view, n from 0.
    """
    found: dict[tuple[Owner, Source, int], dict[int, int]] = {}
    nth: Counter[tuple[Owner, int, Source]] = Counter()
    for owner, view, source, row in made:
        found.setdefault((owner, source, nth[owner, view, source]), {})[view] = row
        nth[owner, view, source] += 1
    return found


def parent_rows(manifest: Manifest) -> NDArray[np.int64]:
    """Row number (N,) of each row's parent; -1 if it has no parent or the parent is not in this manifest."""
    row = {name: k for k, name in enumerate(manifest.column("id"))}
    return np.array([row.get(p, -1) for p in manifest.column("parent")], dtype=np.int64)


def with_parents_found(manifest: Manifest) -> Manifest:
    """The manifest with `parent` set to a copy of the parent (by x_source) if the parent itself is missing.

    A copy in the row's group is preferred to the first copy. If there is no copy, `parent` stays as it is.
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


def has_image(manifest: Manifest, column: str = "path") -> NDArray[np.bool_]:
    """Whether each row (N,) has an image, or a mask or part_mask (`column`); rows without an image are texts alone."""
    from idmetric.data.manifest.table import PATHS

    path, held = (np.asarray(manifest.table[name].is_valid()) for name in (column, PATHS[column]))
    return np.asarray(path | held, dtype=bool)


def image_keys(manifest: Manifest) -> list[str]:
    """The key of each row's image (N,): its absolute path, or a hash of its bytes; rows of text alone have a key each.

    "./a.jpg", "b/../a.jpg" and the absolute path are one file. Files are not opened, so copies of a file and links to
    it have other keys.
    """
    root, held = os.path.abspath(manifest.root), manifest.table["image_bytes"]
    whole = cache(lambda path: os.path.normcase(os.path.normpath(os.path.join(root, path))))
    keys = []
    for row, path in enumerate(manifest.column("path")):
        data = None if path is not None else held[row].as_buffer()
        if path is not None:
            keys.append(whole(path))
        else:
            keys.append(f"\0text of row {row}" if data is None else f"\0{blake2b(data, digest_size=16).hexdigest()}")
    return keys


def blocks(manifest: Manifest, groups: bool = True) -> NDArray[np.int64]:
    """Number (N,) of each row's block of identities that belong together, in order of appearance.

    Rows belong together if they share an identity or, with `groups`, a group, if one was made from the other, if both
    were made from the same image (an edit shows the scene of its parent, even if the parent is not in this manifest),
    or if they hold the same image (`image_keys`), as in tables that list a file under several names.
    """
    count = len(manifest)
    root = list(range(count))  # the first row known to belong to a row's block, or one on the way to it

    def find(row: int) -> int:
        while root[row] != row:
            root[row] = root[root[row]]
            row = root[row]
        return row

    names = [*manifest.column("id"), *manifest.column("parent")]
    shared = [names, manifest.column("identity"), image_keys(manifest), *([manifest.column("group")] if groups else [])]
    for values in shared:
        first: dict[str, int] = {}
        for place, value in enumerate(values):
            if value is not None:
                a, b = find(place % count), find(first.setdefault(value, place % count))
                root[max(a, b)] = min(a, b)
    return np.unique([find(row) for row in range(count)], return_inverse=True)[1].astype(np.int64)


def lineages(manifest: Manifest) -> NDArray[np.int64]:
    """Number (N,) of each row's lineage: identities are joined if one was made from an image of the other.

    Unlike `blocks`, groups don't join identities, because a triplet holds unrelated ones. An identity-edit shares its
    parent's lineage: it is another identity, but so similar by construction that a search would find little else.
    """
    return blocks(manifest, groups=False)


def followers(manifest: Manifest) -> NDArray[np.bool_]:
    """True (N,) for rows made from an image of another identity (identity-edits, distractors), which follow it."""
    parent = parent_rows(manifest)
    identity = np.array(manifest.column("identity"), dtype=object)
    out = np.zeros(len(manifest), dtype=bool)
    has = parent >= 0
    out[has] = identity[has] != identity[parent[has]]
    return out


def without_orphans(manifest: Manifest, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`keep` (N,) without the followers of rows that are not kept."""
    parent, follows = parent_rows(manifest), followers(manifest)
    kept: NDArray[np.bool_] = keep.copy()
    for _ in range(len(manifest)):  # a parent may be a follower too
        orphaned = kept & follows & ~kept[parent]
        if not orphaned.any():
            break
        kept[orphaned] = False
    return kept
