"""Questions to a multimodal language model about two images, and the form of valid answers.

Two questions, with the fields of the papers' prompts in our own words:

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


class AnswerError(ValueError):
    """A reply is not a valid answer; the message says why."""


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
            AnswerError: if it is not JSON, or fields are missing, unknown, of another kind or out of range.
        """
        answer = _object(text)
        missing, unknown = [n for n in self.fields if n not in answer], [n for n in answer if n not in self.fields]
        if missing or unknown:
            raise AnswerError("; ".join(
                f"{what} {', '.join(map(repr, names))}"
                for what, names in (("without", missing), ("with unknown", unknown)) if names
            ))  # fmt: skip

        for name, (kind, fits) in self.fields.items():
            if not fits(answer[name]):
                raise AnswerError(f"{name} is {_short(answer[name])}, not {kind}")

        return answer


def _object(text: str) -> dict[str, Any]:
    body = _THOUGHT.sub("", text, count=1).strip()
    fenced = _FENCE.fullmatch(body)
    try:
        found = json.loads(
            fenced["body"] if fenced else body, parse_constant=_no_constant, object_pairs_hook=_no_doubles
        )
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"not JSON ({error}): {_short(text)}") from error

    if not isinstance(found, dict):
        raise AnswerError(f"not a JSON object: {_short(text)}")
    return found


def _no_constant(name: str) -> None:
    raise AnswerError(f"{name} is not a number of JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise AnswerError("a field is given twice")
    return dict(pairs)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= 120 else text[:120] + "...")


# Kinds of values


TEXT: Kind = "a text", lambda value: isinstance(value, str)


def number(low: float, high: float) -> Kind:
    """A number in a range."""
    return (
        f"a number from {low:g} to {high:g}",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
    )


def one_of(*allowed: Any) -> Kind:
    """One of some values."""
    return f"one of {', '.join(map(json.dumps, allowed))}", lambda value: any(
        value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed
    )


_TEXTS: Kind = (
    "a list of texts", lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value)
)  # fmt: skip

EVIDENCE = Question(
    name="evidence",
    prompt="""\
Two images follow, image A and image B. Judge whether they show one and the same individual thing: not two things of one
kind, but this very object, animal or person.

Disregard everything around it: background, scene, other things, watermarks. A different viewpoint, pose or light is no
difference. That both belong to one kind or share a plain colour is no evidence.

Look, in this order, for
1. marks that only this one has: scratches, dents, stains, wear, stickers, patterns of a coat, scars, alterations;
2. fine shape: outlines and proportions of parts, seams, handles, grilles, rims, facial features;
3. writing and logos, where they can be read;
4. colours, where their arrangement is distinctive.

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
        "background_used": one_of(True, False),
        "confidence": one_of("high", "medium", "low"),
        "score": number(0, 10),
    },
    similarity=lambda answer: float(answer["score"]) / 10,  # NearID, section 0.E.11
    max_tokens=512,  # NearID, section 0.E.11: shorter budgets cut answers off
)

# also asked of people, see `idmetric.protocols.study`
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
        "same_instance": one_of(0, 1),
        "confidence": number(0, 1),
        "similarity": number(0, 1),
    },
    similarity=lambda answer: float(answer["similarity"]),
    max_tokens=256,
)

QUESTIONS = {question.name: question for question in (EVIDENCE, INSTANCE)}
