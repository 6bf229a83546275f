"""Questions to a multimodal language model about two images, and the form of valid answers.

A question is a JSON file: one of prompts/, by its name, or one of yours, by its path.

    name, source, commit, license   what it is, and where its words come from
    text        the words before the two images; `<instruction>` stands for the prompt of the second one
    reply       what the model has answered to the text before it sees the images, if anything
    format      "json": an answer is one JSON object with exactly the fields of `answer`;
                "lines": it has a line `FIELD: NUMBER` for each of them
    answer      field -> its values, as a JSON schema: {"type": "number", "minimum": 0, "maximum": 10}, {"enum": [...]},
                {"type": "string"}, {"type": "boolean"}, {"type": "array", "items": ..., "minItems": 2}
    similarity  the field with the grade, as a share of its range; of a list, the lowest value
    max_tokens  enough for an answer

In JSON, a Markdown fence around an answer is removed, in both formats a reasoning model's thoughts before it. Anything
else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from idmetric.evaluate.protocols.judges.answers import grades_in_lines, without_thoughts
from idmetric.metric.files import json_file

INSTRUCTION = "<instruction>"  # in a question's text: the prompt of the second image
_FENCE = re.compile(r"```(?:json)?\s*\n(?P<body>.*?)\n?\s*```", re.DOTALL | re.IGNORECASE)
_PROMPTS = files("idmetric.evaluate.protocols.judges").joinpath("prompts")
_NEEDED = ("name", "source", "license", "text", "format", "answer", "similarity", "max_tokens")
_TYPES: Mapping[str, type | tuple[type, ...]] = {"number": (int, float), "string": str, "boolean": bool, "array": list}


@dataclass(frozen=True)
class Question:
    """A prompt and the form of its answers, see this module.

    Attributes:
        values: field -> JSON schema of its value. grade: the field that becomes the similarity.
        lowest, highest: the range of that field.
    """

    name: str
    source: str
    license: str
    prompt: str
    format: Literal["json", "lines"]
    values: Mapping[str, Mapping[str, Any]]
    grade: str
    lowest: float
    highest: float
    max_tokens: int
    reply: str = ""
    commit: str = ""

    def asked_about(self, instruction: str | None) -> str:
        """The prompt for an image that was generated from this instruction.

        Raises:
            ValueError: if the question is about an instruction, and there is none.
        """
        if INSTRUCTION not in self.prompt:
            return self.prompt
        if not instruction:
            raise ValueError(f"question {self.name!r} is about the prompt of the image, which is not known")
        return self.prompt.replace(INSTRUCTION, instruction)

    def parse(self, text: str) -> dict[str, Any]:
        """The fields of an answer.

        Raises:
            ValueError: if it lacks a field, or has another one, or a value is of another kind.
        """
        if self.format == "lines":
            return self.checked(self._fields_of_lines(text))
        return self.checked(_value_of_json(text))

    def checked(self, answer: Any) -> dict[str, Any]:
        """An answer that has exactly the fields of the question; ValueError for any other."""
        if not isinstance(answer, dict) or answer.keys() != self.values.keys():
            raise ValueError(f"not a JSON object with the fields {', '.join(self.values)}: {str(answer)[:120]!r}")
        for name, schema in self.values.items():
            if not _fits(answer[name], schema):
                raise ValueError(f"{name} is {str(answer[name])[:120]!r}, not {_described(schema)}")
        return answer

    def similarity(self, answer: Mapping[str, Any]) -> float:
        """The grade in a valid answer as a share of its range; higher = more surely the same."""
        grade = answer[self.grade]
        if isinstance(grade, list):
            grade = min(grade)
        return (float(grade) - self.lowest) / (self.highest - self.lowest)

    def _fields_of_lines(self, text: str) -> dict[str, Any]:
        grades = grades_in_lines(text)
        missing = [name for name in self.values if name not in grades]
        if missing:
            raise ValueError(f"no line '{missing[0]}: NUMBER', or several: {text[:120]!r}")
        return {name: grades[name] for name in self.values}


def _value_of_json(text: str) -> Any:
    """The JSON value that an answer is, in a Markdown fence or without; ValueError for any other text."""
    body = without_thoughts(text)
    fenced = _FENCE.fullmatch(body)
    if fenced is not None:
        body = fenced["body"]
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}): {text[:120]!r}") from error


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a JSON value is one that the schema allows; true and false do not count as numbers."""
    if "enum" in schema:
        is_truth = isinstance(value, bool)
        return value in schema["enum"] and not is_truth
    if not isinstance(value, _TYPES[schema["type"]]) or isinstance(value, bool) != (schema["type"] == "boolean"):
        return False
    if schema["type"] == "number":
        return bool(schema["minimum"] <= value <= schema["maximum"])
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(_fits(item, schema["items"]) for item in value)
    return True


def _described(schema: Mapping[str, Any]) -> str:
    """The values of a schema in words."""
    if "enum" in schema:
        *most, last = map(str, schema["enum"])
        return f"{', '.join(most)} or {last}"
    if schema["type"] == "number":
        return f"a number from {schema['minimum']:g} to {schema['maximum']:g}"
    if schema["type"] == "array":
        least = f"{schema['minItems']} or more " if "minItems" in schema else ""
        return f"a list of {least}{schema['items'].get('type', 'value')}s".replace("strings", "texts")
    return {"string": "a text", "boolean": "true or false"}[schema["type"]]


# Files


def question_names() -> list[str]:
    """Names of the questions of the package."""
    return sorted(entry.name.removesuffix(".json") for entry in _PROMPTS.iterdir() if entry.name.endswith(".json"))


@cache
def named_question(name: str) -> Question:
    """A question of the package.

    Raises:
        ValueError: listing the names, if none has this one.
    """
    if name not in question_names():
        raise ValueError(
            f"unknown question {name!r}: choose {', '.join(question_names())}, or name a file that ends in .json"
        )
    return as_question(json.loads(_PROMPTS.joinpath(f"{name}.json").read_text(encoding="utf-8")))


def open_question(name: str, folder: Path) -> Question:
    """A question by its name, or from a file by its path relative to a folder.

    Raises:
        ValueError: for an unknown name, or a file with a fault, both of which it names. OSError: if it cannot be read.
    """
    if not name.endswith(".json"):
        return named_question(name)
    path = folder / name
    try:
        return as_question(json_file.read(path))
    except ValueError as error:
        raise ValueError(f"question {path}: {error}") from error


def as_question(content: Any) -> Question:
    """A question of the value in a JSON file.

    Raises:
        ValueError: naming a key that is missing or not understood.
    """
    if not isinstance(content, dict):
        raise ValueError(f"it should be an object with {', '.join(_NEEDED)}")
    missing = [key for key in _NEEDED if key not in content]
    if missing:
        raise ValueError(f"no {', '.join(missing)}")
    if content["format"] not in ("json", "lines"):
        raise ValueError(f"format {content['format']!r} is neither json nor lines")
    values = content["answer"]
    if not isinstance(values, dict) or not all(_is_schema(schema) for schema in values.values()):
        raise ValueError("answer should give the JSON schema of each field: a number with minimum and maximum, ...")
    grade = content["similarity"]
    if grade not in values:
        raise ValueError(f"similarity is {grade!r}, which is not a field of answer ({', '.join(values)})")
    if values[grade].get("type") == "array" and values[grade].get("minItems", 0) < 1:
        raise ValueError(f"similarity is {grade!r}, a list that may be empty: give it minItems of at least 1")
    lowest, highest = _range(values[grade])
    return Question(
        name=content["name"],
        source=content["source"],
        license=content["license"],
        prompt=content["text"],
        format=content["format"],
        values=values,
        grade=grade,
        lowest=lowest,
        highest=highest,
        max_tokens=content["max_tokens"],
        reply=content.get("reply", ""),
        commit=content.get("commit", ""),
    )


def _is_schema(schema: Any) -> bool:
    """Whether values can be checked by this schema."""
    if not isinstance(schema, dict):
        return False
    if "enum" in schema:
        return isinstance(schema["enum"], list) and len(schema["enum"]) > 1
    if schema.get("type") == "number":
        return "minimum" in schema and "maximum" in schema
    if schema.get("type") == "array":
        return _is_schema(schema.get("items"))
    return schema.get("type") in _TYPES


def _range(schema: Mapping[str, Any]) -> tuple[float, float]:
    """The lowest and the highest number of a schema; ValueError if its values are not numbers."""
    if schema.get("type") == "array":
        return _range(schema["items"])
    if schema.get("type") == "number":
        return float(schema["minimum"]), float(schema["maximum"])
    numbers: Sequence[Any] = schema.get("enum", ())
    if not numbers or not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("similarity is a field without numbers")
    return float(min(numbers)), float(max(numbers))
