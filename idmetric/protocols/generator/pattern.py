"""Names of files as data: patterns such as `{method}/{subject}/{prompt}_{seed}.png`.

| part | matches |
|---|---|
| `{name}` | text without a slash, at least one character; the longest that fits, from left to right |
| `{seed}`, `{index}` | digits |
| `{ignore}` | as `{name}`, any number of times, and not kept |
| `*` | any text without a slash, also none |

A name that occurs twice stands for the same text in both places.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

GENERATED, REFERENCE, TRAINING = "generated", "reference", "training"
ONLY = "subject"  # the subject of a pattern or table without one
YES, NO = ("yes", "true", "1", "y"), ("no", "false", "0", "n")  # in the column held_out


class OutputsError(ValueError):
    """Images that cannot be read as outputs of generators; the message lists them, and says how to fix it."""


class UnmatchedWarning(UserWarning):
    """Images that do not match the pattern, or cannot be read as their layout demands, are left out."""


@dataclass(frozen=True)
class Picture:
    """An image file with its role and fields."""

    path: Path
    role: str
    fields: Mapping[str, str]
    text: str | None = None  # prompt in words
    mask: Path | None = None


IGNORE = "ignore"
NUMBERS = ("seed", "index")
_PART = re.compile(r"\{(?P<field>\w+)\}|(?P<any>\*)|(?P<text>[^{}*]+)")


class PatternError(ValueError):
    """A pattern that cannot be used; the message says why."""


class Pattern:
    """Matches paths relative to a folder, and gives their fields.

    >>> Pattern("{method}/{subject}/{prompt}_{seed}.png").match("lora/dog/on_the_beach_2.png")
    {'method': 'lora', 'subject': 'dog', 'prompt': 'on_the_beach', 'seed': '2'}

    Args:
        digits: fields that match digits alone.

    Attributes:
        text: the pattern. fields: its names, in order, without `ignore`.

    Raises:
        PatternError: for braces without a name in them, two fields without text between them, or a path that leads out
            of the folder.
    """

    def __init__(self, text: str, digits: Collection[str] = NUMBERS) -> None:
        self.text, self._digits = text, digits
        self.fields: tuple[str, ...] = ()
        expression, end, after_field = "", 0, False
        for part in _PART.finditer(text):
            if part.start() != end:
                break
            end = part.end()
            name = part["field"]
            if name and after_field:
                raise PatternError(f"{text!r}: {{{name}}} follows another field without text between them")
            expression += self._field(name) if name else "[^/]*" if part["any"] else re.escape(part["text"])
            after_field = bool(name)
        if end != len(text) or not text:
            raise PatternError(f"{text!r}: a field is a name in braces, such as {{subject}}, and * matches any text")
        if text.startswith("/") or ".." in text.split("/"):
            raise PatternError(f"{text!r}: a pattern is relative to its folder")
        self._expression = re.compile(expression)

    def _field(self, name: str) -> str:
        if name == IGNORE:
            return "[^/]+"
        if not name.isidentifier() or not name.isascii():
            raise PatternError(f"{self.text!r}: {{{name}}} is not a name: letters, digits and _, a letter first")
        if name in self.fields:
            return f"(?P={name})"
        self.fields += (name,)
        return f"(?P<{name}>{'[0-9]+' if name in self._digits else '[^/]+'})"

    def match(self, path: str) -> dict[str, str] | None:
        """The fields of a path with forward slashes, relative to the folder; None if it does not match."""
        found = self._expression.fullmatch(path)
        return None if found is None else found.groupdict()


def split(text: str) -> tuple[str, str]:
    """A folder, and the pattern below it, of a path with fields: its folders before the first field.

    >>> split("/data/refs/{subject}/*.jpg")
    ('/data/refs', '{subject}/*.jpg')
    """
    parts = text.split("/")
    first = next((k for k, part in enumerate(parts) if "{" in part or "*" in part), len(parts) - 1)
    return "/".join(parts[:first]) or ("/" if text.startswith("/") else "."), "/".join(parts[first:])
