"""NearID's training tuples: an anchor, other views of it, and near-identity distractors (NearID, section 3.1).

    identities, notes = find(data)
    rows, masked = draw(identities[0], Shape(), generator(seed, step, place))     # (1 + P + K,) each; row -1 = missing

A tuple's slots are the anchor, P positives and K distractors. The tuple follows from the generator alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from idmetric.data.curate.masking import MASK_PROB, draw_masking, require_masks
from idmetric.data.manifest import ManifestError, take
from idmetric.data.split import VIEW_ROLES, parent_rows
from idmetric.train.batches import TRAINING, fingerprint, first_rows, rows_in

if TYPE_CHECKING:
    from pandas import DataFrame, Series

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
    data: DataFrame, splits: Collection[str] = TRAINING, engines: Sequence[str] = ()
) -> tuple[list[Identity], list[str]]:
    """Identities with two views or more, in the manifest's order, and notes on the rows that are left out.

    The same image twice counts once. Distractors belong to the view that they were made from (column `parent`).

    Args:
        splits: of the rows to use; "" is that of rows without one.
        engines: generators of the distractors to use; () = all. Part-edits by any generator are used.
    """
    _check_engines(engines, data)
    identity = data["identity"].tolist()
    role = data["role"].tolist()
    engine = data["engine"].tolist()
    image_row = first_rows(data).tolist()
    parents = parent_rows(data).tolist()
    usable = rows_in(data, splits).tolist()
    view_rows = {row for row in usable if role[row] in VIEW_ROLES}
    left_out = Counter[str]()
    same_identity = []
    views: dict[str, dict[int, int]] = defaultdict(dict)  # identity -> image -> row
    distractors: dict[int, dict[int, int]] = defaultdict(dict)  # image of the view -> image -> row
    for row in usable:
        parent = parents[row]
        if row in view_rows and identity[row] is not None:
            views[identity[row]].setdefault(image_row[row], row)
        elif role[row] not in NEAR:
            continue
        elif parent not in view_rows:
            left_out["distractors without their view"] += 1
        elif role[row] != PARTS and engines and engine[row] not in engines:
            left_out["distractors by other engines"] += 1
        elif identity[row] is not None and identity[row] == identity[parent]:
            same_identity.append(row)
        else:
            distractors[image_row[parent]].setdefault(image_row[row], row)
    if same_identity:
        example = same_identity[0]
        raise ManifestError(
            f"{len(same_identity)} distractors, such as row {example + 1} ({data['id'][example]}), have the "
            "identity of the view they were made from: give them another identity in column 'identity', or none; or "
            "role context-edit, if they show the same identity"
        )

    identities = []
    for images in views.values():
        rows = tuple(images.values())
        if len(rows) < 2:
            left_out["identities with a single view"] += 1
            continue
        near = tuple(tuple(distractors[image_row[view]].values()) for view in rows)
        roles = {role[row] for view_distractors in near for row in view_distractors}
        identities.append(Identity(rows, near, roles == {PARTS}))
    return identities, [f"{count} {reason}" for reason, count in sorted(left_out.items())]


def _check_engines(engines: Sequence[str], data: DataFrame) -> None:
    """Refuse engines that made none of the distractors."""
    is_distractor = data["role"].isin(NEAR) & (data["role"] != PARTS)
    found = set(data["engine"][is_distractor].dropna())
    absent = set(engines) - found
    if absent:
        listed = ", ".join(sorted(found)) or "none named"
        raise ManifestError(f"--engines {' '.join(sorted(absent))}: no distractor is by it; there are {listed}")


def draw(identity: Identity, shape: Shape, rng: Generator) -> tuple[Rows, NDArray[np.bool_]]:
    """A random tuple of an identity: the rows of its slots, -1 for missing ones, and whether they are masked.

    The anchor is any view; positives and distractors are drawn without repetition, as far as they fill the slots. With
    `near="views"` each slot's distractor is a random one of its view, by any generator, as in the released code.
    """
    order = rng.permutation(len(identity.views))[: 1 + shape.positives]
    rows = np.full(len(shape.slots), MISSING, np.int64)
    rows[: len(order)] = [identity.views[k] for k in order]
    if shape.near == "anchor":
        candidates = identity.near[order[0]]
        distractors = [candidates[k] for k in rng.permutation(len(candidates))[: shape.distractors]]
    else:
        with_distractors = [view for view in order if identity.near[view]]
        distractors = [rng.choice(identity.near[view]) for view in with_distractors[: shape.distractors]]
    start = 1 + shape.positives
    rows[start : start + len(distractors)] = distractors
    masked = np.array(draw_masking(shape.slots, int(rng.integers(2**62)), shape.mask_prob), bool)
    return rows, masked & (rows != MISSING)


def items(identities: Sequence[Identity], repeat: int) -> Rows:
    """Identities of an epoch: each once, identities with part-edits alone `repeat` times (MTG, section 3.3)."""
    has_parts = np.flatnonzero([identity.parts for identity in identities])
    return np.concatenate([np.arange(len(identities)), np.tile(has_parts, repeat - 1)])


def check(
    data: DataFrame, identities: Sequence[Identity], shape: Shape, notes: Sequence[str] = (), *, oracle: bool = False
) -> None:
    """Check that a manifest, after `inherit_masks`, is complete enough to train on.

    Args:
        notes: about rows that are left out, for the message. oracle: whether distractors need different oracle scores.
    """
    left_out = f" (left out: {'; '.join(notes)})" if notes else ""
    if len(identities) < 2:
        raise ManifestError(
            f"{len(identities)} identities have two views in the training rows{left_out}: NearID needs another view of "
            "each, and other identities as negatives; `idmetric data import nearid` imports them"
        )
    if shape.distractors and not any(any(identity.near) for identity in identities):
        raise ManifestError(
            f"no view has a distractor{left_out}: a row of role distractor or part-edit whose parent is the view's id; "
            "`idmetric data generate --task distractor` makes them, `idmetric data import nearid` and `import mtg` "
            "import them; a folder of photos alone trains by --objective info-nce --mask-prob 0, or by `idmetric train "
            "ilgen`"
        )
    if oracle and not any(_differ(identity, data["oracle"], shape) for identity in identities):
        raise ManifestError(
            "no tuple can hold two distractors of different oracle scores, which --objective oracle ranks: give "
            "part-edits with column 'oracle' (`idmetric data import mtg`), and --near views if each view has only one"
        )
    if shape.mask_prob > 0:
        try:
            require_masks(take(data, rows_of(identities)))
        except ManifestError as error:
            raise ManifestError(
                f"{error} (`idmetric data import nearid` and `import mtg` do; edits use the mask of their "
                "parent), or train without black backgrounds: --mask-prob 0"
            ) from error


def _differ(identity: Identity, oracle: Series, shape: Shape) -> bool:
    """Whether a tuple of the identity can hold two distractors of different oracle scores."""
    scores_of_views = [set(oracle[list(rows)].dropna()) for rows in identity.near]
    if shape.near == "anchor":
        return any(len(scores) > 1 for scores in scores_of_views)
    views_with_scores = [scores for scores in scores_of_views if scores]
    return len(views_with_scores) > 1 and len(set().union(*views_with_scores)) > 1


def rows_of(identities: Sequence[Identity]) -> Rows:
    """All rows that tuples may hold."""
    rows: set[int] = set()
    for identity in identities:
        rows.update(identity.views, *identity.near)
    return np.array(sorted(rows), np.int64)


def digest(data: DataFrame, identities: Sequence[Identity]) -> str:
    """The fingerprint of the identities and the names of their rows."""
    names = data["id"].tolist()
    named_groups = []
    for identity in identities:
        groups = [identity.views, *identity.near]
        named_groups.append([[names[row] for row in rows] for rows in groups])
    return fingerprint(named_groups)
