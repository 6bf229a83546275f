"""Agreement with people: models against human labels of pairs or triplets (ID-Sim, appendix D.2; NIGHTS).

    idmetric eval agreement --data labels.csv --model tiny --model hsv --out results/

docs/columns.md defines the columns. In 2AFC a tie loses.

The data is a manifest of groups, as `examples/human_study.py` writes it: a candidate's label is the share of votes for
"same" (anchor, candidate), those of left and right the shares of votes for each (anchor, left, right; NIGHTS). Labels
count from an agreement of 0.8 (`--agreement`): max(p, 1 - p), p the share of votes. Pairs below it are left out of AP
and AUC; ID-Sim counts them as different instead (`--undecided different`).

Intervals are by identity: the identities of both images of a pair, and the anchor's of a triplet, see `owners`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from idmetric.data.manifest.lineage import image_keys
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, groups, texts
from idmetric.evaluate.protocols.common.intervals import any_statistic, auc, codes, mean
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.statistics.agreement import kendall, spearman
from idmetric.evaluate.statistics.ranking import average_precision
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


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
    data: Manifest,
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
    found = labeled(bound.manifest)
    about = {**settings.as_dict(), "agreement": options.agreement, "undecided": options.undecided}
    results = []
    for scorer, result in bound.results("agreement", about):
        for task, items in found.items():
            _measure(scorer, bound.manifest, task, items, settings, options, result)
        results.append(result)
    return results


def labeled(data: Manifest) -> dict[Task, Labeled]:
    """The labeled pairs and triplets of a manifest; groups without labels are passed over.

    Raises:
        ValueError: if there are none, or naming a row with a label that is not a share.
    """
    found: dict[Task, Labeled] = {}
    for task in SLOTS:
        given = list(_groups(data, task))
        if not given:
            continue
        rows = np.array([rows for rows, _ in given], dtype=np.int64)
        found[task] = rows.T, np.array([share for _, share in given]), owners(data, rows)

    if not found:
        raise ValueError(
            "no labeled pairs or triplets: each is a group with the slots anchor and candidate, or anchor, left and "
            "right, and labels of 0 to 1"
        )
    return found


def owners(data: Manifest, items: Ints) -> Ints:
    """The units that intervals draw: the identities (N, 2) of a pair's images, or (N,) of a triplet's anchor.

    An image of unknown identity counts with its anchor, and an anchor of unknown identity for itself.

    Args:
        items: (N, 2) rows of pairs, or (N, 3) of triplets.
    """
    identity, image = codes(data.column("identity")), codes(image_keys(data))
    anchor, other = items[:, 0], items[:, 1]
    first = np.where(identity[anchor] < 0, -1 - image[anchor], identity[anchor])
    second = np.where(identity[other] < 0, first, identity[other])
    found: Ints = np.stack([first, second], 1) if items.shape[1] == 2 else first
    return found


def _groups(data: Manifest, task: Task) -> Iterator[tuple[list[int], float]]:
    """The rows of each group that has all slots of the task and labels, and the share of votes for the first choice."""
    slots, label = SLOTS[task], data.column("label")
    for (group, _), own in groups(data).items():
        for slot in slots:
            if len(own.get(slot, [])) > 1:
                row = own[slot][1]
                raise ValueError(f"row {row + 1}: a second {slot} of group {group!r}: a group is one pair or triplet")
        rows = [own[slot][0] for slot in slots if slot in own]
        share = label[rows[1]] if len(rows) == len(slots) else None
        if share is None:
            continue
        if not 0 <= share <= 1:
            raise ValueError(f"row {rows[1] + 1}: label {share:g} is not a share of votes, 0 to 1")
        yield rows, float(share)


def _measure(
    scorer: Scorer,
    data: Manifest,
    task: Task,
    items: Labeled,
    settings: EvalSettings,
    options: AgreementOptions,
    result: Result,
) -> None:
    """Add a row, the items and notes to a result."""
    sides, shares, units = items
    anchor, *others = sides
    similarity = [scorer.pairs(anchor, other) for other in others]
    scores = similarity[0] if task == "pairs" else similarity[0] - similarity[1]  # how much more similar left is
    there = np.isfinite(scores)
    if not there.any():
        raise ValueError(f"{task}: none of {len(scores)} has an answer")
    if not there.all():
        result.notes.append(f"{int((~there).sum())} of {len(there)} {task} have no answer and are left out")
    scores, share, owner = scores[there], shares[there], units[there]

    least = options.agreement - _ROUNDING
    agreed: Truths = np.maximum(share, 1 - share) >= least
    counted = options.undecided == "different" and task == "pairs"
    if not agreed.all():
        rest = "count as different" if counted else "are left out of all but the rank correlations"
        few = f"people agree by less than {options.agreement:g} on {int((~agreed).sum())} of {len(agreed)} {task}"
        result.notes.append(f"{few}, which {rest if task == 'pairs' else 'are left out'}")

    shown = {slot: texts(data, "id")[side[there]] for slot, side in zip(SLOTS[task], sides, strict=True)}
    if task == "triplets":
        margin = np.where(share >= 0.5, scores, -scores)  # of the image that people chose
        result.keep(task, margin=margin, share=share, **shown)
        if agreed.any():
            won = (margin > 0)[agreed].astype(np.float64)
            result.rows.append({"task": task, "2AFC": mean(won, owner[agreed], settings)})
        return

    kept, same, row = agreed | counted, share >= least, dict[str, Value]()
    if same[kept].any() and not same[kept].all():
        given = scores[kept], same[kept]
        row["AP"] = any_statistic(average_precision, given, owner[kept], settings)
        row |= auc(*given, owner[kept], settings)
    else:
        result.notes.append(f"AP and AUC need pairs of both kinds: people found {same.sum()} of {len(same)} the same")
    if len(scores) > 1 and np.ptp(share) and np.ptp(scores):
        row["Spearman"] = any_statistic(spearman, (scores, share), owner, settings)
        row["Kendall"] = any_statistic(kendall, (scores, share), owner, settings)
    else:
        result.notes.append("no rank correlation: scores or shares of votes do not vary")
    result.rows.append({"task": task, **row})
    a, b = shown.values()
    result.keep("pairs", a=a[kept], b=b[kept], score=scores[kept], same=same[kept], share=share[kept])
    result.keep("votes", a=a, b=b, score=scores, share=share)


PROTOCOL = Protocol(
    name="agreement",
    run=run,
    options=AgreementOptions,
    columns=COLUMNS,
)
