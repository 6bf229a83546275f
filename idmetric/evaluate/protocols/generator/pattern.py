"""Names of files as data: patterns such as `{method}/{subject}/{prompt}_{seed}.png`.

| part | matches |
|---|---|
| `{name}` | text without a slash, at least one character; the longest that fits, from left to right |
| `{seed}`, `{step}` | digits |
| `{ignore}` | as `{name}`, any number of times, and not kept |
| `*` | any text without a slash, also none |

A name that occurs twice stands for the same text in both places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from idmetric.metric.errors import RequestError

GENERATED, REFERENCE, TRAINING = "generated", "reference", "training"
FIELD = "x_"  # begins the columns of a manifest that hold fields: they are not the columns of these names
ONLY = "subject"  # the subject of a pattern or table without one
# of outputs that projects publish: their names, and those of references in the same folder
LAYOUTS: Mapping[str, tuple[str, str | None]] = {
    # yuangpeng/dreambench_plus: METHOD/{src_image,tgt_image}/COLLECTION/PROMPT_IMAGE.jpg
    "dreambench++": ("{method}/tgt_image/{subject}/{prompt}_{seed}.*", "{ignore}/src_image/{subject}/*"),
    # TIGER-AI-Lab/ImagenHub: results/EXPERIMENT/{input,MODEL}/sample_UID.jpg
    "imagenhub": ("{method}/sample_{subject}.jpg", "input/sample_{subject}.jpg"),
    # OmniContext: results/METHOD/fullset/TASK/KEY.png
    "omnicontext": ("{method}/fullset/{task}/{subject}.png", None),
}
Fields = Callable[[str], dict[str, str] | None]  # of a path with forward slashes; None if it is another one
_DIGITS = ("seed", "step")
_PART = re.compile(r"(\{[A-Za-z]\w*\}|\*)", re.ASCII)


@dataclass(frozen=True)
class GeneratedPicture:
    """An image file with its role and fields."""

    path: Path
    role: str
    fields: Mapping[str, str]
    text: str | None = None  # prompt in words
    mask: Path | None = None

    def having(self, **fields: str) -> GeneratedPicture:
        """The picture with these fields added or replaced."""
        return replace(self, fields={**self.fields, **fields})


def fields_of(pattern: str) -> Fields:
    """A function that gives the fields of a path relative to the pattern's folder.

    >>> fields_of("{method}/{subject}/{prompt}_{seed}.png")("lora/dog/on_the_beach_2.png")
    {'method': 'lora', 'subject': 'dog', 'prompt': 'on_the_beach', 'seed': '2'}

    Raises:
        RequestError: for braces without a name in them, two fields without text between them, or a path that leads out
            of the folder.
    """
    parts = _PART.split(pattern)  # text, mark, text, ..., text
    if not pattern or any("{" in text or "}" in text for text in parts[::2]) or "}{" in pattern:
        raise RequestError(f"pattern {pattern!r}: write names in braces, with text between them: {{subject}}_{{seed}}")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise RequestError(f"pattern {pattern!r}: it is relative to its folder")

    expression = ""
    for index, part in enumerate(parts):
        name = part[1:-1]
        if index % 2 == 0:
            expression += re.escape(part)
        elif part == "*":
            expression += "[^/]*"
        elif name == "ignore":
            expression += "[^/]+"
        elif part in parts[:index]:
            expression += f"(?P={name})"
        elif name in _DIGITS:
            expression += f"(?P<{name}>[0-9]+)"
        else:
            expression += f"(?P<{name}>[^/]+)"
    compiled = re.compile(expression)

    def fields(path: str) -> dict[str, str] | None:
        match = compiled.fullmatch(path)
        return match and match.groupdict()

    return fields


def split(text: str) -> tuple[str, str]:
    """A folder, and the pattern below it, of a path with fields: its folders before the first field.

    >>> split("/data/refs/{subject}/*.jpg")
    ('/data/refs', '{subject}/*.jpg')
    """
    folders: list[str] = []
    *parents, name = text.split("/")
    while parents and "{" not in parents[0] and "*" not in parents[0]:
        folders.append(parents.pop(0))
    folder = "/".join(folders)
    if not folder:
        folder = "/" if folders else "."
    return folder, "/".join([*parents, name])
