"""Labeled pairs for calibration: of one identity, and of two identities, up to half of them hard to distinguish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.split import blocks, image_keys, parent_rows
from idmetric.evaluate.protocols.common.columns import Ints, Truths, positions
from idmetric.evaluate.protocols.common.intervals import codes

if TYPE_CHECKING:
    from pandas import DataFrame

_DRAWS = 20  # tries for a new pair


@dataclass(frozen=True)
class LabeledPairs:
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
        is_in_even_part: Truths = np.arange(len(self.a)) < 2 * self.same.sum()
        return is_in_even_part

    def take(self, chosen: Truths) -> LabeledPairs:
        """The pairs that a boolean array (P,) selects."""
        columns = [column[chosen] for column in vars(self).values()]
        return LabeledPairs(*columns)


def usable(data: DataFrame) -> DataFrame:
    """Rows of known identity without part-edits, which show neither the same object nor a different one."""
    from idmetric.data.manifest import take  # loads pandas, which the help does without

    return take(data, data["identity"].notna() & (data["role"] != "part-edit"))


def draw_pairs(data: DataFrame, each: int = 10, seed: int = 0, strangers: int = 0) -> LabeledPairs:
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
    identity = codes(data["identity"])
    image = codes(image_keys(data))
    family = blocks(data, groups=False)
    parent = parent_rows(data)
    datasets = data["dataset"].fillna("")
    dataset = codes(datasets)
    category = codes(zip(datasets, data["category"], strict=True))  # of a dataset
    category[data["category"].isna()] = -1

    rows_of_identity = positions(identity)
    rows_of_family = positions(family)
    rows_of_category = positions(category)
    rows_of_dataset = positions(dataset)
    identities_of_families = np.unique(np.stack([family, identity], 1), axis=0)
    identity_count = np.bincount(identities_of_families[:, 0])  # of each family

    def any_of(rows: Sequence[int] | Ints) -> int:
        index = int(rng.integers(len(rows)))
        return int(rows[index])

    def of_another_family(row: int, rows: Ints) -> int | None:
        for _ in range(_DRAWS):
            partner = any_of(rows)
            if family[partner] != family[row]:
                return partner
        return None

    def in_context(row: int) -> int | None:
        """The image that a row was made from, if it shows another identity."""
        source = int(parent[row])
        if source < 0 or identity[source] == identity[row]:
            return None
        return source

    def of_kin(row: int) -> int | None:
        """Another identity of its family; neither image was made from the other."""
        if identity_count[family[row]] == 1:
            return None
        partners = []
        for relative in rows_of_family[int(family[row])].tolist():
            is_edit = parent[relative] == row or parent[row] == relative
            if identity[relative] != identity[row] and not is_edit:
                partners.append(relative)
        if not partners:
            return None
        return any_of(partners)

    def of_category(row: int) -> int | None:
        """Another family of its category in its dataset."""
        if category[row] < 0:
            return None
        return of_another_family(row, rows_of_category[int(category[row])])

    def of_dataset(row: int) -> int | None:
        """Another family of its dataset."""
        return of_another_family(row, rows_of_dataset[int(dataset[row])])

    drawn: dict[tuple[int, int], str] = {}
    identities = list(rows_of_identity.values())

    def add(kind: str, partner_of: Callable[[int], int | None], count: int) -> None:
        """Draw up to `count` pairs of a kind; all identities are equally likely."""
        for _ in range(_DRAWS * count):
            if count <= 0:
                return
            drawn_identity = int(rng.integers(len(identities)))
            row = any_of(identities[drawn_identity])
            partner = partner_of(row)
            if partner is None or image[row] == image[partner]:
                continue
            pair = min(row, partner), max(row, partner)
            if pair not in drawn:
                drawn[pair] = kind
                count -= 1

    # pairs of one identity
    for rows in identities:
        firsts, seconds = np.triu_indices(len(rows), 1)
        for k in rng.permutation(len(firsts))[:each]:
            a, b = int(rows[firsts[k]]), int(rows[seconds[k]])
            if image[a] != image[b]:
                drawn[min(a, b), max(a, b)] = "same"
    same = len(drawn)
    if not same:
        raise ValueError("no identity has two images: pairs of one identity are needed")
    if len(rows_of_family) < 3:
        raise ValueError("at least three identities without common edits are needed")

    # pairs of two: up to half of them of the hard kinds that there are, then any
    hard = {"context": in_context, "kin": of_kin, "category": of_category}
    for kind, partner_of in list(hard.items()):
        if all(partner_of(row) is None for row in range(len(data))):
            del hard[kind]
    for number, (kind, partner_of) in enumerate(hard.items()):
        missing = same // 2 - (len(drawn) - same)
        add(kind, partner_of, missing // (len(hard) - number))
    add("any", of_dataset, 2 * same - len(drawn))
    add("any", of_dataset, strangers)

    rows_a, rows_b = np.array(list(drawn), dtype=np.int64).T
    kinds = np.array(list(drawn.values()), dtype=object)
    if (kinds == "same").all():
        raise ValueError("each dataset has a single identity: there are no pairs of two identities")
    families = family[np.stack([rows_a, rows_b], 1)]
    return LabeledPairs(rows_a, rows_b, kinds == "same", kinds, families)
