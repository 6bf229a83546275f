"""Splits that no identity crosses, and the check that none does."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import blocks
from idmetric.data.manifest.table import Manifest


def split(manifest: Manifest, parts: Mapping[str, float], seed: int = 0, by_dataset: bool = True) -> Manifest:
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
    rng = np.random.default_rng(seed)
    count = int(block.max(initial=-1)) + 1
    pools = [np.arange(count)]
    if _shares(parts) is not None and by_dataset:
        home = np.full(count, "", dtype=object)
        home[block[::-1]] = [d or "" for d in manifest.column("dataset")][::-1]  # of the first row
        pools = [np.flatnonzero(home == name) for name in dict.fromkeys(home)]
    out = _assigned(count, (rng.permutation(pool) for pool in pools), parts, "identities (joined ones count as one)")
    return manifest.replace(split=list(out[block]) if count else [])


def split_rows(manifest: Manifest, parts: Mapping[str, float], seed: int = 0) -> Manifest:
    """Set column `split` row by row, ignoring identities: VisME's fallback for datasets with too few identities."""
    order = np.random.default_rng(seed).permutation(len(manifest))
    return manifest.replace(split=list(_assigned(len(manifest), [order], parts, "rows")))


def _assigned(count: int, pools: Iterable[NDArray[np.int64]], parts: Mapping[str, float], what: str) -> NDArray[Any]:
    """The name of the part of each of `count` places, which the pools list in random order."""
    shares = _shares(parts)
    out = np.full(count, None, dtype=object)
    owed = np.zeros(len(parts) + 1)
    for order in pools:
        sizes = _numbers(parts, len(order)) if shares is None else _shared_out(shares, len(order), owed)
        for name, own in zip(parts, np.split(order, np.cumsum(sizes)), strict=False):
            out[own] = name
    given = set(out)
    empty = [name for name, share in parts.items() if share != 0 and name not in given]
    if empty and count:
        warnings.warn(f"split {', '.join(empty)} is empty: there are {count} {what} in all", stacklevel=3)
    return out


def _shares(parts: Mapping[str, float]) -> NDArray[np.float64] | None:
    """The fraction of each part and, last, of what has no split; None if the parts are numbers."""
    if not parts or "" in parts:
        raise ValueError("name at least one split, and give each its share")
    given = {name: share for name, share in parts.items() if share != -1}
    if len(parts) - len(given) > 1:
        raise ValueError("two splits of -1: only one can be the rest")
    if all(0 <= share <= 1 for share in given.values()) and (given == parts or any(s % 1 for s in given.values())):
        rest = 1 - sum(given.values())
        if rest < -1e-9:
            raise ValueError(f"shares of the splits sum to {1 - rest:g}, more than 1")
        found = np.array([max(0.0, rest) if share == -1 else share for share in parts.values()])
        return np.append(found, max(0.0, 1 - found.sum()))
    if wrong := [f"{name}={s:g}" for name, s in given.items() if not (s >= 0 and float(s).is_integer())]:
        raise ValueError(f"{wrong[0]}: give shares within 0..1, or whole numbers; -1 is the rest, of one part")
    return None


def _shared_out(shares: NDArray[np.float64], count: int, owed: NDArray[np.float64]) -> list[int]:
    """Size of each part of a pool of `count`, by largest remainders.

    Args:
        owed: deficit so far of each part and, last, of the identities without a split; updated, which gives every part
            its share over many small pools.
    """
    wanted = shares * (count / shares.sum()) + owed
    sizes = np.floor(wanted + 1e-9).clip(0).astype(int)
    while sizes.sum() != count:
        if sizes.sum() < count:
            sizes[np.argmax(np.round(wanted - sizes, 9))] += 1
        else:  # an earlier pool gave a part more than this one's whole share
            sizes[np.argmin(np.where(sizes > 0, np.round(wanted - sizes, 9), np.inf))] -= 1
    owed[:] = wanted - sizes
    return [int(n) for n in sizes[:-1]]


def _numbers(parts: Mapping[str, float], count: int) -> list[int]:
    sizes = [int(s) for s in parts.values()]
    rest = count - sum(s for s in sizes if s >= 0)
    if rest < 0:
        raise ValueError(f"the splits ask for {count - rest} identities; there are {count}")
    return [rest if s < 0 else s for s in sizes]


def leaks(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Identities in more than one split: name -> splits. A block of identities (`blocks`) counts as one.

    The name is that of the block's first identity, or the id of its row if the identity is unknown.
    """
    seen: dict[int, dict[str, None]] = {}
    names: dict[int, str] = {}
    rows = zip(blocks(manifest).tolist(), *(manifest.column(c) for c in ("identity", "id", "split")), strict=True)
    for block, name, row, part in rows:
        names.setdefault(block, name or row)
        if part is not None:
            seen.setdefault(block, {})[part] = None
    return {names[block]: tuple(parts) for block, parts in seen.items() if len(parts) > 1}
