"""Splits that no identity crosses, and the check that none does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest import Manifest


def split(manifest: Manifest, parts: Mapping[str, float], seed: int = 0, by_dataset: bool = True) -> Manifest:
    """Set column `split` so that an identity, and all that was made from its images, falls in one split.

    Identities are joined where an image of the one is the parent of an image of the other (an edit shows the scene of
    its parent), or where a triplet holds both; what is joined stays together (VisME, section 4.1: "no identity present
    in training appears in any evaluation set"; NearID, section 3.3: mutually exclusive splits).

    Args:
        parts: name -> share of identities (fractions that sum to at most 1), or number of identities (whole numbers;
            one part may be -1: all that the others leave). What no part takes gets an empty split. Identities that are
            joined count as one.
        by_dataset: share each dataset out in the same proportions. With numbers, they are of all datasets together.

    Raises:
        ValueError: if parts ask for more identities than there are, or mix fractions and numbers.
    """
    fractions = _are_fractions(parts)
    block = blocks(manifest)
    names = np.array([d or "" for d in manifest.column("dataset")], dtype=object)
    rng = np.random.default_rng(seed)
    count = int(block.max(initial=-1)) + 1
    out = np.full(count, None, dtype=object)
    if fractions and by_dataset:
        home = np.full(count, "", dtype=object)
        home[block[::-1]] = names[::-1]  # of the first row
        pools = [np.flatnonzero(home == name) for name in dict.fromkeys(home)]
    else:
        pools = [np.arange(count)]
    for pool in pools:
        order = rng.permutation(pool)
        sizes = _sizes(parts, len(order), fractions)
        start = 0
        for name, size in zip(parts, sizes, strict=True):
            out[order[start : start + size]] = name
            start += size
    return manifest.replace(split=list(out[block]) if count else [])


def split_rows(manifest: Manifest, parts: Mapping[str, float], seed: int = 0) -> Manifest:
    """Set column `split` row by row, whatever the identities: VisME's fallback for datasets with too few of them."""
    order = np.random.default_rng(seed).permutation(len(manifest))
    out = np.full(len(manifest), None, dtype=object)
    start = 0
    for name, size in zip(parts, _sizes(parts, len(order), _are_fractions(parts)), strict=True):
        out[order[start : start + size]] = name
        start += size
    return manifest.replace(split=list(out))


def _are_fractions(parts: Mapping[str, float]) -> bool:
    """Whether the parts are shares of the whole; otherwise they are numbers."""
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


def _sizes(parts: Mapping[str, float], count: int, fractions: bool) -> list[int]:
    if fractions:
        ends = np.floor(np.cumsum(list(parts.values())) * count + 0.5 + 1e-9).astype(int).clip(0, count)
        return [int(n) for n in np.diff(np.r_[0, ends])]
    sizes = [int(s) for s in parts.values()]
    rest = count - sum(s for s in sizes if s >= 0)
    if rest < 0:
        raise ValueError(f"the splits ask for {count - rest} identities; there are {count}")
    return [rest if s < 0 else s for s in sizes]


def blocks(manifest: Manifest) -> NDArray[np.int64]:
    """Number (N,) of each row's block of identities that belong together, in order of appearance."""
    # an image without an identity is a block of its own
    identity = [name or f"\0{row}" for row, name in enumerate(manifest.column("identity"))]
    number = {name: k for k, name in enumerate(dict.fromkeys(identity))}
    root = list(range(len(number)))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = root[root[k]]
            k = root[k]
        return k

    def join(a: str, b: str) -> None:
        x, y = find(number[a]), find(number[b])
        root[max(x, y)] = min(x, y)

    owner = dict(zip(manifest.column("id"), identity, strict=True))
    for name, parent in zip(identity, manifest.column("parent"), strict=True):
        if parent in owner:
            join(name, owner[parent])
    first: dict[str, str] = {}
    for name, group in zip(identity, manifest.column("group"), strict=True):
        if group is not None:
            join(name, first.setdefault(group, name))
    found = [find(number[name]) for name in identity]
    order = {k: n for n, k in enumerate(dict.fromkeys(found))}
    return np.array([order[k] for k in found], dtype=np.int64)


def leaks(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Identities that occur in more than one split, themselves or through what was made from them: name -> splits.

    Of identities that are joined, the first stands for all; where it has no name, the id of its row does.
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
