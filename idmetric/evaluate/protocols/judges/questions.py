"""The two questions to a multimodal language model about two images, and the form of valid answers.

The papers' prompts in our own words, with their fields:

    evidence   NearID, section 0.E.11, Fig. 10: cues for and against, then a score from 0 to 10; similarity = score / 10
    instance   ID-Sim, section D.3, Fig. 21: same_instance 0 or 1, confidence and similarity in 0..1

An answer is one JSON object with exactly these fields. A Markdown fence around it and a reasoning model's thoughts
before it are removed; anything else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_FENCE = re.compile(r"```(?:json)?\s*\n(?P<body>.*?)\n?\s*```", re.DOTALL | re.IGNORECASE)
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)

Kind = tuple[str, Callable[[Any], bool]]  # of a value: its description, and whether a value is of this kind


@dataclass(frozen=True)
class Question:
    """A prompt and the form of its answers.

    Attributes:
        name: how users choose it.
        prompt: the text before the two images.
        fields: name -> the kind of its value.
        similarity: from a valid answer to 0..1, higher = more surely the same.
        max_tokens: enough for an answer.
    """

    name: str
    prompt: str
    fields: Mapping[str, Kind]
    similarity: Callable[[Mapping[str, Any]], float]
    max_tokens: int

    def parse(self, text: str) -> dict[str, Any]:
        """The fields of an answer.

        Raises:
            ValueError: if it is not a JSON object with exactly these fields, or a value is of another kind.
        """
        body = _THOUGHT.sub("", text, count=1).strip()
        fenced = _FENCE.fullmatch(body)
        if fenced is not None:
            body = fenced["body"]
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error}): {text[:120]!r}") from error

        if not isinstance(answer, dict) or answer.keys() != self.fields.keys():
            raise ValueError(f"not a JSON object with the fields {', '.join(self.fields)}: {text[:120]!r}")
        for name, (kind, fits) in self.fields.items():
            if not fits(answer[name]):
                raise ValueError(f"{name} is {str(answer[name])[:120]!r}, not {kind}")
        return answer


def _number(low: float, high: float) -> Kind:
    return (
        f"a number from {low:g} to {high:g}",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
    )


_TEXTS: Kind = (
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
)

EVIDENCE = Question(
    name="evidence",
    prompt="""\
Two images follow, image A and image B. Judge whether they show one and the same individual thing: not two things of one
kind, but this very object, animal or person.

Disregard everything around it: background, scene, other things, watermarks. A different viewpoint, pose or light is no
difference. That both belong to one kind or share a plain color is no evidence.

Look, in this order, for
1. marks that only this one has: scratches, dents, stains, wear, stickers, patterns of a coat, scars, alterations;
2. fine shape: outlines and proportions of parts, seams, handles, grilles, rims, facial features;
3. writing and logos, where they can be read;
4. colors, where their arrangement is distinctive.

Score from 0 to 10:
10      surely the same: several distinctive marks agree and nothing contradicts them
7 to 9  probably the same: distinctive marks agree, a little doubt remains
4 to 6  cannot be told: too small, blurred or hidden, or only common traits can be seen
1 to 3  probably another: marks, shape or proportions contradict each other
0       surely another: distinctive traits clearly contradict each other
Where the subject can hardly be seen, say so and stay near 5. What a change of viewpoint or light can explain is no
contradiction.

Answer with one JSON object and nothing else, no Markdown:
{"match_cues": [...], "conflict_cues": [...], "background_used": ..., "confidence": ..., "score": ...}
match_cues and conflict_cues: short texts about the thing itself, possibly none. background_used: false, or true if you
could not do without it; then confidence is "low". confidence: "high", "medium" or "low". score: a number, 0 to 10.""",
    fields={
        "match_cues": _TEXTS,
        "conflict_cues": _TEXTS,
        "background_used": ("true or false", lambda value: isinstance(value, bool)),
        "confidence": ("high, medium or low", lambda value: value in ("high", "medium", "low")),
        "score": _number(0, 10),
    },
    similarity=lambda answer: float(answer["score"]) / 10,  # NearID, section 0.E.11
    max_tokens=512,  # NearID, section 0.E.11: shorter budgets cut answers off
)

INDIVIDUAL = """\
Do they show the same individual: the same animal,
the same person, the very same object? Go by traits that stay with the individual. Pose, background and light may differ
and say nothing."""

INSTANCE = Question(
    name="instance",
    prompt=f"You measure visual identity. Two images follow, image A and image B. {INDIVIDUAL}"
    """

Answer with one JSON object and nothing else, no Markdown:
{"same_instance": ..., "confidence": ..., "similarity": ...}
same_instance: 1 = the same, 0 = another. confidence: from 0 to 1, how sure that decision is. similarity: from 0 to 1,
how alike in identity they are, for ranking many pairs; higher = more alike.""",
    fields={
        "same_instance": ("0 or 1", lambda value: type(value) is int and value in (0, 1)),
        "confidence": _number(0, 1),
        "similarity": _number(0, 1),
    },
    similarity=lambda answer: float(answer["similarity"]),
    max_tokens=256,
)

QUESTIONS = {question.name: question for question in (EVIDENCE, INSTANCE)}
