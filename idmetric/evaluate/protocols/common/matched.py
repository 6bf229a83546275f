"""Views of identities with the images made from them in the same contexts: the samples of margins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.split import VIEW_ROLES, image_keys, parent_rows
from idmetric.evaluate.protocols.common.columns import Array, Ints, parameters
from idmetric.evaluate.protocols.common.intervals import COSINE, Names, any_statistic, mean, ratio
from idmetric.evaluate.protocols.common.paper_numbers import NONE, Pair
from idmetric.evaluate.protocols.common.result import Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Scorer
from idmetric.evaluate.statistics.margins import directed_margins, margin_rates, oracle_agreement

if TYPE_CHECKING:
    from pandas import DataFrame

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
        is_edited = (self.made >= 0).any(0)
        views = self.views[:, is_edited]
        return replace(self, views=views, made=self.made[:, is_edited])


def matched(data: DataFrame, roles: Sequence[str], sources: Sequence[str]) -> Matched:
    """Samples of rows of these roles: an identity's views, each with its first, second, ... image from one source.

    `parameters.x_view` (from 1) gives the place of a view, else the manifest's order does; a missing view leaves its
    place empty, and distractors stay with their views. Two rows that show one image are one view.

    Args:
        roles: distractor, identity-edit or part-edit. sources: label (N,) of each row, such as its engine.

    Raises:
        ValueError: if two views of an identity have one place, or there are too many for this protocol.
    """
    keys = image_keys(data)
    names = data["identity"].tolist()
    parents = parent_rows(data)
    number_of_view: dict[tuple[str, str], int] = {}  # identity and image -> number of the view
    rows: dict[tuple[str, int], int] = {}  # identity and number of the view -> row
    view_counts: Counter[str] = Counter()
    values_of = parameters(data)

    is_view = data["role"].isin(VIEW_ROLES) & data["identity"].notna()
    for row in np.flatnonzero(is_view).tolist():
        name, key = names[row], keys[row]
        if (name, key) in number_of_view:
            continue
        number = view_counts[name]
        stated = values_of[row].get("x_view")
        if stated is not None:
            number = int(stated) - 1
        if (name, number) in rows or not 0 <= number < _MANY:
            raise ValueError(
                f"row {row + 1}: view {number + 1} of {name!r} is given twice, or not a number from 1 to {_MANY}: this "
                "protocol compares a few views; filter the manifest by role"
            )
        number_of_view[name, key] = number
        rows[name, number] = row
        view_counts[name] += 1

    # the images made from each view by one source, in their order (NearID, section 3.4)
    samples: dict[tuple[str, str, int], dict[int, int]] = {}  # identity, source, n -> number of the view -> row
    edit_counts: Counter[tuple[str, int, str]] = Counter()
    is_edit = data["role"].isin(roles) & (parents >= 0)
    for row in np.flatnonzero(is_edit).tolist():
        name = names[parents[row]]
        number_of_parent = number_of_view.get((name, keys[parents[row]]))
        if number_of_parent is None:
            continue
        edits_of_view = name, number_of_parent, sources[row]
        sample_key = name, sources[row], edit_counts[edits_of_view]
        edit_counts[edits_of_view] += 1
        samples.setdefault(sample_key, {})[number_of_parent] = row

    width = 1 + max((number for _, number in rows), default=-1)
    shape = len(samples), width
    views = np.full(shape, -1, dtype=np.int64)
    edited = np.full(shape, -1, dtype=np.int64)
    identities, labels = [], []
    for sample, ((name, label, _), edited_rows) in enumerate(samples.items()):
        identities.append(name)
        labels.append(label)
        views[sample] = [rows.get((name, number), -1) for number in range(width)]
        edited[sample, list(edited_rows)] = list(edited_rows.values())
    return Matched(np.array(identities, dtype=object), np.array(labels, dtype=object), views, edited)


def margins_of(scorer: Scorer, samples: Matched, notes: list[str]) -> Array:
    """Margins (S, V * (V - 1)) of samples, see `directed_margins`; adds a note if a judge gave no answer to some."""
    views = samples.views
    count, width = views.shape
    i, j = np.triu_indices(width, 1)
    scores_of_pairs = _scores(scorer, views[:, i], views[:, j], notes)
    between_views = np.full((count, width, width), np.nan)
    between_views[:, i, j] = scores_of_pairs
    to_edits = _scores(scorer, views, samples.made, notes)
    return directed_margins(between_views, to_edits)


def _scores(scorer: Scorer, a: Ints, b: Ints, notes: list[str]) -> Array:
    """Scores of rows to rows; NaN where one is missing."""
    scores = np.full(a.shape, np.nan)
    exists = (a >= 0) & (b >= 0)
    if not exists.any():
        return scores
    answers = scorer.pairs(a[exists], b[exists])
    scores[exists] = answers
    lost = int(np.isnan(answers).sum())
    if lost:
        notes.append(f"{lost} of {len(answers)} comparisons have no answer: what needs them is left out")
    return scores


def rates(
    margins: Array,
    identity: Names,
    settings: EvalSettings,
    *,
    count_mean: bool = False,
    paper: Pair = NONE,
) -> dict[str, Value]:
    """SSR and PA (NearID, equation 5) with intervals by identity; margins (S, M) as `directed_margins` gives them.

    Raises:
        ValueError: if no margin is valid.
    """
    counts = margin_rates(margins, count_mean=count_mean)
    owner = identity[counts.samples]
    success = counts.success.astype(np.float64)
    ssr_of_paper, pa_of_paper = paper
    ssr = mean(success, owner, settings, ssr_of_paper)
    pa = ratio(counts.wins, counts.trials, owner, settings, pa_of_paper)
    return {"SSR": ssr, "PA": pa}


def part_edits(
    scorer: Scorer,
    data: DataFrame,
    samples: Matched,
    settings: EvalSettings,
    notes: list[str],
    paper: Pair = NONE,
) -> tuple[dict[str, Value], dict[str, Any]]:
    """M-O and M-O-pair with intervals by identity, and a line of items for each view with its own part-edit.

    Values that are not defined are left out.
    """
    views, edits = np.broadcast_arrays(samples.views[:, :, None], samples.made[:, None, :])
    scores = _scores(scorer, views, edits, notes)  # [s, i, j]: of view i to the image made from view j
    oracle_of_row = np.append(data["oracle"], np.nan)
    oracles = oracle_of_row[samples.made]  # -1, a missing image, takes the last

    # the views with their own part-edits
    similarity = np.diagonal(scores, axis1=1, axis2=2)
    is_valid = ~np.isnan(similarity) & ~np.isnan(oracles)
    names = samples.identity[np.nonzero(is_valid)[0]]
    items = {
        "identity": names.tolist(),
        "score": similarity[is_valid],
        "oracle": oracles[is_valid],
    }

    try:
        agreement = oracle_agreement(scores, oracles)
    except ValueError:
        return {}, items
    values = {}
    columns = {"M-O": "whole", "M-O-pair": "pair"}
    for number, (column, field) in enumerate(columns.items()):
        if getattr(agreement, field) is not None:
            values[column] = any_statistic(
                partial(_agreement, field),
                (scores, oracles),
                samples.identity,
                settings,
                paper[number],
                count=agreement.pairs[number],
                limits=COSINE,
            )
    return values, items


def _agreement(field: str, scores: Array, oracles: Array) -> float:
    value = getattr(oracle_agreement(scores, oracles), field)
    if value is None:
        raise ValueError("no similarity to another view's edit")
    return float(value)
