"""Phrases that read unnatural in English stay rare in the documentation and in the package.

python -m tests.docs.test_words      prints counts per 10,000 words and where the phrases stand
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# phrase -> (limit in the documentation, limit in the package), both per 10,000 words
LIMITS = {
    r"what (?:is|was|are|were)": (0.5, 1.5),
    r"(?:tell|told|tells)": (0.5, 0.5),
    r"(?<!there\s)(?:is|are) (?:no|(?-i:none))": (0.5, 0.5),
    r"besides?": (0, 0),
    r"those (?:that|of which)": (1, 1),
    r"whose": (1, 1),
    r"anew": (0, 0),
    r"(?:goes|go|went) on": (0, 0),
    r"the way out": (0, 0),
    r"whole or not at all": (0, 0),
}
Text = tuple[str, str]  # where, text


def documentation() -> Iterator[Text]:
    """Prose of README and docs: no code blocks."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield path.name, re.sub(r"```.*?```|`[^`\n]*`", " ", path.read_text(encoding="utf-8"), flags=re.S)


def package() -> Iterator[Text]:
    """Docstrings, comments and string literals of the package and the examples."""
    for path in sorted([*(ROOT / "idmetric").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]):
        source = path.read_text(encoding="utf-8")
        strings = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
        texts = [text for text in strings if isinstance(text, str)]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
        yield str(path.relative_to(ROOT)), "\n".join(texts)


def found(phrase: str, texts: list[Text]) -> list[str]:
    pattern = re.compile(rf"\b{phrase}\b".replace(" ", r"\s+"), flags=re.I)
    return [f"{where}: {' '.join(m[0].split())}" for where, text in texts for m in pattern.finditer(text)]


def words(texts: list[Text]) -> int:
    return sum(len(re.findall(r"[A-Za-z][\w'-]*", text)) for _, text in texts)


@cache
def texts_of(place: int) -> tuple[list[Text], int]:
    """The texts, and how many words they have."""
    texts = list((documentation, package)[place]())
    return texts, words(texts)


@pytest.mark.parametrize("phrase", LIMITS)
@pytest.mark.parametrize("place", [0, 1], ids=["docs", "package"])
def test_phrases_that_read_unnatural_are_rare(phrase: str, place: int) -> None:
    texts, count = texts_of(place)
    places = found(phrase, texts)
    limit = LIMITS[phrase][place] * count / 10_000
    assert len(places) <= limit, f"{phrase!r} {len(places)} times, at most {limit:.0f}: {places}"


if __name__ == "__main__":
    for name, texts in (("docs", list(documentation())), ("package", list(package()))):
        for phrase in LIMITS:
            places = found(phrase, texts)
            print(f"{name:8} {len(places) / words(texts) * 10_000:6.1f}  {phrase}")
