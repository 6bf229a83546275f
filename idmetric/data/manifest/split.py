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
        parts: name -> share of identities (fractions that sum to at most 1), or number of identities (whole numbers;
            one part may be -1, the rest). Identities beyond the parts get an empty split. A block counts as one
            identity.
        seed: 0 or more.
        by_dataset: split each dataset in the same proportions; the next dataset makes up for rounding. Numbers always
            apply to all datasets together.

    Raises:
        ValueError: if parts ask for more identities than there are, or mix fractions and numbers.
    """
    fractions = _are_fractions(parts)
    block = blocks(manifest)
    rng = np.random.default_rng(seed)
    count = int(block.max(initial=-1)) + 1
    pools = [np.arange(count)]
    if fractions and by_dataset:
        home = np.full(count, "", dtype=object)
        home[block[::-1]] = [d or "" for d in manifest.column("dataset")][::-1]  # of the first row
        pools = [np.flatnonzero(home == name) for name in dict.fromkeys(home)]

    out = _assigned(
        count, (rng.permutation(pool) for pool in pools), parts, fractions, "identities (joined ones count as one)"
    )
    return manifest.replace(split=list(out[block]) if count else [])


def split_rows(manifest: Manifest, parts: Mapping[str, float], seed: int = 0) -> Manifest:
    """Set column `split` row by row, ignoring identities: VisME's fallback for datasets with too few identities."""
    fractions = _are_fractions(parts)
    order = np.random.default_rng(seed).permutation(len(manifest))
    return manifest.replace(split=list(_assigned(len(manifest), [order], parts, fractions, "rows")))


def _assigned(
    count: int, pools: Iterable[NDArray[np.int64]], parts: Mapping[str, float], fractions: bool, what: str
) -> NDArray[Any]:
    """The name of the part of each of `count` places, which the pools list in random order."""
    out = np.full(count, None, dtype=object)
    owed = np.zeros(len(parts) + 1)
    for order in pools:
        start = 0
        sizes = _shared_out(parts, len(order), owed) if fractions else _numbers(parts, len(order))
        for name, size in zip(parts, sizes, strict=True):
            out[order[start : start + size]] = name
            start += size
    given = set(out)
    empty = [name for name, share in parts.items() if share != 0 and name not in given]
    if empty and count:
        warnings.warn(f"split {', '.join(empty)} is empty: there are {count} {what} in all", stacklevel=3)
    return out


def _are_fractions(parts: Mapping[str, float]) -> bool:
    """Whether the parts are fractions; otherwise they are numbers."""
    shares = list(parts.values())
    if not shares or any(not name for name in parts):
        raise ValueError("name at least one split, and give each its share")
    if all(0 <= s <= 1 for s in shares):
        if sum(shares) > 1 + 1e-9:
            raise ValueError(f"shares of the splits sum to {sum(shares):g}, more than 1")
        return True
    wrong = [f"{name}={s:g}" for name, s in parts.items() if s != -1 and not (s >= 0 and float(s).is_integer())]
    if wrong or shares.count(-1) > 1:
        what = wrong[0] if wrong else "two splits of -1"
        raise ValueError(f"{what}: give either shares within 0..1, or whole numbers of which one may be -1, the rest")
    return False


def _shared_out(parts: Mapping[str, float], count: int, owed: NDArray[np.float64]) -> list[int]:
    """Size of each part of a pool of `count`, by largest remainders.

    Args:
        owed: deficit so far of each part and, last, of the identities without a split; updated, which gives every part
            its share over many small pools.
    """
    shares = np.array(list(parts.values()))
    shares = np.append(shares, max(0.0, 1 - shares.sum()))
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
    block = blocks(manifest)
    seen: dict[int, dict[str, None]] = {}
    names: dict[int, str] = {}
    rows = zip(block.tolist(), *(manifest.column(c) for c in ("identity", "id", "split")), strict=True)
    for b, name, row, part in rows:
        names.setdefault(b, name or row)
        if part is not None:
            seen.setdefault(b, {})[part] = None
    return {names[b]: tuple(parts) for b, parts in seen.items() if len(parts) > 1}
