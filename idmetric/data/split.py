"""Splits that no identity crosses, the check that none does, and the rows that belong together.

Tables are manifests (see `idmetric.data.manifest`). A split has one name in all of them: Train, training and
Training-Set are `train` (`split_name`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.files import need

if TYPE_CHECKING:
    import pandas as pd

Parts = Mapping[str, float]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Shares = NDArray[np.float64]

VIEW_ROLES = ("real", "context-edit")  # roles of images that show the identity they are named after


# Words

WORDS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "dev": ("dev", "development"),
    "test": ("test", "testing"),
    "eval": ("eval", "evaluation"),
    "query": ("query", "queries", "probe", "probes"),
    "gallery": ("gallery", "galleries", "database", "index"),
}
_SPLIT_OF = {word: split for split, words in WORDS.items() for word in words}
_SUFFIX = re.compile("[ _-]*(set|split|data|images|photos)$")  # training set, query_images


@lru_cache(4096)
def split_word(name: str) -> str | None:
    """The split that a word names in any case, a key of `WORDS`: "val" for Validation; None for other words."""
    word = name.strip().casefold()
    stem = _SUFFIX.sub("", word)
    return _SPLIT_OF.get(word) or _SPLIT_OF.get(stem)


def split_name(name: str) -> str:
    """The name of a split as manifests have it: that of `split_word`, or the text itself, such as dev2."""
    return split_word(name) or name


# Rows that belong together


def image_keys(table: pd.DataFrame) -> list[str]:
    """The key of each row's image (N,): its absolute path; rows of text alone have a key each.

    Files are not opened, so copies of a file and links to it have other keys.
    """
    keys = []
    for row, path in enumerate(table["path"]):
        keys.append(path or f"\0text of row {row}")
    return keys


def parent_rows(table: pd.DataFrame) -> Rows:
    """Row number (N,) of each row's parent; -1 if it has no parent or the parent is not in this table."""
    row_of = {name: row for row, name in enumerate(table["id"])}
    parents = [row_of.get(name, -1) for name in table["parent"]]
    return np.array(parents, dtype=np.int64)


def followers(table: pd.DataFrame) -> Flags:
    """True (N,) for rows made from an image of another identity (identity-edits, distractors), which follow it."""
    parent = parent_rows(table)
    identity = table["identity"].to_numpy()
    has_parent = parent >= 0
    is_another = identity != identity[parent]
    return np.asarray(has_parent & is_another, dtype=bool)


def without_orphans(table: pd.DataFrame, keep: Flags) -> Flags:
    """`keep` (N,) without the followers of rows that are not kept."""
    parent = parent_rows(table)
    follows = followers(table)
    kept_rows = keep.copy()
    while True:  # a parent may be a follower too
        orphaned = kept_rows & follows & ~kept_rows[parent]
        if not orphaned.any():
            return kept_rows
        kept_rows &= ~orphaned


def blocks(table: pd.DataFrame, groups: bool = True) -> Rows:
    """Number (N,) of each row's block of identities that belong together, in order of appearance.

    Rows belong together if they share an identity or, with `groups`, a group, if one was made from the other, if both
    were made from the same image (an edit shows the scene of its parent, even if the parent is not in this table), or
    if they hold the same image, as in tables that list a file under several names.

    Args:
        groups: False for lineages: a triplet holds unrelated identities. An identity-edit shares its parent's lineage:
            it is another identity, but so similar by construction that a search would find little else.
    """
    need("eval", "a check of splits", scipy="scipy")
    import pandas as pd
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    ids = pd.concat([table["id"], table["parent"]])
    names = [ids, table["identity"], table["path"]]
    if groups:
        names.append(table["group"])

    # a graph of rows and names: each row is linked to its names
    count = len(table)
    row_ends = []
    name_ends = []
    for values in names:
        codes, different = pd.factorize(values)  # missing names have the code -1
        is_given = codes >= 0
        row = np.arange(len(values)) % len(table)
        row_ends.append(row[is_given])
        name_ends.append(codes[is_given] + count)
        count += len(different)

    rows = np.concatenate(row_ends)
    columns = np.concatenate(name_ends)
    links = np.ones(len(rows), dtype=bool)
    ends = (rows, columns)
    graph = coo_matrix((links, ends), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    block, _ = pd.factorize(labels[: len(table)])
    return np.asarray(block, dtype=np.int64)


# Splits


def split(table: pd.DataFrame, parts: Parts, seed: int = 0, by_dataset: bool = True) -> pd.DataFrame:
    """Set column `split`; an identity and all rows made from its images get one split.

    `blocks` of identities stay together (VisME, section 4.1: "no identity present in training appears in any evaluation
    set"; NearID, section 3.3: mutually exclusive splits). A split that stays empty causes a warning.

    Args:
        parts: name -> share of identities (fractions that sum to at most 1), or number of identities (whole numbers);
            -1 is the rest, of one part. Identities beyond the parts get no split. A block counts as one identity.
        seed: 0 or more.
        by_dataset: split each dataset in the same proportions; the next dataset makes up for rounding. Numbers always
            apply to all datasets together.

    Raises:
        ValueError: if parts ask for more identities than there are, or mix fractions and numbers.
    """
    import pandas as pd

    block = blocks(table)
    _, first_rows = np.unique(block, return_index=True)
    pools = [np.arange(len(first_rows))]
    if by_dataset and _shares(parts) is not None:
        datasets = table["dataset"].to_numpy()[first_rows]
        pools = []
        for name in dict.fromkeys(datasets):
            pools.append(np.flatnonzero(datasets == name))

    rng = np.random.default_rng(seed)
    pools = [rng.permutation(pool) for pool in pools]
    names = _assigned(pools, parts, "identities (joined ones count as one)")
    column = pd.Series(names[block], index=table.index, dtype=object)
    return table.assign(split=column)


def split_rows(table: pd.DataFrame, parts: Parts, seed: int = 0) -> pd.DataFrame:
    """Set column `split` row by row, ignoring identities: VisME's fallback for datasets with too few identities."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table))
    names = _assigned([order], parts, "rows")
    column = pd.Series(names, index=table.index, dtype=object)
    return table.assign(split=column)


def _assigned(pools: Sequence[Rows], parts: Parts, units: str) -> NDArray[Any]:
    """The part of each identity or row; the pools list their numbers in random order."""
    count = sum(map(len, pools))
    names = np.full(count, None, dtype=object)
    shares = _shares(parts)
    owed = np.zeros(len(parts) + 1)
    for pool in pools:
        sizes = _numbers(parts, len(pool)) if shares is None else _shared_out(shares, len(pool), owed)
        ends = np.cumsum(sizes)
        members = np.split(pool, ends)
        for name, chosen in zip(parts, members, strict=False):  # the last members get no split
            names[chosen] = split_name(name)

    empty = []
    for name, share in parts.items():
        if share != 0 and split_name(name) not in names:
            empty.append(name)
    if empty and count:
        listed = ", ".join(empty)
        message = f"split {listed} is empty: there are {count} {units} in all"
        warnings.warn(message, stacklevel=3)
    return names


def _shares(parts: Parts) -> Shares | None:
    """The fraction of each part and, last, of what has no split; None if the parts are numbers."""
    if not parts or "" in parts:
        raise ValueError("name at least one split, and give each its share")
    values = np.array([*parts.values()], dtype=float)
    stated = values[values != -1]
    rests = len(values) - len(stated)
    if rests > 1:
        raise ValueError("two splits of -1: only one can be the rest")

    has_fraction = (stated % 1 != 0).any()
    is_share = (stated >= 0) & (stated <= 1)
    if is_share.all() and (has_fraction or not rests):
        rest = 1 - stated.sum()
        if rest < -1e-9:
            raise ValueError(f"shares of the splits sum to {1 - rest:g}, more than 1")
        shares = np.where(values == -1, max(0, rest), values)
        without_split = max(0, 1 - shares.sum())
        return np.append(shares, without_split)

    for name, value in parts.items():
        is_number = value >= 0 and value % 1 == 0
        if value != -1 and not is_number:
            raise ValueError(
                f"{name}={value:g}: give shares within 0..1, or whole numbers; -1 is the rest, of one part"
            )
    return None


def _shared_out(shares: Shares, count: int, owed: Shares) -> Rows:
    """Size of each part of a pool of `count`, by largest remainders.

    Args:
        owed: deficit so far of each part and, last, of the identities without a split; updated, which gives every part
            its share over many small pools.
    """
    scale = count / shares.sum()
    exact = shares * scale + owed
    sizes = np.floor(exact + 1e-9)
    sizes = sizes.clip(0).astype(int)
    while sizes.sum() < count:
        remainders = np.round(exact - sizes, 9)
        sizes[np.argmax(remainders)] += 1
    while sizes.sum() > count:  # an earlier pool gave a part more than this one's whole share
        remainders = np.round(exact - sizes, 9)
        remainders[sizes == 0] = np.inf
        sizes[np.argmin(remainders)] -= 1
    owed[:] = exact - sizes
    return np.asarray(sizes[:-1])


def _numbers(parts: Parts, count: int) -> Rows:
    """Size of each part of a pool of `count`, by numbers and perhaps a rest (-1)."""
    sizes = np.array([*parts.values()], dtype=int)
    asked = sizes.clip(0).sum()
    if asked > count:
        raise ValueError(f"the splits ask for {asked} identities; there are {count}")
    return np.where(sizes < 0, count - asked, sizes)


def leaks(table: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Identities in more than one split: name -> splits. A block of identities (`blocks`) counts as one.

    The name is that of the block's first identity, or the id of its first row if that row's identity is unknown.
    """
    block = blocks(table)
    names = table["identity"].fillna(table["id"])
    first_names = names.groupby(block).first()
    splits = table["split"].groupby(block).unique()
    leaking = {}
    for name, values in zip(first_names, splits, strict=True):
        names_of_splits = tuple(value for value in values if value is not None)
        if len(names_of_splits) > 1:
            leaking[name] = names_of_splits
    return leaking
