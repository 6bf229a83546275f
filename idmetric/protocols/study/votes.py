"""Votes of participants, and labels from them as ID-Sim made Subjects2k (appendix D.2).

    {"study": "0123456789abcdef", "page": 1, "participant": "0123456789abcdef", "revision": 1,
     "answers": {"0123456789ab": "same", ...}}

A participant counts only if every sentinel of each of their pages has the right answer (ID-Sim, D.2: "responses from
any annotator who missed one or more sentinels were discarded").

Three people answer each question. If they disagree, more are asked, "for a maximum of nine annotations per pair". (The
paper also says "up to five additional", which would make eight; we follow the maximum.) With p the share of votes for
one answer, the agreement is max(p, 1 - p).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.agreement import krippendorff_alpha
from idmetric.io import json_file
from idmetric.protocols.common.columns import Array, Ints
from idmetric.protocols.common.intervals import any_statistic
from idmetric.protocols.common.result import Value
from idmetric.protocols.common.scorers import EvalSettings
from idmetric.protocols.study.study import CHOICES, Study, owners

FEWEST, MOST = 3, 9  # votes on a question (ID-Sim, D.2)
AGREEMENT = 0.8  # of the votes, from which a label counts (ID-Sim, D.2)
_PARTICIPANT = re.compile(r"[0-9a-f]{16}")
_MOST_BYTES = 1_000_000  # of a file; a page of 200 questions takes 6,000


@dataclass
class Votes:
    """Votes on the N questions of a study, without sentinels.

    Attributes:
        counts: (N, 2) votes for each of the task's choices, in the order of `Study.asked`.
        participants: everyone who counts.
        refused: file -> why it does not count. failed: participants who missed a sentinel -> how many they missed.
        repeated: files that another one of the same participant and page replaces.
    """

    counts: Ints
    participants: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)

    @property
    def total(self) -> Ints:
        """Votes on each question (N,)."""
        return np.asarray(self.counts.sum(1))

    def shares(self) -> Array:
        """Share (N,) of votes for the first choice, same or left; NaN without votes."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.counts[:, 0] / self.total)

    def missing(self) -> Ints:
        """Votes (N,) that each question still needs: up to three, and up to nine if people disagree."""
        wanted = np.where(self.counts.min(1) > 0, MOST, FEWEST)
        return np.clip(wanted - self.total, 0, None)


def collect(files: Iterable[Path], study: Study) -> Votes:
    """The votes in files of answers, of participants who gave every sentinel its right answer.

    Of several files of a participant and page, the last download counts.
    """
    place, choices = {name: k for k, name in enumerate(study.asked)}, CHOICES[study.task]
    votes = Votes(np.zeros((len(place), 2), dtype=np.int64))
    last: dict[tuple[int, str], tuple[int, str, dict[str, str]]] = {}  # revision, file and answers
    for path in files:
        try:
            given = _answers(path, study)
        except ValueError as error:
            votes.refused[str(path)] = str(error)
            continue
        key, own = (given["page"], given["participant"]), (given["revision"], str(path), given["answers"])
        if key in last:
            older, own = sorted((last[key], own), key=lambda one: one[0])
            votes.repeated.append(older[1])
        last[key] = own

    for (page, person), (_, _, answers) in last.items():
        missed = sum(answers.get(q.id) != q.sentinel for q in study.pages[page] if q.sentinel)
        if missed:
            votes.failed[person] = votes.failed.get(person, 0) + missed
    for (_, person), (_, _, answers) in last.items():
        if person not in votes.failed:
            votes.participants.add(person)
            for name, choice in answers.items():
                if name in place:
                    votes.counts[place[name], choices.index(choice)] += 1
    return votes


def _answers(path: Path, study: Study) -> dict[str, Any]:
    """The content of a file, which may come from anybody.

    Raises:
        ValueError: if it holds no answers to a page of this study.
    """
    try:
        given = json_file.read(path, most=_MOST_BYTES)
        page, participant, revision, answers = (given[k] for k in ("page", "participant", "revision", "answers"))
        if given["study"] != study.id:
            raise ValueError(f"answers to another study: this is {study.id}")
        asked = {question.id for question in study.pages[page]}
        valid = type(page) is int and type(revision) is int and _PARTICIPANT.fullmatch(participant)
        if not valid or not answers.keys() <= asked or not set(answers.values()) <= set(CHOICES[study.task]):
            raise ValueError("answers, page or participant are not as the page writes them")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not answers to a page of this study ({type(error).__name__}: {error})") from error
    except OSError as error:
        raise ValueError(f"not readable: {error}") from error
    return dict(given)


def agreement(study: Study, votes: Votes, settings: EvalSettings = EvalSettings()) -> Value | None:
    """Krippendorff's alpha over the questions with two votes at least, by identity; None if it is undefined."""
    several = votes.total >= 2
    if not several.any():
        return None
    rows = np.array(list(study.asked.values()))[several]
    try:
        return any_statistic(krippendorff_alpha, (votes.counts[several],), owners(study.items, rows), settings)
    except ValueError:  # all votes are equal
        return None


def table(study: Study, votes: Votes) -> Manifest:
    """The questions with at least three votes as a manifest of groups.

    The label of a candidate is the share of votes for "same", of left and right (as in NIGHTS) that for each. Free
    columns: x_votes, the number of votes, and x_agreement.

    Raises:
        ValueError: if no question has three votes.
    """
    about = dict(zip(study.asked, zip(votes.shares().tolist(), votes.total.tolist(), strict=True), strict=True))
    kept = {name: rows for name, rows in study.asked.items() if about[name][1] >= FEWEST}
    if not kept:
        raise ValueError(f"no question has {FEWEST} votes yet: {votes.total.sum()} votes on {len(about)} questions")

    items = study.items.take([row for rows in kept.values() for row in rows])
    groups, slots = items.column("group"), items.column("slot")
    share = [about[name][0] for name in groups]
    label = [{"candidate": p, "left": p, "right": 1 - p}.get(slot) for p, slot in zip(share, slots, strict=True)]
    return items.replace(
        id=[f"{name}/{slot}" for name, slot in zip(groups, slots, strict=True)], label=label,
        x_votes=[about[name][1] for name in groups], x_agreement=[max(p, 1 - p) for p in share],
    )  # fmt: skip
