"""What multimodal language models answer: the text without its thoughts, and the grades in its lines."""

from __future__ import annotations

import re

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_GRADE = re.compile(
    r"""
    [\s*#\[-]*  (?P<label> [^\W\d_] [^:*\n]*? )  [*\s]* :      # **Visual Quality**:
    [\s*\[]*    (?P<number> \d+ (?:\.\d+)? )                   # 7, [7], 7.5
    (?: \s* / \s* \d+ )?  [\s*\].]*                            # 7/10, 7.
    """,
    re.VERBOSE,
)


def without_thoughts(text: str) -> str:
    """An answer without the thoughts that a reasoning model writes before it (`<think>...</think>`)."""
    return _THOUGHT.sub("", text, count=1).strip()


def grades_in_lines(text: str) -> dict[str, float]:
    """Label -> grade of each line that is a label, a colon and a number, such as `Visual Quality: 7`.

    Other lines, such as reasons, are passed over. Emphasis, brackets and a trailing `/10` are allowed. A label that
    occurs twice has no grade, since it is not clear which one counts.

    >>> grades_in_lines("Reasoning: 2 dogs, one is wrong\\n**Visual Quality**: 7/10\\nRealism: [4]")
    {'Visual Quality': 7.0, 'Realism': 4.0}
    """
    grades: dict[str, float] = {}
    repeated: set[str] = set()
    for line in without_thoughts(text).splitlines():
        match = _GRADE.fullmatch(line)
        if match is None:
            continue
        label = match["label"].strip()
        if label in grades:
            repeated.add(label)
        grades[label] = float(match["number"])
    return {label: grade for label, grade in grades.items() if label not in repeated}
