"""Reads the answers of participants, which come from strangers: each file is checked, and refused with a reason.

    {"study": "0123456789abcdef", "page": 1, "participant": "0123456789abcdef", "revision": 1,
     "answers": {"0123456789ab": "same", ...}}

A participant counts only if every sentinel of each of their pages has the right answer (ID-Sim, D.2: "responses from
any annotator who missed one or more sentinels were discarded").

From votes to labels, as ID-Sim made Subjects2k (appendix D.2): shares of votes, agreement, and who to ask again.

Three people answer each question. If they disagree, more are asked, "for a maximum of nine annotations per pair". (The
paper also says "up to five additional", which would make eight; we follow the maximum.) With p the share of votes for
one answer, the agreement is max(p, 1 - p).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.agreement import krippendorff_alpha
from idmetric.io import json_file
from idmetric.io.settings import shown
from idmetric.protocols.common.columns import Array, Ints
from idmetric.protocols.common.intervals import any_statistic
from idmetric.protocols.common.result import Value
from idmetric.protocols.common.scorers import Settings
from idmetric.protocols.study.study import CHOICES, Question, Study, owners

_FIELDS = ("study", "page", "participant", "revision", "answers")
_PARTICIPANT = re.compile(r"[0-9a-f]{16}")
_MOST = 1_000_000  # bytes of a file; a page of 200 questions takes 6,000


class AnswersError(ValueError):
    """A file that is not a participant's answers to a study; the message says why."""


@dataclass(frozen=True)
class Answers:
    """One participant's answers to one page: question -> choice.

    Attributes:
        revision: how often the participant has downloaded answers to this page; the last download counts.
    """

    study: str
    page: int
    participant: str
    revision: int
    answers: Mapping[str, str]


@dataclass
class Votes:
    """Votes on the questions of a study and its follow-ups, without sentinels.

    Attributes:
        of: question -> participant -> choice. Every question of the studies is here, also without votes.
        refused: file -> why it does not count. failed: participants who missed a sentinel -> how many they missed.
        repeated: files that a later download of the same participant replaces, or that equal another file.
    """

    of: dict[str, dict[str, str]]
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)

    @property
    def participants(self) -> set[str]:
        """Everyone with a vote."""
        return {name for votes in self.of.values() for name in votes}


def read_answers(path: Path, studies: Mapping[str, Study]) -> Answers:
    """The answers of a file.

    Args:
        studies: id -> the study or follow-up.

    Raises:
        AnswersError: if they are not well-formed answers to a page of one of these studies.
    """
    try:
        given = json_file.read(path, most=_MOST)
    except (OSError, ValueError) as error:
        raise AnswersError(f"not readable as JSON: {error}") from error
    if not isinstance(given, dict) or sorted(map(str, given)) != sorted(_FIELDS):
        raise AnswersError(f"not answers that a page of a study wrote: these have the fields {', '.join(_FIELDS)}")

    name, page, participant, revision, answers = (given[field] for field in _FIELDS)
    study = studies.get(name) if isinstance(name, str) else None
    if study is None:
        raise AnswersError(f"answers to another study, {shown(name)}: this is {', '.join(studies)}")
    if not isinstance(participant, str) or not _PARTICIPANT.fullmatch(participant):
        raise AnswersError(f"participant {shown(participant)} is not a number of 16 hexadecimal digits")
    if not _is_number(revision):
        raise AnswersError(f"revision {shown(revision)} is not a whole number from 1 on")
    pages = study.pages
    if not _is_number(page) or page not in pages:
        raise AnswersError(f"page {shown(page)}: the study has the pages 1 to {len(pages)}")
    return Answers(name, page, participant, revision, _checked(answers, pages[page], CHOICES[study.task]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _checked(answers: Any, questions: Iterable[Question], choices: Sequence[str]) -> dict[str, str]:
    """The answers, each to a question of the page."""
    if not isinstance(answers, dict):
        raise AnswersError("its answers are not an object")
    known = {question.id for question in questions}
    for item, choice in answers.items():
        if item not in known:
            raise AnswersError(f"an answer to {shown(item)}, which is not on the page")
        if choice not in choices:
            raise AnswersError(f"answer {shown(choice)} to {item}: there are {' and '.join(choices)}")
    return dict(answers)


def collect(files: Iterable[Path], studies: Sequence[Study]) -> Votes:
    """The votes in files of answers, of participants who gave every sentinel its right answer.

    Of several files of a participant and page, the last download counts; two that differ and claim to be the same
    download are both refused. A participant has one vote on a question, the first in the order of studies and pages.
    """
    known = {study.id: study for study in studies}
    votes = Votes({q.id: {} for s in studies for page in s.pages.values() for q in page if q.sentinel is None})
    found: dict[str, Answers] = {}
    for path in files:
        try:
            found[str(path)] = read_answers(path, known)
        except AnswersError as error:
            votes.refused[str(path)] = str(error)

    last = _last(found, votes)
    order = {study.id: place for place, study in enumerate(studies)}
    for one in sorted(last, key=lambda a: (order[a.study], a.page, a.participant)):
        missed = sum(one.answers.get(q.id) != q.sentinel for q in known[one.study].pages[one.page] if q.sentinel)
        if missed:
            votes.failed[one.participant] = votes.failed.get(one.participant, 0) + missed

    for one in sorted(last, key=lambda a: (order[a.study], a.page, a.participant)):
        for item, choice in one.answers.items():
            if item in votes.of and one.participant not in votes.failed:
                votes.of[item].setdefault(one.participant, choice)
    return votes


def _last(found: Mapping[str, Answers], votes: Votes) -> list[Answers]:
    """The last download of each participant and page; the others are noted in `votes`."""
    groups: dict[tuple[str, int, str], list[str]] = {}
    for path, one in found.items():
        groups.setdefault((one.study, one.page, one.participant), []).append(path)

    last = []
    for paths in groups.values():
        newest = max(found[path].revision for path in paths)
        rivals = [path for path in paths if found[path].revision == newest]
        votes.repeated += [path for path in paths if path not in rivals]
        if any(found[path] != found[rivals[0]] for path in rivals):
            reason = (
                f"{len(rivals)} different files claim to be one download of participant {found[rivals[0]].participant}"
            )
            votes.refused |= dict.fromkeys(rivals, reason)
            continue
        votes.repeated += rivals[1:]
        last.append(found[rivals[0]])
    return last


# Labels


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


def agreement(study: Study, labels: Labels, settings: Settings = Settings()) -> Value | None:
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
