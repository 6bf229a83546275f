"""Rows that show the same image, and identities that belong together as one was made from the other (`parent`)."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from idmetric.data.old_manifest.table import Manifest

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]

VIEW_ROLES = ("real", "context-edit")  # roles of images that show the identity they are named after


def matched_sets(
    images: Iterable[tuple[Hashable, int, Hashable, int]],
) -> dict[tuple[Any, Any, int], dict[int, int]]:
    """Group the images made from an identity's views into samples of one image per view (NearID, section 3.4).

    Args:
        images: for each image, the identity, the number of the view that it was made from, its source (such as the
            engine) and its row.

    Returns:
        (identity, source, n) -> view -> row: the n-th image by that source of each view, n from 0.
    """
    samples: dict[tuple[Any, Any, int], dict[int, int]] = defaultdict(dict)
    counts: Counter[tuple[Any, int, Any]] = Counter()
    for identity, view, source, row in images:
        number = counts[identity, view, source]
        counts[identity, view, source] += 1
        samples[identity, source, number][view] = row
    return samples


def parent_rows(manifest: Manifest) -> Rows:
    """Row number (N,) of each row's parent; -1 if it has no parent or the parent is not in this manifest."""
    row_of = {name: row for row, name in enumerate(manifest.column("id"))}
    rows = [row_of.get(parent, -1) for parent in manifest.column("parent")]
    return np.array(rows, dtype=np.int64)


def with_parents_found(manifest: Manifest) -> Manifest:
    """The manifest with `parent` set to a copy of the parent (by x_source) if the parent itself is missing.

    A copy in the row's group is preferred to the first copy. If there is no copy, `parent` stays as it is.
    """
    ids, groups = manifest.column("id"), manifest.column("group")
    copies: dict[str, str] = {}
    copies_in_group: dict[tuple[str, str | None], str] = {}
    sources = manifest.column("x_source")
    for name, source, group in zip(ids, sources, groups, strict=True):
        copies.setdefault(source, name)
        copies_in_group.setdefault((source, group), name)

    present = {None, *ids}
    parents = []
    for parent, group in zip(manifest.column("parent"), groups, strict=True):
        if parent not in present:
            copy = copies_in_group.get((parent, group)) or copies.get(parent)
            parent = copy or parent
        parents.append(parent)
    return manifest.replace(parent=parents)


def has_image(manifest: Manifest, column: str = "path") -> Flags:
    """Whether each row (N,) has an image, or a mask or part_mask (`column`); rows without an image are texts alone."""
    bytes_column = "image_bytes" if column == "path" else f"{column}_bytes"
    has_path, has_bytes = manifest.table[column].is_valid(), manifest.table[bytes_column].is_valid()
    shows: Flags = np.asarray(has_path, dtype=bool) | np.asarray(has_bytes, dtype=bool)
    return shows


def image_keys(manifest: Manifest) -> list[str]:
    """The key of each row's image (N,): its absolute path, or a hash of its bytes; rows of text alone have a key each.

    "./a.jpg", "b/../a.jpg" and the absolute path are one file. Files are not opened, so copies of a file and links to
    it have other keys.
    """
    root = os.path.abspath(manifest.root)

    @cache
    def absolute(path: str) -> str:
        path = os.path.normpath(os.path.join(root, path))
        return os.path.normcase(path)

    image_bytes = manifest.table["image_bytes"]
    keys = []
    for row, path in enumerate(manifest.column("path")):
        if path is not None:
            keys.append(absolute(path))
        elif image_bytes[row].is_valid:
            digest = blake2b(image_bytes[row].as_buffer(), digest_size=16).hexdigest()
            keys.append(f"\0{digest}")
        else:
            keys.append(f"\0text of row {row}")
    return keys


def blocks(manifest: Manifest, groups: bool = True) -> Rows:
    """Number (N,) of each row's block of identities that belong together, in order of appearance.

    Rows belong together if they share an identity or, with `groups`, a group, if one was made from the other, if both
    were made from the same image (an edit shows the scene of its parent, even if the parent is not in this manifest),
    or if they hold the same image (`image_keys`), as in tables that list a file under several names.
    """
    count = len(manifest)
    names = [*manifest.column("id"), *manifest.column("parent")]
    columns = [names, manifest.column("identity"), image_keys(manifest)]
    if groups:
        columns.append(manifest.column("group"))

    # disjoint sets: each row points to an earlier row of its block, or to itself, and the first row of all names it
    earlier = list(range(count))

    def first_of(row: int) -> int:
        while earlier[row] != row:
            earlier[row] = earlier[earlier[row]]
            row = earlier[row]
        return row

    for values in columns:
        row_of: dict[str, int] = {}
        for position, value in enumerate(values):
            if value is not None:
                row = position % count
                partner = row_of.setdefault(value, row)
                a, b = first_of(row), first_of(partner)
                earlier[max(a, b)] = min(a, b)
    _, block = np.unique([first_of(row) for row in range(count)], return_inverse=True)
    return block.astype(np.int64)


def lineages(manifest: Manifest) -> Rows:
    """Number (N,) of each row's lineage: identities are joined if one was made from an image of the other.

    Unlike `blocks`, groups don't join identities, because a triplet holds unrelated ones. An identity-edit shares its
    parent's lineage: it is another identity, but so similar by construction that a search would find little else.
    """
    return blocks(manifest, groups=False)


def followers(manifest: Manifest) -> Flags:
    """True (N,) for rows made from an image of another identity (identity-edits, distractors), which follow it."""
    parent = parent_rows(manifest)
    identity = np.array(manifest.column("identity"), dtype=object)
    return np.asarray((parent >= 0) & (identity != identity[parent]), dtype=bool)


def without_orphans(manifest: Manifest, keep: Flags) -> Flags:
    """`keep` (N,) without the followers of rows that are not kept."""
    parent, follows = parent_rows(manifest), followers(manifest)
    kept_rows = keep.copy()
    while (orphaned := kept_rows & follows & ~kept_rows[parent]).any():  # a parent may be a follower too
        kept_rows &= ~orphaned
    return kept_rows
