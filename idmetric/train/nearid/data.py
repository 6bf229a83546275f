"""NearID's training tuples: an anchor, other views of it, and near-identity distractors (NearID, section 3.1).

    identities, notes = find(data)
    rows, masked = draw(identities[0], Shape(), generator(seed, step, place))     # (1 + P + K,) each; row -1 = missing

A tuple's slots are the anchor, P positives and K distractors. What is drawn follows from the generator alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from idmetric.data.curate.masking import MASK_PROB, MASK_PROB_APN, draw_masking
from idmetric.data.manifest.lineage import VIEW_ROLES, parent_rows
from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.train.splits import TRAINING

NEAR = ("distractor", "identity-edit", "part-edit")  # roles of those that show another one in a view's place
PARTS = "part-edit"
MISSING = -1  # row of a slot that is empty
_SHOWN = 5

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Identity:
    """An identity with two views or more.

    Attributes:
        views: rows. near: rows of each view's distractors.
        parts: whether part-edits are all the distractors that it has, as in Mind-the-Glitch (MTG).
    """

    views: tuple[int, ...]
    near: tuple[tuple[int, ...], ...]
    parts: bool


@dataclass(frozen=True)
class Shape:
    """What a tuple holds, and how often its backgrounds are painted black.

    Attributes:
        positives: slots for other views than the anchor, P. distractors: slots for distractors, K.
        near: distractors of the anchor ("inpainted into the exact same background as the anchor", section 3.1), or one
            of each view in the tuple (released code).
        mask_prob, mask_prob_apn: see `idmetric.data.curate.masking.draw_masking`.
    """

    positives: int = 2
    distractors: int = 3
    near: Literal["anchor", "views"] = "anchor"
    mask_prob: float = MASK_PROB
    mask_prob_apn: tuple[float, float, float] = MASK_PROB_APN

    @property
    def slots(self) -> tuple[str, ...]:
        """What each slot is for, in words of `draw_masking`."""
        return ("anchor", *["positive"] * self.positives, *["distractor"] * self.distractors)


def find(
    data: Manifest, splits: Collection[str] = TRAINING, engines: Sequence[str] = ()
) -> tuple[list[Identity], list[str]]:
    """Identities with two views or more, in the manifest's order, and what was left out, in words.

    The same image twice counts once. Distractors belong to the view that they were made from (column `parent`).

    Args:
        splits: of the rows to use; "" is that of rows without one.
        engines: the generators whose distractors are used; () = all. Part-edits are used whatever made them.

    Raises:
        ManifestError: naming distractors that claim to be of their view's own identity, or engines that are not there.
    """
    table = _Table(data, splits, engines)
    left = Counter[str]()
    near = table.distractors(left)
    found = []
    for views in table.views().values():
        if len(views) < 2:
            left["identities with a single view"] += 1
            continue
        own = tuple(tuple(near[table.shown[view]]) for view in views)
        roles = {table.role[row] for rows in own for row in rows}
        found.append(Identity(tuple(views), own, roles == {PARTS}))
    return found, [f"{count} {what}" for what, count in sorted(left.items())]


class _Table:
    """The columns that matter, and which rows show the same image of the same identity."""

    def __init__(self, data: Manifest, splits: Collection[str], engines: Sequence[str]) -> None:
        self.identity, self.role, self.engine = (data.column(c) for c in ("identity", "role", "engine"))
        self.name, self.parent = data.column("id"), parent_rows(data)
        self.usable = [(split or "").casefold() in splits for split in data.column("split")]
        first: dict[tuple[str, str | None], int] = {}
        keys = zip(image_keys(data), self.identity, strict=True)
        self.shown = [first.setdefault(key, row) for row, key in enumerate(keys)]
        self.engines = frozenset(engines)
        there = {e for e, role in zip(self.engine, self.role, strict=True) if role in NEAR and role != PARTS}
        if absent := self.engines - there:
            named = ", ".join(sorted(e for e in there if e)) or "none named"
            raise ManifestError(f"--engines {' '.join(sorted(absent))}: no distractor is by it; there are {named}")

    def views(self) -> dict[str, list[int]]:
        """Rows of each identity's different images."""
        found: dict[str, dict[int, int]] = defaultdict(dict)
        for row, identity in enumerate(self.identity):
            if identity is not None and self.usable[row] and self.role[row] in VIEW_ROLES:
                found[identity].setdefault(self.shown[row], row)
        return {identity: list(rows.values()) for identity, rows in found.items()}

    def distractors(self, left: Counter[str]) -> dict[int, list[int]]:
        """Rows of different distractors by the image that they were made from."""
        found: dict[int, dict[int, int]] = defaultdict(dict)
        wrong = []
        for row in np.flatnonzero(np.isin(self.role, NEAR) & np.array(self.usable, bool)).tolist():
            parent = int(self.parent[row])
            if parent < 0 or self.role[parent] not in VIEW_ROLES or not self.usable[parent]:
                left["distractors whose view is not there"] += 1
            elif self.role[row] != PARTS and self.engines and self.engine[row] not in self.engines:
                left["distractors by other engines"] += 1
            elif self.identity[row] is not None and self.identity[row] == self.identity[parent]:
                wrong.append(row)
            else:
                found[self.shown[parent]].setdefault(self.shown[row], row)
        if wrong:
            listed = ", ".join(f"row {row + 1} ({self.name[row]})" for row in wrong[:_SHOWN])
            raise ManifestError(
                f"{len(wrong)} distractors have the identity of the view they were made from: {listed}: give them an "
                "identity of their own in column 'identity', or none; or role context-edit, if they show the same thing"
            )
        return defaultdict(list, {view: list(rows.values()) for view, rows in found.items()})


def draw(identity: Identity, shape: Shape, rng: Generator) -> tuple[Rows, NDArray[np.bool_]]:
    """A random tuple of an identity: rows of its slots, -1 for missing ones, and which are masked.

    The anchor is any view; positives and distractors are drawn without repetition, all there are if there are fewer
    than slots. With `near="views"` each slot's distractor is one of its view's at random: any generator's, as in the
    released code.
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
    seed = rng.integers(2**62)
    masked = np.array(draw_masking(shape.slots, int(seed), shape.mask_prob, shape.mask_prob_apn), bool)
    return rows, masked & (rows != MISSING)


def items(identities: Sequence[Identity], repeat: int) -> Rows:
    """What an epoch goes through: each identity once, those with part-edits alone `repeat` times (MTG, section 3.3)."""
    parts = [k for k, identity in enumerate(identities) if identity.parts]
    return np.concatenate([np.arange(len(identities)), *[np.array(parts, np.int64)] * (repeat - 1)])
