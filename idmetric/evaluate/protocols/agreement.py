"""Agreement with people: models against human labels of pairs or triplets (ID-Sim, appendix D.2; NIGHTS).

    idmetric eval agreement --data labels.csv --model tiny --model hsv --out results/

docs/reference/columns.md defines the columns. In 2AFC a tie loses.

The data is a manifest of groups, as `examples/human_study.py` writes it: a candidate's label is the share of votes for
"same" (anchor, candidate), those of left and right the shares of votes for each (anchor, left, right; NIGHTS). Labels
count from an agreement of 0.8 (`--agreement`): max(p, 1 - p), p the share of votes. Pairs below it are left out of AP
and AUC; ID-Sim counts them as different instead (`--undecided different`).

Intervals are by identity: the identities of both images of a pair, and the anchor's of a triplet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from idmetric.data.split import image_keys
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, groups
from idmetric.evaluate.protocols.common.intervals import COSINE, SHARE, any_statistic, auc, codes, mean
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, answered, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.agreement import kendall, spearman
from idmetric.evaluate.statistics.ranking import average_precision

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class AgreementOptions(Checked):
    """Options of the protocol `agreement`."""

    agreement: float = option(
        0.8,
        "share of votes for one answer from which a label counts, above 0.5 (default 0.8, as in ID-Sim)",
        metavar="SHARE",
    )
    undecided: Literal["drop", "different"] = option(
        "drop", "pairs with less agreement: drop (default) leaves them out of AP and AUC, different is ID-Sim's rule"
    )

    def __post_init__(self) -> None:
        if not 0.5 < self.agreement <= 1:
            raise ValueError(f"agreement is above 0.5 and at most 1, got {self.agreement}")


COLUMNS = {
    "2AFC": Column("share of triplets in which the model chooses as people do", 1, "NIGHTS"),
}

Task = Literal["pairs", "triplets"]
SLOTS: dict[Task, tuple[str, ...]] = {"pairs": ("anchor", "candidate"), "triplets": ("anchor", "left", "right")}
_ROUNDING = 1e-9  # 1 - 0.2 may be a little below 0.8

# of N pairs or triplets: rows (S, N) of the images in each slot; share (N,) of votes for "same", or for left; and the
# units of intervals, (N, 2) or (N,), see `owners`
Labeled = tuple[Ints, Array, Ints]


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: AgreementOptions = AgreementOptions(),
) -> list[Result]:
    """A result for each model: a row for pairs and one for triplets, as far as the manifest has them.

    Raises:
        ValueError: if there are no labeled pairs or triplets, or a label is not a share.
    """
    labeled(data)  # before anything is embedded
    bound = bind(data, models, settings)
    tasks = labeled(bound.manifest)
    about = {**settings.as_dict(), "agreement": options.agreement, "undecided": options.undecided}
    results = []
    for scorer, result in bound.results("agreement", about):
        for task, items in tasks.items():
            _measure(scorer, bound.manifest, task, items, settings, options, result)
        results.append(result)
    return results


def labeled(data: DataFrame) -> dict[Task, Labeled]:
    """The labeled pairs and triplets of a manifest; groups without labels are passed over.

    Raises:
        ValueError: if there are none, or naming a row with a label that is not a share.
    """
    tasks: dict[Task, Labeled] = {}
    for task in SLOTS:
        labeled_groups = list(_groups(data, task))
        if labeled_groups:
            rows = np.array([rows for rows, _ in labeled_groups], dtype=np.int64)
            shares = np.array([share for _, share in labeled_groups])
            tasks[task] = rows.T, shares, owners(data, rows)

    if not tasks:
        raise ValueError(
            "no labeled pairs or triplets: each is a group with the slots anchor and candidate, or anchor, left and "
            "right, and labels of 0 to 1"
        )
    return tasks


def owners(data: DataFrame, items: Ints) -> Ints:
    """The units that intervals draw: the identities (N, 2) of a pair's images, or (N,) of a triplet's anchor.

    An image of unknown identity counts with its anchor, and an anchor of unknown identity for itself.

    Args:
        items: (N, 2) rows of pairs, or (N, 3) of triplets.
    """
    identity = codes(data["identity"])
    image = codes(image_keys(data))
    anchor = items[:, 0]
    anchor_owner: Ints = np.where(identity[anchor] < 0, -1 - image[anchor], identity[anchor])
    if items.shape[1] == 3:
        return anchor_owner
    candidate = items[:, 1]
    candidate_owner = np.where(identity[candidate] < 0, anchor_owner, identity[candidate])
    return np.stack([anchor_owner, candidate_owner], 1)


def _groups(data: DataFrame, task: Task) -> Iterator[tuple[list[int], float]]:
    """The rows of each group that has all slots of the task and labels, and the share of votes for the first choice."""
    slots = SLOTS[task]
    label = data["label"]
    for (group, _), rows_of in groups(data).items():
        for slot in slots:
            if len(rows_of.get(slot, [])) > 1:
                row = rows_of[slot][1]
                raise ValueError(f"row {row + 1}: a second {slot} of group {group!r}: a group is one pair or triplet")
        rows = [rows_of[slot][0] for slot in slots if slot in rows_of]
        if len(rows) < len(slots) or np.isnan(label[rows[1]]):
            continue
        share = label[rows[1]]
        if not 0 <= share <= 1:
            raise ValueError(f"row {rows[1] + 1}: label {share:g} is not a share of votes, 0 to 1")
        yield rows, float(share)


def _measure(
    scorer: Scorer,
    data: DataFrame,
    task: Task,
    items: Labeled,
    settings: EvalSettings,
    options: AgreementOptions,
    result: Result,
) -> None:
    """Add a row, the items and notes to a result."""
    sides, shares, units = items
    scores = scorer.pairs(sides[0], sides[1])
    if task == "triplets":
        scores = scores - scorer.pairs(sides[0], sides[2])  # how much more similar left is
    has_answer = answered(scores, task, result.notes)
    scores, share, owner = scores[has_answer], shares[has_answer], units[has_answer]
    is_agreed: Truths = np.maximum(share, 1 - share) >= options.agreement - _ROUNDING
    if not is_agreed.all():
        undecided = "are left out"
        if task == "pairs":
            as_different = options.undecided == "different"
            undecided = "count as different" if as_different else "are left out of all but the rank correlations"
        count = f"{int((~is_agreed).sum())} of {len(is_agreed)} {task}"
        result.notes.append(f"people agree by less than {options.agreement:g} on {count}, which {undecided}")

    names = data["id"].to_numpy()
    ids = {slot: names[side[has_answer]] for slot, side in zip(SLOTS[task], sides, strict=True)}
    if task == "triplets":
        margin = np.where(share >= 0.5, scores, -scores)  # of the image that people chose
        result.keep("triplets", margin=margin, share=share, **ids)
        if is_agreed.any():
            won = (margin > 0)[is_agreed].astype(np.float64)
            result.rows.append({"task": "triplets", "2AFC": mean(won, owner[is_agreed], settings)})
        return

    same = share >= options.agreement - _ROUNDING
    is_used = is_agreed | (options.undecided == "different")
    a, b = ids.values()
    result.keep(
        "pairs",
        a=a[is_used],
        b=b[is_used],
        score=scores[is_used],
        same=same[is_used],
        share=share[is_used],
    )
    result.keep("votes", a=a, b=b, score=scores, share=share)

    # AP and AUC of the pairs that people agree on, and rank correlations of all
    row: dict[str, Value] = {}
    areas = auc(scores[is_used], same[is_used], owner[is_used], settings)
    if areas:
        columns = scores[is_used], same[is_used]
        row["AP"] = any_statistic(average_precision, columns, owner[is_used], settings, limits=SHARE)
        row |= areas
    else:
        result.notes.append(f"AP and AUC need pairs of both kinds: people found {same.sum()} of {len(same)} the same")
    if np.ptp(share) and np.ptp(scores):
        row["Spearman"] = any_statistic(spearman, (scores, share), owner, settings, limits=COSINE)
        row["Kendall"] = any_statistic(kendall, (scores, share), owner, settings, limits=COSINE)
    else:
        result.notes.append("no rank correlation: scores or shares of votes do not vary")
    result.rows.append({"task": "pairs", **row})


PROTOCOL = Protocol(
    name="agreement",
    run=run,
    options=AgreementOptions,
    columns=COLUMNS,
)
