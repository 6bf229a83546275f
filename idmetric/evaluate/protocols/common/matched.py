"""Views of identities with the images made from them in the same contexts: the samples of margins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import VIEW_ROLES, image_keys, matched_sets, parent_rows
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, parameters
from idmetric.evaluate.protocols.common.intervals import any_statistic, mean, ratio
from idmetric.evaluate.protocols.common.result import Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Scorer
from idmetric.evaluate.statistics.margins import OracleAgreement, directed_margins, margin_rates, oracle_agreement

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

_MANY = 64  # views of an identity, at most: a table of more views is probably a mistake


@dataclass(frozen=True)
class Matched:
    """S samples of up to V views; rows of the manifest, -1 = missing.

    Attributes:
        identity: names (S,). source: the source of the made images (S,), such as an engine.
        views: (S, V). made: (S, V), the image made from each view.
    """

    identity: NDArray[np.object_]
    source: NDArray[np.object_]
    views: Ints
    made: Ints

    def __len__(self) -> int:
        return len(self.identity)

    def of_edited_views(self) -> Matched:
        """The samples without views that have no made image in any sample; Mind-the-Glitch edits two views."""
        kept = (self.made >= 0).any(0)
        return Matched(self.identity, self.source, self.views[:, kept], self.made[:, kept])


def matched(
    data: Manifest, roles: Sequence[str], source: Callable[[int], str], usable: Truths | None = None
) -> Matched:
    """Samples of rows of these roles: an identity's views, each with its first, second, ... image from one source.

    `parameters.x_view` (from 1) gives the place of a view, else the manifest's order does; a missing view leaves its
    place empty, and distractors stay with their views. Two rows that show one image are one view.

    Args:
        roles: distractor, identity-edit or part-edit. source: of a row number, its label.
        usable: which rows (N,) count, default all.

    Raises:
        ValueError: if two views of an identity have one place, or there are too many for this protocol.
    """
    keys, names, parent, role = image_keys(data), data.column("identity"), parent_rows(data), data.column("role")
    counted = [row for row in range(len(data)) if usable is None or usable[row]]
    about = parameters(data)
    view: dict[tuple[str, str], int] = {}  # identity and image -> place
    rows: dict[tuple[str, int], int] = {}  # identity and place -> row
    number: Counter[str] = Counter()

    for row in counted:
        name, key = names[row], keys[row]
        if name is None or role[row] not in VIEW_ROLES or (name, key) in view:
            continue
        given = about[row].get("x_view")
        at = number[name] if given is None else int(given) - 1
        if (name, at) in rows or not 0 <= at < _MANY:
            raise ValueError(
                f"row {row + 1}: view {at + 1} of {name!r} is given twice, or not a number from 1 to {_MANY}: this "
                "protocol compares a few views; filter the manifest by role"
            )
        view[name, key], rows[name, at] = at, row
        number[name] += 1

    made = matched_sets(
        (names[parent[row]], view[names[parent[row]], keys[parent[row]]], source(row), row)
        for row in counted
        if role[row] in roles and parent[row] >= 0 and (names[parent[row]], keys[parent[row]]) in view
    )
    width = 1 + max((at for _, at in rows), default=-1)
    views, others = (np.full((len(made), width), -1, dtype=np.int64) for _ in range(2))
    for k, ((name, _, _), own) in enumerate(made.items()):
        views[k] = [rows.get((name, at), -1) for at in range(width)]
        others[k, list(own)] = list(own.values())

    owners, labels = (np.array([key[i] for key in made], dtype=object) for i in (0, 1))
    return Matched(owners, labels, views, others)


def margins_of(scorer: Scorer, samples: Matched, notes: list[str]) -> Array:
    """Margins (S, V * (V - 1)) of samples, see `directed_margins`; adds a note if a judge gave no answer to some."""
    views, width = samples.views, samples.views.shape[1]
    first, last = np.triu_indices(width, 1)
    between = np.full((len(samples), width, width), np.nan)
    between[:, first, last] = _scores(scorer, views[:, first], views[:, last], notes)
    return directed_margins(between, _scores(scorer, views, samples.made, notes))


def _scores(scorer: Scorer, a: Ints, b: Ints, notes: list[str]) -> Array:
    """Scores of rows to rows, each different pair once; NaN where one is missing."""
    out = np.full(a.shape, np.nan)
    there = (a >= 0) & (b >= 0)
    pairs, place = np.unique(np.stack([a[there], b[there]], 1), axis=0, return_inverse=True)
    if len(pairs):
        found = scorer.pairs(pairs[:, 0], pairs[:, 1])
        out[there] = found[place.ravel()]
        lost = int(np.isnan(found).sum())
        if lost:
            notes.append(f"{lost} of {len(found)} comparisons have no answer: what needs them is left out")
    return out


def rates(
    margins: Array, identity: NDArray[np.object_], settings: EvalSettings, *, count_mean: bool = False,
    paper: tuple[float | None, float | None] = (None, None),
) -> dict[str, Value]:  # fmt: skip
    """SSR and PA (NearID, equation 5) with intervals by identity; margins (S, M) as `directed_margins` gives them.

    Raises:
        ValueError: if no margin is valid.
    """
    found = margin_rates(margins, count_mean=count_mean)
    owner = identity[found.samples]
    return {
        "SSR": mean(found.success.astype(np.float64), owner, settings, paper[0]),
        "PA": ratio(found.wins, found.trials, owner, settings, paper[1]),
    }


def part_edits(
    scorer: Scorer, data: Manifest, samples: Matched, settings: EvalSettings, notes: list[str],
    paper: tuple[float | None, float | None] = (None, None),
) -> tuple[dict[str, Value], dict[str, Any]]:  # fmt: skip
    """M-O and M-O-pair with intervals by identity, and a line of items for each view with its own part-edit.

    Values that are not defined are left out.
    """
    left, right = np.broadcast_arrays(samples.views[:, :, None], samples.made[:, None, :])
    scores = _scores(scorer, left, right, notes)  # [s, i, j]: of view i to the image made from view j
    known = np.array([np.nan if x is None else x for x in data.column("oracle")] + [np.nan])
    oracles = known[samples.made]  # -1, a missing image, takes the last

    similarity = np.diagonal(scores, axis1=1, axis2=2)
    there = ~np.isnan(similarity) & ~np.isnan(oracles)
    names = np.broadcast_to(samples.identity[:, None], there.shape)[there].tolist()
    items = {"identity": names, "score": similarity[there], "oracle": oracles[there]}
    return _oracle(scores, oracles, samples.identity, settings, paper), items


def _oracle(
    scores: Array, oracles: Array, identity: NDArray[np.object_], settings: EvalSettings,
    paper: tuple[float | None, float | None],
) -> dict[str, Value]:  # fmt: skip
    try:
        whole: OracleAgreement = oracle_agreement(scores, oracles)
    except ValueError:
        return {}

    def of(which: str, *rows: Array) -> float:
        value = getattr(oracle_agreement(*rows), which)
        if value is None:
            raise ValueError("no similarity to another view's edit")
        return float(value)

    return {
        name: any_statistic(partial(of, which), (scores, oracles), identity, settings, printed, count=count)
        for name, which, count, printed in zip(("M-O", "M-O-pair"), ("whole", "pair"), whole.pairs, paper, strict=True)
        if getattr(whole, which) is not None
    }
