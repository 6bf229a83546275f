"""Reads a question of your own to a judge from a TOML or JSON file: the prompt, and the form of its answers.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idmetric.io import json_file
from idmetric.protocols.judges.prompts import TEXT, AnswerError, Kind, Question, number, one_of
from idmetric.protocols.judges.reply import JudgeError

_NAMES = ("prompt", "similarity", "fields", "pattern", "range", "max_tokens")
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
        text = json_file.read_text(path)
        given = json_file.parse_toml(text) if path.suffix == ".toml" else json_file.parse(text)
        return _question(path.stem, given)
    except JudgeError as error:
        raise JudgeError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise JudgeError(f"{path}: not readable: {error}") from error


def _question(name: str, given: Any) -> Question:
    if not isinstance(given, dict) or not isinstance(given.get("prompt"), str) or not given["prompt"].strip():
        raise JudgeError("a question needs a prompt, a text")
    unknown = [key for key in given if key not in _NAMES]
    if unknown:
        raise JudgeError(f"unknown {unknown[0]!r}; there are {', '.join(_NAMES)}")
    if ("fields" in given) == ("pattern" in given):
        raise JudgeError("give either fields, for answers in JSON, or pattern and range, for answers in text")
    idle = [key for key in (("similarity",) if "pattern" in given else ("range",)) if key in given]
    if idle:
        raise JudgeError(f"{idle[0]} has no meaning {'with a pattern' if 'pattern' in given else 'with fields'}")

    tokens = given.get("max_tokens", _MAX_TOKENS)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise JudgeError(f"max_tokens is a whole number of at least 1, not {tokens!r}")
    digest = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:8]
    name, prompt = f"{name}-{digest}", given["prompt"]

    if "pattern" in given:
        low, high = _range("range", given.get("range"))
        kinds = {_SCORE: number(low, high)}
        return PatternQuestion(name, prompt, kinds, _scaled(_SCORE, low, high), tokens, _pattern(given["pattern"]))
    fields, counted = given["fields"], given.get("similarity")
    if not isinstance(fields, dict) or counted not in fields:
        raise JudgeError("similarity names the field that counts, and fields are a table with it")
    low, high = _range(f"the field {counted!r}, which counts,", fields[counted])
    return Question(name, prompt, _kinds(fields), _scaled(str(counted), low, high), tokens)


def _pattern(text: Any) -> re.Pattern[str]:
    try:
        found = re.compile(text)
    except (TypeError, re.error) as error:
        raise JudgeError(f"pattern is not a regular expression: {error}") from error
    if found.groups != 1:
        raise JudgeError(f"pattern needs one group, for the number, as in 'Score: (\\d+)'; it has {found.groups}")
    return found


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


def _range(what: str, given: Any) -> tuple[float, float]:
    if not _is_range(given):
        raise JudgeError(f"{what} needs a range of two numbers, such as [0, 10], not {given!r}")
    return given[0], given[1]


def _is_range(given: Any) -> bool:
    return (
        isinstance(given, list) and len(given) == 2
        and all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in given)
        and given[0] < given[1]
    )  # fmt: skip


def _scaled(name: str, low: float, high: float) -> Any:
    return lambda answer: (float(answer[name]) - low) / (high - low)
