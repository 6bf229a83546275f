"""How often phrases that read unnatural in English stand in the documentation and the package, per 10,000 words.

python scripts/docs/words.py
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PHRASES = (
    r"what (?:is|was|are|were)",
    r"(?:tell|told|tells)",
    r"(?<!there\s)(?:is|are) (?:no|(?-i:none))",
    r"besides?",
    r"those (?:that|of which)",
    r"whose",
    r"anew",
    r"(?:goes|go|went) on",
    r"the way out",
    r"whole or not at all",
)


def documentation() -> Iterator[str]:
    """Prose of README and docs: no code."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield re.sub(r"```.*?```|`[^`\n]*`", " ", path.read_text(encoding="utf-8"), flags=re.S)


def package() -> Iterator[str]:
    """Docstrings, other string literals and comments of the package and the examples."""
    for path in sorted([*(ROOT / "idmetric").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def report(name: str, text: str) -> None:
    """Print the frequency of each phrase."""
    count = len(re.findall(r"[A-Za-z][\w'-]*", text))
    for phrase in PHRASES:
        pattern = rf"\b{phrase}\b".replace(" ", r"\s+")
        uses = len(re.findall(pattern, text, flags=re.I))
        print(f"{name:14} {uses / count * 10_000:6.1f}  {phrase}")


if __name__ == "__main__":
    report("documentation", "\n".join(documentation()))
    report("package", "\n".join(package()))
