"""Views of identities with the images made from them in the same contexts: the samples of margins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import VIEW_ROLES, image_keys, matched_sets, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.margins import OracleAgreement, directed_margins, margin_rates, oracle_agreement
from idmetric.protocols.common.columns import Array, Ints, Truths, parameters
from idmetric.protocols.common.intervals import any_statistic, mean, ratio
from idmetric.protocols.common.result import Value
from idmetric.protocols.common.scorers import Scorer, Settings

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

    def take(self, chosen: Truths) -> Matched:
        """Some samples."""
        return Matched(self.identity[chosen], self.source[chosen], self.views[chosen], self.made[chosen])

    def of_edited_views(self) -> Matched:
        """The samples without views that have no made image in any sample; Mind-the-Glitch edits two views."""
        kept = (self.made >= 0).any(0)
        return Matched(self.identity, self.source, self.views[:, kept], self.made[:, kept])


def matched(data: Manifest, roles: Sequence[str], source: Callable[[int], str]) -> Matched:
    """Samples of rows of these roles: an identity's views, each with its first, second, ... image from one source.

    `parameters.x_view` (from 1) gives the place of a view, else the manifest's order does; a missing view leaves its
    place empty, and distractors stay with their views. Two rows that show one image are one view.

    Args:
        roles: distractor, identity-edit or part-edit. source: of a row number, its label.

    Raises:
        ValueError: if two views of an identity have one place, or there are too many for this protocol.
    """
    places = _places(data)
    view_of = {(name, key): (name, at) for name, own in places.items() for at, (_, key) in own.items()}
    keys, names, parent = image_keys(data), data.column("identity"), parent_rows(data)
    made = matched_sets(
        (*view_of[names[parent[row]], keys[parent[row]]], source(row), row)
        for row, role in enumerate(data.column("role"))
        if role in roles and parent[row] >= 0 and (names[parent[row]], keys[parent[row]]) in view_of
    )
    width = 1 + max((max(own) for own in places.values()), default=0)
    views, rows = (np.full((len(made), width), -1, dtype=np.int64) for _ in range(2))
    for k, ((name, _, _), own) in enumerate(made.items()):
        for at, (row, _) in places[name].items():
            views[k, at] = row
        rows[k, list(own)] = list(own.values())

    owners, labels = ([key[i] for key in made] for i in (0, 1))
    return Matched(np.array(owners, dtype=object), np.array(labels, dtype=object), views, rows)


def _places(data: Manifest) -> dict[str, dict[int, tuple[int, str]]]:
    """Identity -> place of each view -> its row and image."""
    columns = (data.column("identity"), data.column("role"), image_keys(data), parameters(data))
    found: dict[str, dict[int, tuple[int, str]]] = {}
    seen: set[tuple[str, str]] = set()

    for row, (name, role, key, about) in enumerate(zip(*columns, strict=True)):
        if name is None or role not in VIEW_ROLES or (name, key) in seen:
            continue
        seen.add((name, key))
        own = found.setdefault(name, {})
        at = int(about["x_view"]) - 1 if about.get("x_view") is not None else len(own)
        if at in own or at < 0:
            raise ValueError(f"row {row + 1}: view {at + 1} of {name!r} is given twice, or not a number from 1")
        if at >= _MANY:
            raise ValueError(
                f"{name!r} has more than {_MANY} views: this protocol compares a few; filter the manifest by role"
            )
        own[at] = (row, key)

    return found


# Scores


def margins_of(scorer: Scorer, samples: Matched, notes: list[str]) -> Array:
    """Margins (S, V * (V - 1)) of samples, see `directed_margins`; adds a note if a judge gave some no answer."""
    views, width = samples.views, samples.views.shape[1]
    first, last = np.triu_indices(width, 1)
    between = np.full((len(samples), width, width), np.nan)
    between[:, first, last] = _scores(scorer, views[:, first], views[:, last])
    margins = directed_margins(between, _scores(scorer, views, samples.made))

    there = np.where(views >= 0, 0.0, np.nan)
    possible = directed_margins(there[:, :, None] + there[:, None, :], np.where(samples.made >= 0, there, np.nan))
    wanted = ~np.isnan(possible)
    lost = int((wanted & np.isnan(margins)).sum())
    if lost:
        notes.append(f"{lost} of {int(wanted.sum())} margins have no answer and are left out")
    return margins


def _scores(scorer: Scorer, a: Ints, b: Ints) -> Array:
    """Scores of rows to rows, each different pair once."""
    out = np.full(a.shape, np.nan)
    there = (a >= 0) & (b >= 0)
    pairs, place = np.unique(np.stack([a[there], b[there]], 1), axis=0, return_inverse=True)
    if len(pairs):
        out[there] = scorer.pairs(pairs[:, 0], pairs[:, 1])[place.ravel()]
    return out


# Numbers


def rates(
    margins: Array, identity: NDArray[np.object_], settings: Settings, *, count_mean: bool = False,
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
    scorer: Scorer, data: Manifest, samples: Matched, settings: Settings,
    paper: tuple[float | None, float | None] = (None, None),
) -> tuple[dict[str, Value], dict[str, Any]]:  # fmt: skip
    """M-O and M-O-pair with intervals by identity, and a line of items for each view with its own part-edit.

    Values that are not defined are left out.
    """
    left, right = np.broadcast_arrays(samples.views[:, :, None], samples.made[:, None, :])
    scores = _scores(scorer, left, right)  # [s, i, j]: of view i to the image made from view j
    known = np.array([np.nan if x is None else x for x in data.column("oracle")] + [np.nan])
    oracles = known[samples.made]  # -1, a missing image, takes the last

    similarity = np.diagonal(scores, axis1=1, axis2=2)
    there = ~np.isnan(similarity) & ~np.isnan(oracles)
    names = np.broadcast_to(samples.identity[:, None], there.shape)[there].tolist()
    items = {"identity": names, "score": similarity[there], "oracle": oracles[there]}
    return _oracle(scores, oracles, samples.identity, settings, paper), items


def _oracle(
    scores: Array, oracles: Array, identity: NDArray[np.object_], settings: Settings,
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
