"""Labeled pairs for calibration: of one identity, and of two identities, up to half of them hard to distinguish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import image_keys, lineages, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.columns import Ints, Truths, named, texts
from idmetric.protocols.common.intervals import codes

_DRAWS = 20  # tries for a new pair
_LIST = 100_000  # pairs of an identity, up to which all are listed to draw from


@dataclass(frozen=True)
class Pairs:
    """Pairs of images: rows a and b (P,), whether they show one identity, their kinds, and their families (P, 2)."""

    a: Ints
    b: Ints
    same: Truths
    kind: NDArray[Any]
    family: Ints

    def counts(self) -> dict[str, int]:
        """Pairs of each kind."""
        return {kind: int((self.kind == kind).sum()) for kind in dict.fromkeys(self.kind)}

    def even(self) -> Truths:
        """Which pairs (P,) belong to the part with as many pairs of one identity as of two: the first ones."""
        found: Truths = np.arange(len(self.a)) < 2 * self.same.sum()
        return found

    def take(self, chosen: Truths) -> Pairs:
        """The pairs that a boolean array (P,) selects."""
        return Pairs(*(getattr(self, field.name)[chosen] for field in fields(self)))


def usable(data: Manifest) -> Manifest:
    """Rows of known identity without part-edits, which show neither the same object nor a different one."""
    return data.take(named(data) & (texts(data, "role") != "part-edit"))


def draw_pairs(data: Manifest, each: int = 10, seed: int = 0, strangers: int = 0) -> Pairs:
    """Pairs of one identity and of two, equally many, see `idmetric.protocols.calibrate`.

    Args:
        data: rows with an identity. each: pairs of one identity, at most.
        strangers: further pairs of any two identities of a dataset, after the others.

    Raises:
        ValueError: if no identity has two images, or there are fewer than two families.
    """
    table = _Table(data)
    rng = np.random.default_rng(seed)
    drawn: dict[tuple[int, int], str] = {}

    for rows in table.rows_of.values():
        own = list(_within(rows, each, rng))
        for a, b in own:
            if table.image[a] != table.image[b]:
                drawn[min(a, b), max(a, b)] = "same"

    same = len(drawn)
    if not same:
        raise ValueError("no identity has two images: pairs of one identity are needed")
    if len(set(table.family.tolist())) < 3:
        raise ValueError("at least three identities without common edits are needed")

    hard = {"context": table.context, "kin": table.kin, "category": table.category}
    kinds = [kind for kind, partner in hard.items() if any(partner(row, rng) is not None for row in range(len(data)))]
    for k, kind in enumerate(kinds):
        left = same // 2 - (len(drawn) - same)
        table.add(drawn, kind, hard[kind], left // (len(kinds) - k), rng)
    table.add(drawn, "any", table.anyone, 2 * same - len(drawn), rng)
    table.add(drawn, "any", table.anyone, strangers, rng)
    a, b = np.array(list(drawn), dtype=np.int64).T
    named = np.array(list(drawn.values()), dtype=object)
    own = named == "same"
    if own.all():
        raise ValueError("each dataset has a single identity: there are no pairs of two identities")

    return Pairs(a, b, own, named, table.family[np.stack([a, b], 1)])


def _within(rows: Sequence[int], each: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """At most `each` unordered pairs of rows."""
    count = len(rows) * (len(rows) - 1) // 2
    if count <= _LIST:
        i, j = np.triu_indices(len(rows), 1)
        for k in rng.permutation(count)[:each]:
            yield rows[i[k]], rows[j[k]]
        return
    for _ in range(each):
        first, second = rng.choice(len(rows), 2, replace=False)
        yield rows[first], rows[second]


class _Table:
    """Columns as numbers, and for a row a partner of each kind."""

    def __init__(self, data: Manifest) -> None:
        self.identity, self.image = codes(data.column("identity")), codes(image_keys(data))
        self.family, self.parent = codes(lineages(data).tolist()), parent_rows(data)
        self.dataset = codes([name or "" for name in data.column("dataset")])
        named = [None if c is None else (d, c) for d, c in zip(self.dataset, data.column("category"), strict=True)]
        self._category = codes(named)
        self.rows_of = _members(self.identity)
        known = np.unique(np.stack([self.family, self.identity], 1), axis=0)[:, 0]
        self._mixed = set(known[1:][known[1:] == known[:-1]].tolist())  # families of several identities
        self._in_family, self._in_category = _members(self.family), _members(self._category)
        self._in_dataset = _members(self.dataset)
        self._identities = list(self.rows_of)

    def context(self, row: int, rng: np.random.Generator) -> int | None:
        """The image that a row was made from, if it shows another identity."""
        parent = int(self.parent[row])
        return parent if parent >= 0 and self.identity[parent] != self.identity[row] else None

    def kin(self, row: int, rng: np.random.Generator) -> int | None:
        """Another identity of its family; neither image was made from the other."""
        if int(self.family[row]) not in self._mixed:
            return None
        others = [r for r in self._in_family[int(self.family[row])] if self.identity[r] != self.identity[row]
                  and self.parent[r] != row and self.parent[row] != r]  # fmt: skip
        return others[int(rng.integers(len(others)))] if others else None

    def category(self, row: int, rng: np.random.Generator) -> int | None:
        """Another identity of its category in its dataset."""
        number = int(self._category[row])
        return None if number < 0 else self._stranger(row, self._in_category[number], rng)

    def anyone(self, row: int, rng: np.random.Generator) -> int | None:
        """Another family of its dataset."""
        return self._stranger(row, self._in_dataset[int(self.dataset[row])], rng)

    def _stranger(self, row: int, rows: Sequence[int], rng: np.random.Generator) -> int | None:
        for _ in range(_DRAWS):
            other = rows[int(rng.integers(len(rows)))]
            if self.family[other] != self.family[row]:
                return other
        return None

    def add(
        self, drawn: dict[tuple[int, int], str], kind: str, partner: Callable[[int, np.random.Generator], int | None],
        count: int, rng: np.random.Generator,
    ) -> None:  # fmt: skip
        """Draw up to `count` pairs of a kind; all identities are equally likely."""
        for _ in range(_DRAWS * count):
            if count <= 0:
                return
            rows = self.rows_of[self._identities[int(rng.integers(len(self._identities)))]]
            row = rows[int(rng.integers(len(rows)))]
            other = partner(row, rng)
            if other is None or self.image[row] == self.image[other]:
                continue
            pair = min(row, other), max(row, other)
            if pair not in drawn:
                drawn[pair] = kind
                count -= 1


def _members(numbers: Ints) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, number in enumerate(numbers.tolist()):
        found.setdefault(number, []).append(row)
    return found
