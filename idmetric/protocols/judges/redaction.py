"""Removes an API key from texts of a server, which may echo the key verbatim or encoded."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

SHORTEST = 8  # characters; shorter keys are placeholders of local servers ("EMPTY", "ollama") that occur in any text
_SHOWN = "***"


def redactor(secret: str | None) -> Callable[[str], str]:
    """A function that replaces a key by "***" in a text; apply it before cutting the text.

    It finds the key itself, with characters escaped as in JSON (at any depth), Python, URLs and HTML, in base64 (alone
    or within a longer text), and in hexadecimal digits.
    """
    if secret is None or len(secret) < SHORTEST:
        return lambda text: text
    forms = ["".join(map(_escaped, secret)), *map(re.escape, _base64(secret.encode())), secret.encode().hex()]
    pattern = re.compile("|".join(forms[:-1]) + f"|(?i:{forms[-1]})")
    return lambda text: pattern.sub(_SHOWN, text)


def _escaped(character: str) -> str:
    """A pattern for all spellings of a character; limiting backslashes bounds the time for long rows of them."""
    code = ord(character)
    url = "".join(f"%{byte:02x}" for byte in character.encode())
    spellings = [rf"u{code:04x}", rf"x{code:02x}"]
    alternatives = [rf"\\{{0,8}}{re.escape(character)}", rf"(?i:\\{{1,8}}(?:{'|'.join(spellings)}))", f"(?i:{url})",
                    rf"(?i:&\#(?:0{{0,6}}{code}|x0{{0,6}}{code:x});)"]  # fmt: skip
    named = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", " ": r"\+"}.get(character)
    return f"(?:{'|'.join([*alternatives, named] if named else alternatives)})"


def _base64(secret: bytes) -> list[str]:
    """The characters that depend on the key alone, for its three positions within the triples of base64."""
    found = []
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[before] : len(encoded) - bool((before + len(secret)) % 3)]
        found += [inner, inner.replace("+", "-").replace("/", "_")]
    return list(dict.fromkeys(found))
