"""ID-Sim's training mixture of triplets with real images, contextual edits and identity edits (A.1, A.2).

    train = mixture(real, context, edited, count=10_000, split="train")

Column x_mixture holds the subset of a row's triplet: real, context or identity. `idmetric data generate --task noise`
then gives anchors and positives the artifacts of the generator that edited their negative (A.2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from idmetric.data.curate.balance import hashed, shares
from idmetric.data.curate.mine import grouped, with_parents_found
from idmetric.data.manifest import ManifestError, merge, take
from idmetric.data.nearest import Ints
from idmetric.data.split import blocks, followers, parent_rows, split_name

MIXTURES = ("real", "context", "identity")
SLOTS = ("anchor", "positive", "negative")
ORIGINALS = 0.5  # share of identity triplets with an original as negative; A.2.2 names both kinds and no shares
PAIRINGS = ("original-edited", "edited-original", "edited-edited")  # anchor and positive, A.2.1
Triplet = tuple[int, int, int]  # rows of anchor, positive, negative
Draw = Callable[[np.random.Generator], Triplet | None]


def parse_ratio(text: str) -> tuple[float, float, float]:
    """Shares of real, context and identity triplets from a text like "1:1:1"."""
    try:
        real, context, identity = (float(x) for x in text.split(":"))
    except ValueError:
        real = context = identity = np.nan
    total = real + context + identity
    if not (min(real, context, identity) >= 0 and 0 < total < np.inf):
        raise ValueError(f"{text!r} is not a ratio: write real:context:identity, such as 1:1:1")
    return real, context, identity


def mixture(
    real: pd.DataFrame,
    context: pd.DataFrame | None = None,
    identity: pd.DataFrame | None = None,
    *,
    count: int = 10_000,
    ratio: Sequence[float] = (1.0, 1.0, 1.0),
    seed: int = 0,
    per_identity: int = 1,
    split: str | None = None,
    originals: float = ORIGINALS,
) -> pd.DataFrame:
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
        Three rows for each triplet (anchor, positive, negative), with own columns x_mixture and x_source.

    Raises:
        ManifestError: naming the subset with too few instances or with invalid triplets.
    """
    tables = {"real": real, "context": context, "identity": identity}
    builders: dict[str, Callable[[pd.DataFrame], dict[str, Draw]]] = {
        "real": _real,
        "context": _context,
        "identity": partial(_identity, originals=originals),
    }
    parts = []
    for name, need in zip(MIXTURES, shares(count, ratio), strict=True):
        table = tables[name]
        if not need:
            continue
        if table is None:
            raise ManifestError(f"{need} triplets of subset {name!r} need its manifest: give it, or set its ratio to 0")
        table = _one_split(table, split, name)
        pools = builders[name](table)
        triplets = _draw(pools, need, per_identity, (seed, name))
        parts.append(_written(table, triplets, name))

    mixed = merge(parts, shared=True)
    splits = sorted(mixed["split"].dropna().unique())
    if len(splits) > 1:
        raise ManifestError(f"the subsets have the splits {', '.join(splits)}: choose one")
    return with_parents_found(mixed)


def _one_split(table: pd.DataFrame, split: str | None, name: str) -> pd.DataFrame:
    """The rows of the split sorted by id, which makes the result independent of their order."""
    splits = table["split"].fillna("(none)")
    listed = ", ".join(sorted(splits.unique()))
    if split is None and splits.nunique() > 1:
        raise ManifestError(f"subset {name!r} has the splits {listed}: choose one")
    if split is not None:
        table = take(table, splits == split_name(split))
        if not len(table):
            raise ManifestError(f"subset {name!r} has no rows of split {split!r}; its splits: {listed}")
    return table.sort_values("id", ignore_index=True)


def _draw(pools: dict[str, Draw], need: int, per_identity: int, seed: tuple[int, str]) -> list[Triplet]:
    """`need` triplets: one of each instance in random order, then a second of each, and so on."""
    order = sorted(pools, key=lambda name: hashed(*seed, name))
    triplets: dict[Triplet, None] = {}
    for turn, name in product(range(per_identity), order):
        if len(triplets) == need:
            break
        rng = np.random.default_rng(hashed(*seed, name, turn))
        for _ in range(10):  # redraw repeated triplets; the instance may have no others
            triplet = pools[name](rng)
            if triplet is not None and triplet not in triplets:
                triplets[triplet] = None
                break
    if len(triplets) < need:
        _, name = seed
        raise ManifestError(
            f"subset {name!r} gives {len(triplets)} of {need} triplets, from {len(pools)} instances; an instance "
            f"needs {_NEEDS[name]}. Add data, or lower the count or this subset's share"
        )
    return list(triplets)


def _rows_of(table: pd.DataFrame, is_chosen: pd.Series) -> dict[str, Ints]:
    """identity -> its rows among the chosen ones."""
    names = table["identity"].where(is_chosen)
    rows: dict[str, Ints] = table.groupby(names).indices
    return rows


def _real(table: pd.DataFrame) -> dict[str, Draw]:
    """identity -> function that draws one of its mined triplets."""
    names = table["identity"].to_numpy()
    triplets: dict[str, list[list[Ints]]] = {}
    for group, rows in table.groupby("group", sort=False):
        slots = [rows.index[rows["slot"] == slot] for slot in SLOTS]
        if not all(map(len, slots)):
            continue
        anchors, positives, negatives = slots
        identity = names[anchors[0]]
        is_pair = set(names[positives]) == {identity}
        if not is_pair or identity in names[negatives]:
            raise ManifestError(
                f"subset 'real', group {group!r}: a positive of another identity than the anchor's, or a negative of "
                "the same"
            )
        triplets.setdefault(identity, []).append(slots)

    def draw(options: list[list[Ints]], rng: np.random.Generator) -> Triplet:
        slots = options[rng.integers(len(options))]
        anchor, positive, negative = map(rng.choice, slots)
        return anchor, positive, negative

    return {name: partial(draw, options) for name, options in triplets.items()}


def _context(table: pd.DataFrame) -> dict[str, Draw]:
    """identity -> function that draws a pair of it in one of the three pairings, and an image of another instance."""
    originals = _rows_of(table, table["role"] == "real")
    edits = _rows_of(table, table["role"] == "context-edit")
    names = []
    for name in sorted(originals):
        if len(edits.get(name, ())) >= 2:
            names.append(name)
    row_of = {name: originals[name][0] for name in names}
    draw_stranger = _strangers(table, row_of)

    def draw(name: str, rng: np.random.Generator) -> Triplet | None:
        pairing = PAIRINGS[rng.integers(3)]
        edit, further_edit = rng.permutation(edits[name])[:2]
        original = rng.choice(originals[name])
        if pairing == "original-edited":
            anchor, positive = original, edit
        elif pairing == "edited-original":
            anchor, positive = edit, original
        else:
            anchor, positive = edit, further_edit
        stranger = draw_stranger(rng, anchor)
        if stranger is None:
            return None
        images = (originals, edits)[rng.integers(2)]
        return anchor, positive, rng.choice(images[stranger])

    return {name: partial(draw, name) for name in names}


def _strangers(table: pd.DataFrame, rows: Mapping[str, int]) -> Callable[[np.random.Generator, int], str | None]:
    """A function that draws an instance of another family than a row's; None if there is no other family.

    Args:
        rows: instance -> one of its rows.
    """
    family = blocks(table, groups=False)
    names = sorted(rows)
    families = {family[row] for row in rows.values()}

    def draw(rng: np.random.Generator, row: int) -> str | None:
        while len(families) > 1:
            name = names[rng.integers(len(names))]
            if family[rows[name]] != family[row]:
                return name
        return None

    return draw


def _identity(table: pd.DataFrame, originals: float) -> dict[str, Draw]:
    """identity -> function that draws two of its originals, and an identity-edit of one of its images or, with
    probability `originals`, an original of another instance."""
    real = _rows_of(table, table["role"] == "real")
    is_edit = (table["role"] == "identity-edit") & followers(table)
    parents = parent_rows(table)
    edited = table["identity"].iloc[parents].reset_index(drop=True)  # the identity that was edited
    edited = edited.where(is_edit)
    edits = table.groupby(edited).indices
    row_of = {name: rows[0] for name, rows in real.items()}
    draw_stranger = _strangers(table, row_of)

    def draw(name: str, rng: np.random.Generator) -> Triplet | None:
        anchor, positive = rng.permutation(real[name])[:2]
        if rng.random() >= originals:
            return anchor, positive, rng.choice(edits[name])
        stranger = draw_stranger(rng, anchor)
        if stranger is None:
            return None
        return anchor, positive, rng.choice(real[stranger])

    draws: dict[str, Draw] = {}
    for name in sorted(edits):
        if len(real.get(name, ())) >= 2:
            draws[name] = partial(draw, name)
    return draws


_NEEDS = {
    "real": "a group with anchor, positive and negative (mine negatives first)",
    "context": "an original, two context-edits, and another instance to be its negative",
    "identity": "two originals and an identity-edit whose parent is in the manifest",
}


def _written(table: pd.DataFrame, triplets: list[Triplet], name: str) -> pd.DataFrame:
    """The rows of triplets as groups of a subset."""
    rows = np.ravel(triplets)
    groups = [f"{name}-{number:06d}" for number in range(len(triplets))]
    columns = {
        "row": rows,
        "group": np.repeat(groups, 3),
        "slot": SLOTS * len(triplets),
    }
    placed = pd.DataFrame(columns)
    if name == "real" and "x_similarity" in table:
        placed["similarity"] = table["x_similarity"].to_numpy()[rows]
    return grouped(table, placed).assign(x_mixture=name)
