"""Reads the answers of participants, which come from strangers: each file is checked, and refused with a reason.

    {"study": "0123456789abcdef", "page": 1, "participant": "0123456789abcdef", "revision": 1,
     "answers": {"0123456789ab": "same", ...}}

A participant counts only if every sentinel of each of their pages has the right answer (ID-Sim, D.2: "responses from
any annotator who missed one or more sentinels were discarded").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idmetric.data.manifest.values import short
from idmetric.io import json_file
from idmetric.protocols.study.items import CHOICES
from idmetric.protocols.study.study import Question, Study

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
        raise AnswersError(f"answers to another study, {short(name)}: this is {', '.join(studies)}")
    if not isinstance(participant, str) or not _PARTICIPANT.fullmatch(participant):
        raise AnswersError(f"participant {short(participant)} is not a number of 16 hexadecimal digits")
    if not _is_number(revision):
        raise AnswersError(f"revision {short(revision)} is not a whole number from 1 on")
    pages = study.pages
    if not _is_number(page) or page not in pages:
        raise AnswersError(f"page {short(page)}: the study has the pages 1 to {len(pages)}")
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
            raise AnswersError(f"an answer to {short(item)}, which is not on the page")
        if choice not in choices:
            raise AnswersError(f"answer {short(choice)} to {item}: there are {' and '.join(choices)}")
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
