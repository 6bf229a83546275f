"""Questions to a multimodal language model about two images, and the valid answers: one JSON object with a grade.

A Markdown fence around an answer and a reasoning model's thoughts before it are removed. Anything else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)  # that a reasoning model writes before its answer
_FENCE = re.compile(r"```(?:json)?\s*\n(?P<body>.*?)\n?\s*```", re.DOTALL | re.IGNORECASE)
_PROMPTS = files("idmetric.evaluate.protocols.judges").joinpath("prompts")


@dataclass(frozen=True)
class Question:
    """A prompt in prompts/NAME.txt, and the grade in its answers.

    Attributes:
        grade: the field of an answer that becomes the similarity. highest: the end of its range, which starts at 0.
        max_tokens: enough for an answer.
    """

    name: str
    grade: str
    highest: float
    max_tokens: int

    @property
    def prompt(self) -> str:
        """The words before the two images."""
        return _PROMPTS.joinpath(f"{self.name}.txt").read_text(encoding="utf-8").removesuffix("\n")

    def parse(self, text: str) -> dict[str, Any]:
        """The fields of an answer; ValueError for a text that is none."""
        body = _THOUGHT.sub("", text, count=1).strip()
        fenced = _FENCE.fullmatch(body)
        if fenced is not None:
            body = fenced["body"]
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error}): {text[:120]!r}") from error
        return self.checked(answer)

    def checked(self, answer: Any) -> dict[str, Any]:
        """An answer that has a grade in its range; ValueError for any other."""
        if not isinstance(answer, dict) or self.grade not in answer:
            raise ValueError(f"not a JSON object with the field {self.grade}: {str(answer)[:120]!r}")
        grade = answer[self.grade]
        is_number = isinstance(grade, int | float) and not isinstance(grade, bool)
        if not is_number or not 0 <= grade <= self.highest:
            raise ValueError(f"{self.grade} is {str(grade)[:120]!r}, not a number from 0 to {self.highest:g}")
        return answer

    def similarity(self, answer: Mapping[str, Any]) -> float:
        """The grade in a valid answer as a share of its range; higher = more surely the same."""
        return float(answer[self.grade]) / self.highest


QUESTIONS = {
    "evidence": Question("evidence", "score", 10, max_tokens=512),  # after NearID, section 0.E.11 and Fig. 10
    "instance": Question("instance", "similarity", 1, max_tokens=256),  # after ID-Sim, section D.3 and Fig. 21
}
