"""Labeled pairs for calibration: of one identity, and of two identities, up to half of them hard to distinguish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import image_keys, lineages, parent_rows
from idmetric.evaluate.protocols.common.columns import Ints, Truths, named, texts
from idmetric.evaluate.protocols.common.intervals import codes

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

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
    """Pairs of one identity and of two, equally many, without repetition.

    Up to half of the latter are hard: `context`, an image and the distractor or identity edit made from it; `kin`, an
    image of an object and one edited from another image of it; `category`, two identities of one category of a dataset.

    Args:
        data: rows with an identity. each: pairs of one identity, at most.
        strangers: further pairs of any two identities of a dataset, after the others.

    Raises:
        ValueError: if no identity has two images, or there are fewer than three families.
    """
    rng = np.random.default_rng(seed)
    identity, image = codes(data.column("identity")), codes(image_keys(data))
    family, parent = codes(lineages(data).tolist()), parent_rows(data)
    dataset = codes([name or "" for name in data.column("dataset")])
    kinds = codes([None if c is None else (d, c) for d, c in zip(dataset, data.column("category"), strict=True)])
    rows_of, in_family, in_kind, in_dataset = (_members(column) for column in (identity, family, kinds, dataset))
    known = np.unique(np.stack([family, identity], 1), axis=0)[:, 0]
    mixed = set(known[1:][known[1:] == known[:-1]].tolist())  # families of several identities

    def context(row: int) -> int | None:
        """The image that a row was made from, if it shows another identity."""
        made_from = int(parent[row])
        return made_from if made_from >= 0 and identity[made_from] != identity[row] else None

    def kin(row: int) -> int | None:
        """Another identity of its family; neither image was made from the other."""
        if int(family[row]) not in mixed:
            return None
        others = [r for r in in_family[int(family[row])] if identity[r] != identity[row]
                  and parent[r] != row and parent[row] != r]  # fmt: skip
        return others[int(rng.integers(len(others)))] if others else None

    def stranger(row: int, rows: Sequence[int]) -> int | None:
        for _ in range(_DRAWS):
            other = rows[int(rng.integers(len(rows)))]
            if family[other] != family[row]:
                return other
        return None

    def category(row: int) -> int | None:
        """Another family of its category in its dataset."""
        return None if kinds[row] < 0 else stranger(row, in_kind[int(kinds[row])])

    def anyone(row: int) -> int | None:
        """Another family of its dataset."""
        return stranger(row, in_dataset[int(dataset[row])])

    drawn: dict[tuple[int, int], str] = {}
    names = list(rows_of)

    def add(kind: str, partner: Callable[[int], int | None], count: int) -> None:
        """Draw up to `count` pairs of a kind; all identities are equally likely."""
        for _ in range(_DRAWS * count):
            if count <= 0:
                return
            rows = rows_of[names[int(rng.integers(len(names)))]]
            row = rows[int(rng.integers(len(rows)))]
            other = partner(row)
            if other is None or image[row] == image[other]:
                continue
            pair = min(row, other), max(row, other)
            if pair not in drawn:
                drawn[pair] = kind
                count -= 1

    for rows in rows_of.values():
        for a, b in list(_within(rows, each, rng)):
            if image[a] != image[b]:
                drawn[min(a, b), max(a, b)] = "same"
    same = len(drawn)
    if not same:
        raise ValueError("no identity has two images: pairs of one identity are needed")
    if len(in_family) < 3:
        raise ValueError("at least three identities without common edits are needed")

    hard = {"context": context, "kin": kin, "category": category}
    able = [kind for kind, partner in hard.items() if any(partner(row) is not None for row in range(len(data)))]
    for k, kind in enumerate(able):
        left = same // 2 - (len(drawn) - same)
        add(kind, hard[kind], left // (len(able) - k))
    add("any", anyone, 2 * same - len(drawn))
    add("any", anyone, strangers)
    a, b = np.array(list(drawn), dtype=np.int64).T
    kind_of = np.array(list(drawn.values()), dtype=object)
    if (kind_of == "same").all():
        raise ValueError("each dataset has a single identity: there are no pairs of two identities")
    return Pairs(a, b, kind_of == "same", kind_of, family[np.stack([a, b], 1)])


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


def _members(numbers: Ints) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, number in enumerate(numbers.tolist()):
        found.setdefault(number, []).append(row)
    return found
