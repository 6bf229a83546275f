"""Splits that no identity crosses, and the check that none does."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.old_manifest.lineage import blocks
from idmetric.data.old_manifest.table import Manifest

Parts = Mapping[str, float]
Shares = NDArray[np.float64]
Counts = NDArray[np.int64]


def split(manifest: Manifest, parts: Parts, seed: int = 0, by_dataset: bool = True) -> Manifest:
    """Set column `split`; an identity and all rows made from its images get one split.

    `blocks` of identities stay together (VisME, section 4.1: "no identity present in training appears in any evaluation
    set"; NearID, section 3.3: mutually exclusive splits). A split that stays empty causes a warning.

    Args:
        parts: name -> share of identities (fractions that sum to at most 1), or number of identities (whole numbers);
            -1 is the rest, of one part. Identities beyond the parts get an empty split. A block counts as one identity.
        seed: 0 or more.
        by_dataset: split each dataset in the same proportions; the next dataset makes up for rounding. Numbers always
            apply to all datasets together.

    Raises:
        ValueError: if parts ask for more identities than there are, or mix fractions and numbers.
    """
    block = blocks(manifest)
    _, first_rows = np.unique(block, return_index=True)
    pools = [np.arange(len(first_rows))]
    if by_dataset and _shares(parts) is not None:
        datasets = np.array(manifest.column("dataset"), dtype=object)
        datasets = datasets[first_rows]
        pools = [np.flatnonzero(datasets == name) for name in dict.fromkeys(datasets)]

    rng = np.random.default_rng(seed)
    pools = [rng.permutation(pool) for pool in pools]
    names = _assigned(pools, parts, "identities (joined ones count as one)")
    return manifest.replace(split=names[block])


def split_rows(manifest: Manifest, parts: Parts, seed: int = 0) -> Manifest:
    """Set column `split` row by row, ignoring identities: VisME's fallback for datasets with too few identities."""
    order = np.random.default_rng(seed).permutation(len(manifest))
    return manifest.replace(split=_assigned([order], parts, "rows"))


def _assigned(pools: Sequence[NDArray[np.int64]], parts: Parts, units: str) -> NDArray[Any]:
    """The part of each identity or row; the pools list their numbers in random order."""
    count = sum(map(len, pools))
    names = np.full(count, None, dtype=object)
    shares = _shares(parts)
    owed = np.zeros(len(parts) + 1)
    for pool in pools:
        sizes = _numbers(parts, len(pool)) if shares is None else _shared_out(shares, len(pool), owed)
        members = np.split(pool, np.cumsum(sizes))
        for name, chosen in zip(parts, members, strict=False):  # the last members get no split
            names[chosen] = name

    empty = [name for name, share in parts.items() if share != 0 and name not in names]
    if empty and count:
        message = f"split {', '.join(empty)} is empty: there are {count} {units} in all"
        warnings.warn(message, stacklevel=3)
    return names


def _shares(parts: Parts) -> Shares | None:
    """The fraction of each part and, last, of what has no split; None if the parts are numbers."""
    if not parts or "" in parts:
        raise ValueError("name at least one split, and give each its share")
    values = np.array([*parts.values()], dtype=float)
    stated = values[values != -1]
    if len(stated) < len(values) - 1:
        raise ValueError("two splits of -1: only one can be the rest")

    has_rest = len(stated) < len(values)
    has_fraction = (stated % 1 != 0).any()
    if ((stated >= 0) & (stated <= 1)).all() and (has_fraction or not has_rest):
        rest = 1 - stated.sum()
        if rest < -1e-9:
            raise ValueError(f"shares of the splits sum to {1 - rest:g}, more than 1")
        shares = np.where(values == -1, max(0, rest), values)
        return np.append(shares, max(0, 1 - shares.sum()))

    for name, value in parts.items():
        if value != -1 and not (value >= 0 and value % 1 == 0):
            raise ValueError(
                f"{name}={value:g}: give shares within 0..1, or whole numbers; -1 is the rest, of one part"
            )
    return None


def _shared_out(shares: Shares, count: int, owed: Shares) -> Counts:
    """Size of each part of a pool of `count`, by largest remainders.

    Args:
        owed: deficit so far of each part and, last, of the identities without a split; updated, which gives every part
            its share over many small pools.
    """
    exact = shares * (count / shares.sum()) + owed
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


def _numbers(parts: Parts, count: int) -> Counts:
    """Size of each part of a pool of `count`, by numbers and perhaps a rest (-1)."""
    sizes = np.array([*parts.values()], dtype=int)
    asked = sizes.clip(0).sum()
    if asked > count:
        raise ValueError(f"the splits ask for {asked} identities; there are {count}")
    return np.where(sizes < 0, count - asked, sizes)


def leaks(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Identities in more than one split: name -> splits. A block of identities (`blocks`) counts as one.

    The name is that of the block's first identity, or the id of its row if the identity is unknown.
    """
    identities, ids, parts = map(manifest.column, ("identity", "id", "split"))
    names: dict[int, str] = {}
    splits: dict[int, dict[str, None]] = defaultdict(dict)
    for row, block in enumerate(blocks(manifest).tolist()):
        name, part = identities[row] or ids[row], parts[row]
        names.setdefault(block, name)
        if part is not None:
            splits[block][part] = None

    leaking = {}
    for block, names_of_splits in splits.items():
        if len(names_of_splits) > 1:
            leaking[names[block]] = tuple(names_of_splits)
    return leaking
