"""ID-Sim's training mixture of triplets with real images, contextual edits and identity edits (A.1, A.2).

    train = mixture(real, context, edited, count=10_000, split="train")

Free column x_mixture holds the subset of a row's triplet: real, context or identity. `idmetric data generate --task
noise` then gives anchors and positives the artifacts of the generator that edited their negative (A.2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from idmetric.data.curate.balance import hashed, shares
from idmetric.data.curate.mine import Placed, grouped
from idmetric.data.manifest.lineage import lineages, parent_rows, with_parents_found
from idmetric.data.manifest.table import Manifest, merge

MIXTURES = ("real", "context", "identity")
ORIGINALS = 0.5  # share of identity triplets with an original as negative; A.2.2 names both kinds and no shares
PAIRINGS = ("original-edited", "edited-original", "edited-edited")  # anchor and positive, A.2.1
Triplet = tuple[int, int, int]  # rows of anchor, positive, negative
Draw = Callable[[np.random.Generator], Triplet | None]


class TripletError(ValueError):
    """A mixture that cannot be made; the message names the subset and says how to fix it."""


def parse_ratio(text: str) -> tuple[float, float, float]:
    """Shares of real, context and identity triplets from a text like "1:1:1"."""
    try:
        real, context, identity = (float(x) for x in text.split(":"))
    except ValueError:
        real = context = identity = np.nan
    if not (min(real, context, identity) >= 0 and 0 < real + context + identity < np.inf):
        raise ValueError(f"{text!r} is not a ratio: write real:context:identity, such as 1:1:1")
    return real, context, identity


def mixture(
    real: Manifest,
    context: Manifest | None = None,
    identity: Manifest | None = None,
    *,
    count: int = 10_000,
    ratio: Sequence[float] = (1.0, 1.0, 1.0),
    seed: int = 0,
    per_identity: int = 1,
    split: str | None = None,
    originals: float = ORIGINALS,
) -> Manifest:
    """A training set of triplets (ID-Sim, section 3.2: 10k triplets of about 10k instances, an even split in three).

    Args:
        real: mined triplets, i.e. groups with slots anchor, positive and negative (`curate.mine.hard_negatives`).
        context: originals (role real) and context-edits of the same identity. The pair of an instance is, with equal
            probability, original and edit, edit and original, or two edits. The negative is, with equal probability, an
            original or an edit of another instance (A.2.1). An instance needs one original and two edits, which allow
            all three pairings.
        identity: originals and their identity-edits. A triplet has two originals of an instance and, as negative, an
            edit made from an image of the same instance or an original of another instance (A.2.2: "negatives are
            sampled from both edited and original images of other instances"; an edit is another instance).
        count: number of triplets.
        ratio: shares of the three subsets; Table 6 has 1:1:1, or 0.7 for one and 0.15 for each other.
        seed: of all random draws.
        per_identity: largest number of triplets of an instance in each subset.
        split: use the rows of this split. Without it, all rows must be of one split.
        originals: probability that the negative of an identity triplet is an original of another instance; 0 takes
            edits alone.

    Returns:
        Three rows for each triplet (anchor, positive, negative), with free columns x_mixture and x_source, and for
        context x_pairing.

    Raises:
        TripletError: naming the subset with too few instances or with invalid triplets.
    """
    given = {"real": real, "context": context, "identity": identity}
    build: dict[str, Callable[[Manifest], dict[str, Draw]]] = {
        "real": _real, "context": _context, "identity": partial(_identity, originals=originals),
    }  # fmt: skip
    parts = []

    for name, need in zip(MIXTURES, shares(count, ratio), strict=True):
        if not need:
            continue
        manifest = given[name]
        if manifest is None:
            raise TripletError(f"{need} triplets of subset {name!r} need its manifest: give it, or set its ratio to 0")

        chosen = _one_split(manifest, split, name)
        pools = build[name](chosen)
        found = _draw(pools, need, per_identity, (seed, name))
        if len(found) < need:
            raise TripletError(
                f"subset {name!r} gives {len(found)} of {need} triplets, from {len(pools)} instances; an instance "
                f"needs {_NEEDS[name]}. Add data, or lower the count or this subset's share"
            )
        parts.append(_written(chosen, found, name))
    if not parts:
        raise TripletError(f"{count} triplets in the ratio {':'.join(f'{r:g}' for r in ratio)} are zero triplets")
    if len(splits := sorted({s for part in parts for s in part.column("split")} - {None})) > 1:
        raise TripletError(f"the subsets have the splits {', '.join(splits)}: choose one")
    return with_parents_found(merge(parts, shared=True))


def _one_split(manifest: Manifest, split: str | None, name: str) -> Manifest:
    """The rows of the split sorted by id, which makes the result independent of their order."""
    there = sorted({s or "(none)" for s in manifest.column("split")})
    if split is None and len(there) > 1:
        raise TripletError(f"subset {name!r} has the splits {', '.join(there)}: choose one")
    if split is not None:
        manifest = manifest.filter(split=split)
        if not len(manifest):
            raise TripletError(f"subset {name!r} has no rows of split {split!r}; its splits: {', '.join(there)}")
    return manifest.take(np.argsort(np.array(manifest.column("id"), dtype=object), kind="stable"))


def _draw(pools: dict[str, Draw], need: int, per_identity: int, seed: tuple[int, str]) -> list[Triplet]:
    """`need` triplets: one of each instance in random order, then a second of each, and so on."""
    order = sorted(pools, key=lambda name: hashed(*seed, name))
    found: dict[Triplet, None] = {}
    for turn in range(per_identity):
        for name in order:
            if len(found) == need:
                return list(found)
            rng = np.random.default_rng(hashed(*seed, name, turn)[0])
            for _ in range(10):  # redraw repeated triplets; the instance may have no others
                triplet = pools[name](rng)
                if triplet is not None and triplet not in found:
                    found[triplet] = None
                    break
    return list(found)


def _real(manifest: Manifest) -> dict[str, Draw]:
    """identity -> function that draws one of its mined triplets."""
    names = manifest.column("identity")
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, (group, slot) in enumerate(zip(manifest.column("group"), manifest.column("slot"), strict=True)):
        if group is not None:
            groups[group][slot].append(row)
    triplets: dict[str, list[dict[str, list[int]]]] = defaultdict(list)

    for group, slots in groups.items():
        if not all(slots[s] for s in ("anchor", "positive", "negative")):
            continue
        anchor = names[slots["anchor"][0]]
        if any(names[r] != anchor for r in slots["positive"]) or any(names[r] == anchor for r in slots["negative"]):
            raise TripletError(f"subset 'real', group {group!r}: a positive of another identity than the anchor's, or "
                               "a negative of the same")  # fmt: skip
        triplets[anchor].append(slots)

    def one(options: list[dict[str, list[int]]], rng: np.random.Generator) -> Triplet:
        slots = options[rng.integers(len(options))]
        anchor, positive, negative = (int(rng.choice(slots[s])) for s in ("anchor", "positive", "negative"))
        return anchor, positive, negative

    return {name: partial(one, options) for name, options in triplets.items()}


def _context(manifest: Manifest) -> dict[str, Draw]:
    """identity -> function that draws a pair of it in one of the three pairings, and an image of another instance."""
    kinds: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))  # originals, edits
    for row, (name, role) in enumerate(zip(manifest.column("identity"), manifest.column("role"), strict=True)):
        if name is not None and role in ("real", "context-edit"):
            kinds[name][role == "context-edit"].append(row)
    kinds = {name: rows for name, rows in kinds.items() if len(rows[0]) >= 1 and len(rows[1]) >= 2}
    stranger = _strangers(manifest, {name: originals[0] for name, (originals, _) in kinds.items()})

    def one(name: str, rng: np.random.Generator) -> Triplet | None:
        originals, edits = kinds[name]
        pairing = PAIRINGS[rng.integers(3)]
        first, second = (int(x) for x in rng.permutation(edits)[:2])
        original = int(rng.choice(originals))
        pair = {"original-edited": (original, first), "edited-original": (first, original)}
        anchor, positive = pair.get(pairing, (first, second))
        other = stranger(rng, anchor)
        return None if other is None else (anchor, positive, int(rng.choice(kinds[other][rng.integers(2)])))

    return {name: partial(one, name) for name in sorted(kinds)}


def _strangers(manifest: Manifest, rows: dict[str, int]) -> Callable[[np.random.Generator, int], str | None]:
    """A function that draws an instance of another family than a row's; None if there is no other family.

    Args:
        rows: instance -> one of its rows.
    """
    family, order = lineages(manifest), sorted(rows)
    several = len({int(family[row]) for row in rows.values()}) > 1

    def draw(rng: np.random.Generator, row: int) -> str | None:
        while several:
            other = order[rng.integers(len(order))]
            if family[rows[other]] != family[row]:
                return other
        return None

    return draw


def _identity(manifest: Manifest, originals: float) -> dict[str, Draw]:
    """identity -> function that draws two of its originals, and an identity-edit of one of its images or, with
    probability `originals`, an original of another instance."""
    names, roles, parents = manifest.column("identity"), manifest.column("role"), parent_rows(manifest)
    real: dict[str, list[int]] = defaultdict(list)
    edits: dict[str, list[int]] = defaultdict(list)

    for row, (name, role) in enumerate(zip(names, roles, strict=True)):
        if role == "real" and name is not None:
            real[name].append(row)
        elif role == "identity-edit" and parents[row] >= 0:
            of = names[parents[row]]
            if of is not None and of != name:
                edits[of].append(row)

    stranger = _strangers(manifest, {name: rows[0] for name, rows in real.items()})

    def one(name: str, rng: np.random.Generator) -> Triplet | None:
        anchor, positive = (int(x) for x in rng.permutation(real[name])[:2])
        if rng.random() >= originals:
            return anchor, positive, int(rng.choice(edits[name]))
        other = stranger(rng, anchor)
        return None if other is None else (anchor, positive, int(rng.choice(real[other])))

    return {name: partial(one, name) for name in sorted(edits) if len(real[name]) >= 2}


_NEEDS = {
    "real": "a group with anchor, positive and negative (mine negatives first)",
    "context": "an original, two context-edits, and another instance to be its negative",
    "identity": "two originals and an identity-edit whose parent is in the manifest",
}


def _written(manifest: Manifest, triplets: list[Triplet], name: str) -> Manifest:
    known = "x_similarity" in manifest.table.column_names and name == "real"
    column: list[Any] = manifest.column("x_similarity") if known else [None] * len(manifest)
    similarity = [None if value is None else float(value) for value in column]  # CSV has text
    rows: list[Placed] = [
        (row, f"{name}-{number:06d}", slot, similarity[row])
        for number, triplet in enumerate(triplets)
        for row, slot in zip(triplet, ("anchor", "positive", "negative"), strict=True)
    ]
    pairing: list[str | None] = [None] * len(rows)
    if name == "context":
        kinds = ["edited" if role == "context-edit" else "original" for role in manifest.column("role")]
        pairing = [f"{kinds[anchor]}-{kinds[positive]}" for anchor, positive, _ in triplets for _ in range(3)]
    return grouped(manifest, rows).replace(x_mixture=name, x_pairing=pairing)
