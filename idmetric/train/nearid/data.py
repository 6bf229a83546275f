"""NearID's training tuples: an anchor, other views of it, and near-identity distractors (NearID, section 3.1).

    identities, notes = find(data)
    rows, masked = draw(identities[0], Shape(), generator(seed, step, place))     # (1 + P + K,) each; row -1 = missing

A tuple's slots are the anchor, P positives and K distractors. The tuple follows from the generator alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from idmetric.data.curate.masking import MASK_PROB, draw_masking, require_masks
from idmetric.data.manifest.lineage import VIEW_ROLES, image_keys, parent_rows
from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.train.batches import TRAINING, fingerprint, rows_in

NEAR = ("distractor", "identity-edit", "part-edit")  # roles of images with another identity in a view's context
PARTS = "part-edit"
MISSING = -1  # row of an empty slot

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Identity:
    """An identity with two views or more.

    Attributes:
        views: rows. near: rows of each view's distractors.
        parts: whether all its distractors are part-edits, as in Mind-the-Glitch (MTG).
    """

    views: tuple[int, ...]
    near: tuple[tuple[int, ...], ...]
    parts: bool


@dataclass(frozen=True)
class Shape:
    """The slots of a tuple, and how often its backgrounds are painted black.

    Attributes:
        positives: slots for further views, P. distractors: slots for distractors, K.
        near: distractors of the anchor ("inpainted into the exact same background as the anchor", section 3.1), or one
            of each view in the tuple (released code).
        mask_prob: see `idmetric.data.curate.masking.draw_masking`.
    """

    positives: int = 2
    distractors: int = 3
    near: Literal["anchor", "views"] = "anchor"
    mask_prob: float = MASK_PROB

    @property
    def slots(self) -> tuple[str, ...]:
        """The kind of each slot, as for `draw_masking`."""
        return ("anchor", *["positive"] * self.positives, *["distractor"] * self.distractors)


def find(
    data: Manifest, splits: Collection[str] = TRAINING, engines: Sequence[str] = ()
) -> tuple[list[Identity], list[str]]:
    """Identities with two views or more, in the manifest's order, and notes on the rows that are left out.

    The same image twice counts once. Distractors belong to the view that they were made from (column `parent`).

    Args:
        splits: of the rows to use; "" is that of rows without one.
        engines: generators of the distractors to use; () = all. Part-edits by any generator are used.
    """
    identity, role, engine = (data.column(c) for c in ("identity", "role", "engine"))
    there = {e for e, kind in zip(engine, role, strict=True) if kind in NEAR and kind != PARTS}
    if absent := set(engines) - there:
        named = ", ".join(sorted(e for e in there if e)) or "none named"
        raise ManifestError(f"--engines {' '.join(sorted(absent))}: no distractor is by it; there are {named}")
    first: dict[tuple[str, str | None], int] = {}
    keys = zip(image_keys(data), identity, strict=True)
    shown = [first.setdefault(key, row) for row, key in enumerate(keys)]  # first row of the same image and identity
    parents, usable = parent_rows(data).tolist(), rows_in(data, splits).tolist()
    seen = {row for row in usable if role[row] in VIEW_ROLES}

    left, wrong = Counter[str](), list[int]()
    views: dict[str, dict[int, int]] = defaultdict(dict)
    near: dict[int, dict[int, int]] = defaultdict(dict)
    for row in usable:
        parent = parents[row]
        if row in seen and identity[row] is not None:
            views[identity[row]].setdefault(shown[row], row)
        elif role[row] not in NEAR:
            continue
        elif parent not in seen:
            left["distractors without their view"] += 1
        elif role[row] != PARTS and engines and engine[row] not in engines:
            left["distractors by other engines"] += 1
        elif identity[row] is not None and identity[row] == identity[parent]:
            wrong.append(row)
        else:
            near[shown[parent]].setdefault(shown[row], row)
    if wrong:
        raise ManifestError(
            f"{len(wrong)} distractors, such as row {wrong[0] + 1} ({data.column('id')[wrong[0]]}), have the identity "
            "of the view they were made from: give them another identity in column 'identity', or none; or role "
            "context-edit, if they show the same identity"
        )

    found = []
    for rows in (tuple(own.values()) for own in views.values()):
        if len(rows) < 2:
            left["identities with a single view"] += 1
            continue
        distractors = tuple(tuple(near[shown[view]].values()) for view in rows)
        roles = {role[row] for own in distractors for row in own}
        found.append(Identity(rows, distractors, roles == {PARTS}))
    return found, [f"{count} {what}" for what, count in sorted(left.items())]


def draw(identity: Identity, shape: Shape, rng: Generator) -> tuple[Rows, NDArray[np.bool_]]:
    """A random tuple of an identity: the rows of its slots, -1 for missing ones, and whether they are masked.

    The anchor is any view; positives and distractors are drawn without repetition, as far as they fill the slots. With
    `near="views"` each slot's distractor is a random one of its view, by any generator, as in the released code.
    """
    order = rng.permutation(len(identity.views))[: 1 + shape.positives]
    rows = np.full(len(shape.slots), MISSING, np.int64)
    rows[: len(order)] = [identity.views[k] for k in order]
    if shape.near == "anchor":
        own = identity.near[order[0]]
        near = [own[k] for k in rng.permutation(len(own))[: shape.distractors]]
    else:
        made = [identity.near[k] for k in order if identity.near[k]][: shape.distractors]
        near = [some[rng.integers(len(some))] for some in made]
    start = 1 + shape.positives
    rows[start : start + len(near)] = near
    masked = np.array(draw_masking(shape.slots, int(rng.integers(2**62)), shape.mask_prob), bool)
    return rows, masked & (rows != MISSING)


def items(identities: Sequence[Identity], repeat: int) -> Rows:
    """Identities of an epoch: each once, identities with part-edits alone `repeat` times (MTG, section 3.3)."""
    parts = [k for k, identity in enumerate(identities) if identity.parts]
    return np.concatenate([np.arange(len(identities)), *[np.array(parts, np.int64)] * (repeat - 1)])


def check(
    data: Manifest, identities: Sequence[Identity], shape: Shape, notes: Sequence[str] = (), *, oracle: bool = False
) -> None:
    """Check that a manifest, after `inherit_masks`, is complete enough to train on.

    Args:
        notes: about rows that are left out, for the message. oracle: whether distractors need different oracle scores.
    """
    left = f" (left out: {'; '.join(notes)})" if notes else ""
    if len(identities) < 2:
        raise ManifestError(
            f"{len(identities)} identities have two views in the training rows{left}: NearID needs another view of "
            "each, and other identities as negatives; `idmetric data import nearid` imports them"
        )
    if shape.distractors and not any(any(identity.near) for identity in identities):
        raise ManifestError(
            f"no view has a distractor{left}: a row of role distractor or part-edit whose parent is the view's id; "
            "`idmetric data generate --task distractor` makes them, `idmetric data import nearid` and `import mtg` "
            "import them; --objective info-nce needs none"
        )
    if oracle and not any(_differ(identity, data.column("oracle"), shape) for identity in identities):
        raise ManifestError(
            "no tuple can hold two distractors of different oracle scores, which --objective oracle ranks: give "
            "part-edits with column 'oracle' (`idmetric data import mtg`), and --near views if each view has only one"
        )
    if shape.mask_prob > 0:
        try:
            require_masks(data.take(rows_of(identities)))
        except ManifestError as error:
            raise ManifestError(
                f"{error} (`idmetric data import nearid` and `import mtg` do; edits use the mask of their "
                "parent), or train without black backgrounds: --mask-prob 0"
            ) from error


def _differ(identity: Identity, oracle: Sequence[float | None], shape: Shape) -> bool:
    """Whether a tuple of the identity can hold two distractors of different oracle scores."""
    known = [{oracle[row] for row in rows} - {None} for rows in identity.near]
    if shape.near == "anchor":
        return any(len(scores) > 1 for scores in known)
    return len(set().union(*known)) > 1 and sum(map(bool, known)) > 1


def rows_of(identities: Sequence[Identity]) -> Rows:
    """All rows that tuples may hold."""
    found = {row for identity in identities for rows in (identity.views, *identity.near) for row in rows}
    return np.array(sorted(found), np.int64)


def digest(data: Manifest, identities: Sequence[Identity]) -> str:
    """The fingerprint of the identities and the names of their rows."""
    names = data.column("id")
    groups = ((identity.views, *identity.near) for identity in identities)
    return fingerprint([[[names[row] for row in rows] for rows in group] for group in groups])
