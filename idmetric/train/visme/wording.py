"""The words of queries and candidates: instructions, texts, or both (VisME, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from idmetric.metric.visid.config import TASKS, VisIDConfig
from idmetric.train.visme.batch_sampler import Rows

CAPTION = "Find the caption that describes this image."  # our words; the paper gives none


class SampleKind(IntEnum):
    """The kind of a sample, by its target's row; see `idmetric.train.visme.data`."""

    IDENTITY = 0
    EDIT = 1
    QUERY = 2
    ANSWER = 3
    CAPTION = 4


@dataclass(frozen=True)
class WordedRow:
    """An input of the model: the image of a row, or none, and words."""

    row: int | None
    words: str


@dataclass(frozen=True)
class QueryWording:
    """The words of queries and candidates.

    Args:
        settings: of the model; its joiner stands between an instruction and a text.
        kind: of the sample with this row as its target (or its only row), (N,).
        text, answer: columns text and x_target. role: column role.
        parent: row of the image that a row was edited from, -1 if there is none.
        query: rows that are queries of groups; their text is the instruction.
        asks: the instruction (N,) of queries without their own.
        alone: rows of groups that are texts without an image; they bring their own instruction, if any.
    """

    settings: VisIDConfig
    kind: Rows
    text: Sequence[str | None]
    answer: Sequence[str | None]
    role: Sequence[str]
    parent: Rows
    query: frozenset[int]
    asks: Sequence[str]
    alone: frozenset[int] = frozenset()

    def pairs(self, query: Rows, target: Rows) -> list[tuple[WordedRow, WordedRow]]:
        """Queries and targets of samples."""
        return list(map(self.pair, query.tolist(), target.tolist()))

    def pair(self, query: int, target: int) -> tuple[WordedRow, WordedRow]:
        """Query and target of a sample."""
        kind = self.kind[target]
        text = self.text[query] or ""
        if query == target and kind == SampleKind.CAPTION:
            return WordedRow(query, CAPTION), self._alone(text)
        if query == target and kind == SampleKind.ANSWER:
            return WordedRow(query, text), self._alone(self.answer[query] or "")

        candidate = self.candidate(target)
        if kind == SampleKind.EDIT and self.parent[target] == query:
            words = self._join(TASKS["editing"], self.text[target] or "")
            return WordedRow(query, words), candidate
        if query in self.alone:
            return WordedRow(None, text), candidate
        if text and (query in self.query or self.role[query] == "real"):
            return WordedRow(query, text), candidate
        return WordedRow(query, self.asks[query]), candidate

    def candidate(self, row: int) -> WordedRow:
        """A candidate image, with the text of a group's positive or candidate, or such a text alone."""
        text = self.text[row] or ""
        if row in self.alone:
            return WordedRow(None, text)
        if text and self.kind[row] == SampleKind.QUERY and row not in self.query:
            return WordedRow(row, text)
        return WordedRow(row, self.settings.instruction)

    def _join(self, *parts: str) -> str:
        return self.settings.joiner.join(filter(None, parts))

    def _alone(self, text: str) -> WordedRow:
        return WordedRow(None, self._join(self.settings.text_instruction, text))
