"""Lists of object categories for ILGen, from a file or from a language model behind an OpenAI-compatible address."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from idmetric.data.generate.weights import GenerateError
from idmetric.metric.files import json_file
from idmetric.metric.files.hints import need

_MARKER = re.compile(r"^\s*(?:[-*•–]|\(?\d+[.):])\s+")  # of a list's item
_LONGEST = 80  # letters of a category; longer lines cannot be names
_ANSWERS = 20  # that are asked for at most


def read_categories(path: str | os.PathLike[str]) -> list[str]:
    """The categories of a text file, one on each line; blank lines, comments (#) and repetitions are ignored."""
    try:
        text = json_file.read_text(path, "utf-8-sig")
    except (OSError, ValueError) as error:
        raise GenerateError(f"{os.fspath(path)}: not readable as text: {error}") from error
    names = (" ".join(line.split()) for line in text.splitlines())
    found = _distinct(name for name in names if name and not name.startswith("#"))
    if not found:
        raise GenerateError(f"{os.fspath(path)}: the file has no categories; write one on each line")
    return found


def _distinct(names: Iterable[str]) -> list[str]:
    """The names without repetitions; case is ignored."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.casefold(), name)
    return list(found.values())


@dataclass(frozen=True)
class Chat:
    """A language model behind an OpenAI-compatible address.

    Attributes:
        url: such as http://localhost:8000/v1.
        model: its name on the server.
        key: bearer token to send, or None. Redirects are not followed, so no other server gets it.
    """

    url: str
    model: str
    key: str | None = None

    def say(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's answer to a conversation."""
        need("generate", "asking for categories", httpx="httpx")
        import httpx

        address = self.url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        body = {"model": self.model, "messages": list(messages)}
        try:
            reply = httpx.post(address, json=body, headers=headers, timeout=300)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise GenerateError(f"{address} gave no answer: {type(error).__name__}: {error}") from error
        said = " ".join(reply.text.split())[:300]
        if not reply.is_success:
            raise GenerateError(f"{address} refuses: status {reply.status_code}: {said}")
        try:
            return str(reply.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError) as error:
            raise GenerateError(f"{address} does not answer as /v1/chat/completions does: {said}") from error

    @property
    def openai(self) -> bool:
        """Whether the address is OpenAI's own, over https: the only server that gets OPENAI_API_KEY."""
        parts = urllib.parse.urlsplit(self.url)
        return (parts.scheme, parts.hostname, parts.port or 443) == ("https", "api.openai.com", 443)


def ask_categories(chat: Chat, domain: str, count: int, domains: Mapping[str, Any]) -> list[str]:
    """Ask a model for `count` categories of a domain (ILGen, section 3.2).

    The paper's prompts are in Table S1; ours say the same in other words, and ask for an answer that is easy to read.
    Twenty answers, or two in a row without a new category, end the attempt.

    Args:
        domain: a name in `domains`, such as generic, art, landmark or product, or a description of another domain.
        domains: the words of the questions (`Wording.domains`).
    """
    entry = domains.get(domain) or {"domain": domain, "examples": "any that fit"}
    first = {"role": "user", "content": domains["*prompt"].format(count=count, **entry)}
    found: list[str] = []
    messages, idle = [first], 0
    for _ in range(_ANSWERS):
        answer, before = chat.say(messages), len(found)
        found = _distinct([*found, *parse_categories(answer)])
        idle = idle + 1 if len(found) == before else 0
        if len(found) >= count or idle == 2:
            break
        more = domains["*more"].format(count=count - len(found))
        listed = {"role": "assistant", "content": "\n".join(found) or answer}
        messages = [first, listed, {"role": "user", "content": more}]
    if len(found) < count:
        raise GenerateError(
            f"the model gave {len(found)} different categories of {count}: ask for fewer (--limit), or another model"
        )
    return found[:count]


def parse_categories(answer: str) -> list[str]:
    """The names in a model's list, without numbers, bullets, emphasis and final punctuation.

    Long lines and headings are ignored.
    """
    answer = re.sub(r"<think>.*?</think>", "", answer, flags=re.DOTALL)
    named = [line.rstrip() for line in answer.splitlines() if not line.lstrip().startswith(("#", "```"))]
    lines = [line for line in named if not line.endswith(":")]
    names = [" ".join(_MARKER.sub("", x).replace("*", "").replace("`", "").split()).strip(" .,;\"'") for x in lines]
    return [n for n in names if n and len(n) <= _LONGEST and any(c.isalpha() for c in n)]
