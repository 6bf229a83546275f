"""Questions to a multimodal language model about two images, and the form of valid answers.

Two questions, with the fields of the papers' prompts in our own words:

    evidence   NearID, section 0.E.11, Fig. 10: cues for and against, then a score from 0 to 10; similarity = score / 10
    instance   ID-Sim, section D.3, Fig. 21: same_instance 0 or 1, confidence and similarity in 0..1

An answer is one JSON object with exactly these fields. A Markdown fence around it and a reasoning model's thoughts
before it are removed; anything else is refused.

Reads a question of your own to a judge from a TOML or JSON file: the prompt, and the form of its answers.

    prompt = '''Two images follow. How well does the second keep the subject of the first? ...
    Answer with one JSON object: {"reason": ..., "score": ...}'''
    similarity = "score"        the field that counts: its range becomes 0..1, higher = more surely the same

    [fields]
    reason = "text"
    score = [0, 4]              a number in this range
    sure = ["yes", "no"]        one of these

A rubric that asks for plain text, such as DreamBench++'s, gives a pattern in place of fields; the last match counts:

    pattern = 'Score:\\s*([0-4])'
    range = [0, 4]
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idmetric.io import json_file
from idmetric.protocols.judges.reply import JudgeError

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
        found = json.loads(fenced["body"] if fenced else body)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"not JSON ({error}): {_short(text)}") from error

    if not isinstance(found, dict):
        raise AnswerError(f"not a JSON object: {_short(text)}")
    return found


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


# Questions of your own


_MAX_TOKENS = 512
_SCORE = "score"  # the field of answers that a pattern finds


@dataclass(frozen=True)
class PatternQuestion(Question):
    """A question with answers in plain text, of which a pattern finds the score."""

    pattern: re.Pattern[str] = field(default=re.compile(""))

    def parse(self, text: str) -> dict[str, Any]:
        """The score, of a reply or of a stored answer.

        Raises:
            AnswerError: without a match, or if the last one is not a number in the range.
        """
        try:
            return super().parse(text)  # as stored
        except AnswerError:
            found = [match.group(1) for match in self.pattern.finditer(text)]
        try:
            value = float(found[-1])
        except IndexError:
            raise AnswerError(f"no match of {self.pattern.pattern!r}: {text[-120:]!r}") from None
        except (TypeError, ValueError):
            raise AnswerError(f"{found[-1]!r} is not a number") from None
        return super().parse(json.dumps({_SCORE: value}))


def read_question(path: Path) -> Question:
    """The question of a file.

    Raises:
        JudgeError: naming the file and the error in it.
    """
    try:
        return _question(path.stem, json_file.read(path))
    except JudgeError as error:
        raise JudgeError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise JudgeError(f"{path}: not readable: {error}") from error


def _question(name: str, given: Any) -> Question:
    if not isinstance(given, dict) or not isinstance(given.get("prompt"), str) or not given["prompt"].strip():
        raise JudgeError("a question needs a prompt, a text")
    if ("fields" in given) == ("pattern" in given):
        raise JudgeError("give either fields, for answers in JSON, or pattern and range, for answers in text")
    known = ("prompt", "max_tokens", *(("pattern", "range") if "pattern" in given else ("fields", "similarity")))
    unknown = [key for key in given if key not in known]
    if unknown:
        raise JudgeError(f"unknown {unknown[0]!r}; there are {', '.join(known)}")

    tokens = given.get("max_tokens", _MAX_TOKENS)
    if not isinstance(tokens, int) or tokens < 1:
        raise JudgeError(f"max_tokens is a whole number of at least 1, not {tokens!r}")
    digest = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:8]
    fields, counted = given.get("fields", {_SCORE: given.get("range")}), given.get("similarity", _SCORE)
    if not isinstance(fields, dict) or counted not in fields:
        raise JudgeError("similarity names the field that counts, and fields are a table with it")
    if not _is_range(fields[counted]):
        raise JudgeError(f"{counted} needs a range of two numbers, such as [0, 10], not {fields[counted]!r}")

    low, high = fields[counted]
    question = Question(
        f"{name}-{digest}", given["prompt"], _kinds(fields),
        lambda answer: (float(answer[counted]) - low) / (high - low), tokens,
    )  # fmt: skip
    if "pattern" not in given:
        return question
    try:
        pattern = re.compile(given["pattern"])
    except (TypeError, re.error) as error:
        raise JudgeError(f"pattern is not a regular expression: {error}") from error
    if pattern.groups != 1:
        raise JudgeError(f"pattern needs one group, for the number, as in 'Score: (\\d+)'; it has {pattern.groups}")
    return PatternQuestion(**vars(question), pattern=pattern)


def _kinds(fields: Mapping[str, Any]) -> dict[str, Kind]:
    found = {}
    for name, form in fields.items():
        if form == "text":
            found[name] = TEXT
        elif _is_range(form):
            found[name] = number(*form)
        elif isinstance(form, list) and form and all(isinstance(value, str | bool) for value in form):
            found[name] = one_of(*form)
        else:
            raise JudgeError(
                f'field {name!r}: give "text", a range such as [0, 10], or the values such as ["yes", "no"]'
            )
    return found


def _is_range(given: Any) -> bool:
    return (
        isinstance(given, list) and len(given) == 2
        and all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in given)
        and given[0] < given[1]
    )  # fmt: skip
