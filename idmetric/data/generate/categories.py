"""Lists of object categories for ILGen, from a file or from a language model behind an OpenAI-compatible address."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from idmetric.data.curate.recipes import ILGEN
from idmetric.data.generate.weights import GenerateError
from idmetric.io import json_file
from idmetric.io.output import replacing

Prompts = Literal["designed", "template"]
COUNTS = {domain: (counts.categories, counts.per_category) for domain, counts in ILGEN.items()}
TEMPLATE_COUNT = 2000  # categories that the template asks for in every domain (Table S1)
_MARKER = re.compile(r"^\s*(?:[-*•–]|\(?\d+[.):])\s+")  # of a list's item
_LONGEST = 80  # letters of a category; longer lines cannot be names
OPENAI = "api.openai.com"  # the only server that gets OPENAI_API_KEY


def read_categories(path: str | os.PathLike[str]) -> list[str]:
    """The categories of a text file, one on each line; blank lines and lines that start with # are ignored.

    Raises:
        GenerateError: if the file cannot be read, has no categories, or repeats one.
    """
    try:
        text = json_file.read_text(path, "utf-8-sig")
    except (OSError, ValueError) as error:
        raise GenerateError(f"{os.fspath(path)}: not readable as text: {error}") from error
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name = " ".join(line.split())
        if name and not name.startswith("#"):
            seen, _ = found.setdefault(name.casefold(), (number, name))
            if seen != number:
                raise GenerateError(f"{os.fspath(path)}: line {number} repeats line {seen}: {name!r}")
    if not found:
        raise GenerateError(f"{os.fspath(path)}: the file has no categories; write one on each line")
    return [name for _, name in found.values()]


def write_categories(path: str | os.PathLike[str], categories: Sequence[str]) -> None:
    """Write a file of categories atomically."""
    with replacing(Path(path), parents=True) as temporary:
        temporary.write_text("\n".join(categories) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Chat:
    """A language model behind an OpenAI-compatible address.

    Attributes:
        url: such as http://localhost:8000/v1; `/chat/completions` is appended if it is missing.
        model: its name on the server.
        key: bearer token to send, or None. Redirects are not followed, so no other server gets it.
        timeout: seconds to wait for one answer.
    """

    url: str
    model: str
    key: str | None = None
    timeout: float = 300.0

    def say(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's answer to a conversation.

        Raises:
            GenerateError: quoting the server, if it does not answer.
        """
        address = self.url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
            raise GenerateError(f"{self.url!r} is not an http or https address")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        body = json.dumps({"model": self.model, "messages": list(messages)}).encode()
        request = urllib.request.Request(address, body, headers, method="POST")

        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(2000).decode("utf-8", "replace").split())
            raise GenerateError(f"{address} refuses: status {error.code} {error.reason}: {said[:300]}") from error
        except (OSError, http.client.HTTPException) as error:
            raise GenerateError(f"{address} gave no answer: {type(error).__name__}: {error}") from error

        try:
            content = json_file.parse(data)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise GenerateError(f"{address} does not answer as /v1/chat/completions does: {data[:200]!r}") from error
        if not isinstance(content, str) or not content.strip():
            raise GenerateError(f"{address} answers with nothing")
        return content

    @property
    def openai(self) -> bool:
        """Whether the address is OpenAI's own, over https."""
        parts = urllib.parse.urlsplit(self.url)
        return (parts.scheme, parts.hostname, parts.port or 443) == ("https", OPENAI, 443)


def paper_numbers(domain: str, prompts: Prompts = "designed", found: int | None = None) -> tuple[int, int]:
    """Number of categories to ask for, 0 if the domain is not the paper's, and of objects of each.

    With designed prompts they are those of Table 1. With the template, categories number 2,000 in every domain (Table
    S1), and objects are as many as give Table 1's instances, which are drawn from them later.

    Args:
        found: number of categories of the template that there are; default: 2,000.
    """
    if prompts == "designed" or domain not in ILGEN:
        return COUNTS.get(domain, (0, 10))
    return TEMPLATE_COUNT, math.ceil(ILGEN[domain].instances / (found or TEMPLATE_COUNT))


def file_categories(
    path: Path, chat: Chat, domain: str, count: int, domains: Mapping[str, Any], prompts: Prompts = "designed"
) -> None:
    """Ask a model for `count` categories of a domain (ILGen, section 3.2) and write them to a file.

    The paper's prompts are in Table S1; ours say the same in other words, and ask for an answer that is easy to read.
    `<file>.partial` keeps the categories so far after each answer, and the next attempt resumes from it. Twenty
    answers, or two in a row without a new category, end the attempt.

    Args:
        domain: a name in `domains`, such as generic, art, landmark or product, or a description of another domain.
        domains: the words of the questions (`Wording.domains`).
        prompts: "designed" describes the domain at length; "template" puts its name and examples into one text for all
            domains (Table 7, S3).

    Raises:
        GenerateError: if the model names fewer than `count`.
    """
    entry = domains.get(domain) or {"domain": domain, "examples": "any that fit"}
    spoken = entry["domain"] if prompts == "designed" else entry.get("name", entry["domain"])
    asked = domains["*prompt" if prompts == "designed" else "*template"]
    first = {"role": "user", "content": asked.format(count=count, domain=spoken, examples=entry["examples"])}
    partial = path.with_name(f"{path.name}.partial")
    known = read_categories(partial) if partial.exists() else []
    found = {name.casefold(): name for name in known}
    answer, idle = "", 0

    try:
        for _ in range(20):
            if len(found) >= count or idle == 2:
                break
            messages = [first]
            if listed := "\n".join(found.values()) or answer:
                more = domains["*more"].format(count=count - len(found))
                messages += [{"role": "assistant", "content": listed}, {"role": "user", "content": more}]
            answer = chat.say(messages)
            before = len(found)
            for name in parse_categories(answer):
                found.setdefault(name.casefold(), name)
            idle = idle + 1 if len(found) == before else 0
            if not idle:
                write_categories(partial, list(found.values()))
        if len(found) < count:
            says = f"the model gave {len(found)} different categories of {count}: ask for fewer, or another model"
            raise GenerateError(says)
    except GenerateError as error:
        if not partial.exists():
            raise
        raise GenerateError(f"{error}; {partial} keeps the categories so far: run again to resume") from error
    write_categories(path, list(found.values())[:count])
    partial.unlink(missing_ok=True)


def parse_categories(answer: str) -> list[str]:
    """The names in a model's list, without numbers, bullets, emphasis and final punctuation.

    Long lines and headings are ignored.
    """
    answer = re.sub(r"<think>.*?</think>", "", answer, flags=re.DOTALL)
    named = [line.rstrip() for line in answer.splitlines() if not line.lstrip().startswith(("#", "```"))]
    lines = [line for line in named if not line.endswith(":")]
    names = [" ".join(_MARKER.sub("", x).replace("*", "").replace("`", "").split()).strip(" .,;\"'") for x in lines]
    return [n for n in names if n and len(n) <= _LONGEST and any(c.isalpha() for c in n)]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error; following it would send the key to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None
