"""From votes to labels, as ID-Sim made Subjects2k (appendix D.2): shares of votes, agreement, and who to ask again.

Three people answer each question. If they disagree, more are asked, "for a maximum of nine annotations per pair". (The
paper also says "up to five additional", which would make eight; we follow the maximum.) With p the share of votes for
one answer, the agreement is max(p, 1 - p).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.krippendorff import krippendorff_alpha
from idmetric.protocols.common.arrays import Array, Ints
from idmetric.protocols.common.intervals import any_statistic
from idmetric.protocols.common.result import Value
from idmetric.protocols.common.scorers import Settings
from idmetric.protocols.study.items import owners
from idmetric.protocols.study.study import Study

_SETTINGS = Settings()
FEWEST, MOST = 3, 9  # votes on a question (ID-Sim, D.2)
AGREEMENT = 0.8  # of the votes, from which a label counts (ID-Sim, D.2)


@dataclass(frozen=True)
class Labels:
    """Votes on N questions.

    Attributes:
        items: their ids. counts: (N, 2) votes for each of the task's choices.
    """

    items: list[str]
    counts: Ints

    @property
    def votes(self) -> Ints:
        """Votes on each question (N,)."""
        found: Ints = self.counts.sum(1)
        return found

    def shares(self) -> Array:
        """Share (N,) of votes for the first choice, same or left; NaN without votes."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.counts[:, 0] / self.votes)

    def missing(self) -> Ints:
        """Votes (N,) that each question still needs: up to three, and up to nine if people disagree."""
        wanted = np.where(self.counts.min(1) > 0, MOST, FEWEST)
        return np.clip(wanted - self.votes, 0, None)

    def agreed(self, least: float, choice: int) -> int:
        """Questions of which at least this share of the votes is for a choice, 0 or 1."""
        with np.errstate(invalid="ignore"):
            return int((self.counts[:, choice] / self.votes >= least).sum())


def agreement(study: Study, labels: Labels, settings: Settings = _SETTINGS) -> Value | None:
    """Krippendorff's alpha over the questions with two votes at least, by identity; None if it is undefined."""
    rows = {q.id: q.rows for page in study.pages.values() for q in page}
    several = labels.votes >= 2
    if not several.any():
        return None
    items = np.array([rows[item] for item, has in zip(labels.items, several.tolist(), strict=True) if has])
    try:
        return any_statistic(krippendorff_alpha, (labels.counts[several],), owners(study.items, items), settings)
    except ValueError:  # all votes are equal
        return None


def count(votes: Mapping[str, Mapping[str, str]], choices: tuple[str, str]) -> Labels:
    """Count votes: question -> participant -> choice."""
    rows = [[list(own.values()).count(choice) for choice in choices] for own in votes.values()]
    return Labels(list(votes), np.array(rows, dtype=np.int64).reshape(-1, 2))


def table(study: Study, labels: Labels) -> Manifest:
    """The questions with at least three votes as a manifest of groups.

    The label of a candidate is the share of votes for "same", of left and right (as in NIGHTS) that for each. Free
    columns: x_votes, the number of votes, and x_agreement.

    Raises:
        ValueError: if no question has three votes.
    """
    share = dict(zip(labels.items, labels.shares().tolist(), strict=True))
    votes = dict(zip(labels.items, labels.votes.tolist(), strict=True))
    questions = [q for page in study.pages.values() for q in page if q.sentinel is None and votes[q.id] >= FEWEST]
    if not questions:
        raise ValueError(
            f"no question has {FEWEST} votes yet: {int(labels.votes.sum())} votes on {len(votes)} questions"
        )

    items = study.items.take([row for q in questions for row in q.rows])
    own = [q.id for q in questions for _ in q.rows]
    label = [_label(slot, share[name]) for name, slot in zip(own, items.column("slot"), strict=True)]
    return items.replace(
        id=[f"{name}/{slot}" for name, slot in zip(own, items.column("slot"), strict=True)], label=label,
        x_votes=[votes[name] for name in own], x_agreement=[max(share[name], 1 - share[name]) for name in own],
    )  # fmt: skip


def _label(slot: str, share: float) -> float | None:
    """The label of an image: the share of votes for it, or that it is the same."""
    return {"candidate": share, "left": share, "right": 1 - share}.get(slot)
