"""ID-Sim's training mixture of triplets with real images, contextual edits and identity edits (A.1, A.2).

    train = mixture(real, context, edited, count=10_000, split="train")

Free column x_mixture holds the subset of a row's triplet: real, context or identity. `idmetric data generate --task
noise` then gives anchors and positives the artifacts of the generator that edited their negative (A.2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from idmetric.data.curate.balance import hashed, shares
from idmetric.data.curate.mine import Placed, grouped
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.lineage import lineages, parent_rows, with_parents_found
from idmetric.data.old_manifest.table import Manifest, merge

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
        ManifestError: naming the subset with too few instances or with invalid triplets.
    """
    manifests = {"real": real, "context": context, "identity": identity}
    builders: dict[str, Callable[[Manifest], dict[str, Draw]]] = {
        "real": _real,
        "context": _context,
        "identity": partial(_identity, originals=originals),
    }
    parts = []
    for name, need in zip(MIXTURES, shares(count, ratio), strict=True):
        if not need:
            continue
        manifest = manifests[name]
        if manifest is None:
            raise ManifestError(f"{need} triplets of subset {name!r} need its manifest: give it, or set its ratio to 0")

        manifest = _one_split(manifest, split, name)
        pools = builders[name](manifest)
        triplets = _draw(pools, need, per_identity, (seed, name))
        if len(triplets) < need:
            raise ManifestError(
                f"subset {name!r} gives {len(triplets)} of {need} triplets, from {len(pools)} instances; an instance "
                f"needs {_NEEDS[name]}. Add data, or lower the count or this subset's share"
            )
        parts.append(_written(manifest, triplets, name))
    if not parts:
        raise ManifestError(f"{count} triplets in the ratio {':'.join(f'{r:g}' for r in ratio)} are zero triplets")
    splits: set[str | None] = set()
    for part in parts:
        splits.update(part.column("split"))
    names = sorted(name for name in splits if name is not None)
    if len(names) > 1:
        raise ManifestError(f"the subsets have the splits {', '.join(names)}: choose one")
    return with_parents_found(merge(parts, shared=True))


def _one_split(manifest: Manifest, split: str | None, name: str) -> Manifest:
    """The rows of the split sorted by id, which makes the result independent of their order."""
    splits = sorted({split_name or "(none)" for split_name in manifest.column("split")})
    if split is None and len(splits) > 1:
        raise ManifestError(f"subset {name!r} has the splits {', '.join(splits)}: choose one")
    if split is not None:
        manifest = manifest.filter(split=split)
        if not len(manifest):
            raise ManifestError(f"subset {name!r} has no rows of split {split!r}; its splits: {', '.join(splits)}")
    return manifest.take(np.argsort(np.array(manifest.column("id"), dtype=object), kind="stable"))


def _draw(pools: dict[str, Draw], need: int, per_identity: int, seed: tuple[int, str]) -> list[Triplet]:
    """`need` triplets: one of each instance in random order, then a second of each, and so on."""
    order = sorted(pools, key=lambda name: hashed(*seed, name))
    triplets: dict[Triplet, None] = {}
    for turn, name in product(range(per_identity), order):
        if len(triplets) == need:
            break
        rng = np.random.default_rng(hashed(*seed, name, turn)[0])
        for _ in range(10):  # redraw repeated triplets; the instance may have no others
            triplet = pools[name](rng)
            if triplet is not None and triplet not in triplets:
                triplets[triplet] = None
                break
    return list(triplets)


def _real(manifest: Manifest) -> dict[str, Draw]:
    """identity -> function that draws one of its mined triplets."""
    names = manifest.column("identity")
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, (group, slot) in enumerate(zip(manifest.column("group"), manifest.column("slot"), strict=True)):
        if group is not None:
            groups[group][slot].append(row)

    triplets: dict[str, list[dict[str, list[int]]]] = defaultdict(list)
    for group, slots in groups.items():
        if not all(slots[slot] for slot in SLOTS):
            continue
        identity = names[slots["anchor"][0]]
        positives = {names[row] for row in slots["positive"]}
        negatives = {names[row] for row in slots["negative"]}
        if positives != {identity} or identity in negatives:
            raise ManifestError(
                f"subset 'real', group {group!r}: a positive of another identity than the anchor's, or a negative of "
                "the same"
            )
        triplets[identity].append(slots)

    def draw(options: list[dict[str, list[int]]], rng: np.random.Generator) -> Triplet:
        slots = options[rng.integers(len(options))]
        anchor, positive, negative = (int(rng.choice(slots[slot])) for slot in SLOTS)
        return anchor, positive, negative

    return {name: partial(draw, options) for name, options in triplets.items()}


def _context(manifest: Manifest) -> dict[str, Draw]:
    """identity -> function that draws a pair of it in one of the three pairings, and an image of another instance."""
    originals: dict[str, list[int]] = defaultdict(list)
    edits: dict[str, list[int]] = defaultdict(list)
    for row, (name, role) in enumerate(zip(manifest.column("identity"), manifest.column("role"), strict=True)):
        if name is not None and role == "real":
            originals[name].append(row)
        elif name is not None and role == "context-edit":
            edits[name].append(row)
    names = sorted(name for name in originals if len(edits[name]) >= 2)
    draw_stranger = _strangers(manifest, {name: originals[name][0] for name in names})

    def draw(name: str, rng: np.random.Generator) -> Triplet | None:
        pairing = PAIRINGS[rng.integers(3)]
        first, second = rng.permutation(edits[name])[:2].tolist()
        original = int(rng.choice(originals[name]))
        if pairing == "original-edited":
            anchor, positive = original, first
        elif pairing == "edited-original":
            anchor, positive = first, original
        else:
            anchor, positive = first, second
        stranger = draw_stranger(rng, anchor)
        if stranger is None:
            return None
        kind = (originals, edits)[rng.integers(2)]
        return anchor, positive, int(rng.choice(kind[stranger]))

    return {name: partial(draw, name) for name in names}


def _strangers(manifest: Manifest, rows: dict[str, int]) -> Callable[[np.random.Generator, int], str | None]:
    """A function that draws an instance of another family than a row's; None if there is no other family.

    Args:
        rows: instance -> one of its rows.
    """
    family = lineages(manifest)
    names = sorted(rows)
    has_several = len(np.unique(family[list(rows.values())])) > 1

    def draw(rng: np.random.Generator, row: int) -> str | None:
        while has_several:
            name = names[rng.integers(len(names))]
            if family[rows[name]] != family[row]:
                return name
        return None

    return draw


def _identity(manifest: Manifest, originals: float) -> dict[str, Draw]:
    """identity -> function that draws two of its originals, and an identity-edit of one of its images or, with
    probability `originals`, an original of another instance."""
    names = manifest.column("identity")
    parents = parent_rows(manifest)
    real: dict[str, list[int]] = defaultdict(list)
    edits: dict[str, list[int]] = defaultdict(list)
    for row, role in enumerate(manifest.column("role")):
        if role == "real" and names[row] is not None:
            real[names[row]].append(row)
        elif role == "identity-edit" and parents[row] >= 0:
            edited = names[parents[row]]
            if edited is not None and edited != names[row]:
                edits[edited].append(row)

    draw_stranger = _strangers(manifest, {name: rows[0] for name, rows in real.items()})

    def draw(name: str, rng: np.random.Generator) -> Triplet | None:
        anchor, positive = rng.permutation(real[name])[:2].tolist()
        if rng.random() >= originals:
            return anchor, positive, int(rng.choice(edits[name]))
        stranger = draw_stranger(rng, anchor)
        return None if stranger is None else (anchor, positive, int(rng.choice(real[stranger])))

    return {name: partial(draw, name) for name in sorted(edits) if len(real.get(name, ())) >= 2}


_NEEDS = {
    "real": "a group with anchor, positive and negative (mine negatives first)",
    "context": "an original, two context-edits, and another instance to be its negative",
    "identity": "two originals and an identity-edit whose parent is in the manifest",
}


def _written(manifest: Manifest, triplets: list[Triplet], name: str) -> Manifest:
    """The rows of triplets as groups of a subset."""
    similarity: list[Any] = [None] * len(manifest)
    if name == "real" and "x_similarity" in manifest.table.column_names:
        values = manifest.column("x_similarity")
        similarity = [None if value is None else float(value) for value in values]  # CSV has text
    roles = manifest.column("role")
    rows: list[Placed] = []
    pairings: list[str | None] = []
    for number, triplet in enumerate(triplets):
        for row, slot in zip(triplet, SLOTS, strict=True):
            rows.append(Placed(row, f"{name}-{number:06d}", slot, similarity[row]))
        pairing = None
        if name == "context":
            kinds = ["edited" if roles[row] == "context-edit" else "original" for row in triplet[:2]]
            pairing = "-".join(kinds)
        pairings += [pairing] * 3
    return grouped(manifest, rows).replace(x_mixture=name, x_pairing=pairings)
