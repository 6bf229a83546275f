"""Lists of object categories for ILGen, from a file or from a language model behind an OpenAI-compatible address."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from idmetric.data.chat import open_client, reason_of
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, read_text

_MARKER = re.compile(r"(?:[-*•–]|\(?\d+[.):])\s+")  # of a list's item
_LONGEST = 80  # letters of a category; longer lines cannot be names
_ANSWERS = 20  # that are asked for at most


def read_categories(path: StrPath) -> list[str]:
    """The categories of a text file, one on each line; blank lines, comments (#) and repetitions are ignored."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: not readable as text: {error}") from error
    names = [" ".join(line.split()) for line in lines]
    categories = _distinct(name for name in names if name and not name.startswith("#"))
    if not categories:
        raise RequestError(f"{path}: the file has no categories; write one on each line")
    return categories


def ask_categories(
    url: str,
    model: str,
    domain: str,
    count: int,
    domains: Mapping[str, Any],
    key: str = "",
) -> list[str]:
    """Ask a model for `count` categories of a domain (ILGen, section 3.2).

    The paper's prompts are in Table S1; ours say the same in other words, and ask for an answer that is easy to read.
    Twenty answers, or two in a row without a new category, end the attempt.

    Args:
        url: such as http://localhost:8000/v1. model: its name there. key: bearer token to send, "" for none.
        domain: a name in `domains`, such as generic, art, landmark or product, or a description of another domain.
        domains: the words of the questions (`Wording.domains`).
    """
    client = open_client(url, key, timeout=300, max_retries=2)
    import openai

    entry = domains.get(domain) or {"domain": domain, "examples": "any that fit"}
    question = {"role": "user", "content": domains["*prompt"].format(count=count, **entry)}
    messages: list[Any] = [question]
    categories: list[str] = []
    idle = 0  # answers in a row without a new category
    for _ in range(_ANSWERS):
        try:
            completion = client.chat.completions.create(model=model, messages=messages)
            answer = str(completion.choices[0].message.content or "")
        except openai.OpenAIError as error:
            raise RequestError(f"{url}: {reason_of(error, key)}") from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RequestError(f"{url} does not answer as /v1/chat/completions does") from error

        extended = _distinct([*categories, *parse_categories(answer)])
        idle = idle + 1 if len(extended) == len(categories) else 0
        categories = extended
        if len(categories) >= count or idle == 2:
            break
        said = {"role": "assistant", "content": "\n".join(categories) or answer}
        more = domains["*more"].format(count=count - len(categories))
        messages = [question, said, {"role": "user", "content": more}]

    if len(categories) < count:
        raise RequestError(f"the model gave {len(categories)} different categories of {count}: ask for fewer (--limit)")
    return categories[:count]


def parse_categories(answer: str) -> list[str]:
    """The names in a model's list, without numbers, bullets, emphasis and final punctuation.

    Long lines and headings are ignored.
    """
    answer = re.sub(r"<think>.*?</think>", "", answer, flags=re.DOTALL)
    names = []
    for line in answer.splitlines():
        line = line.strip()
        if line.startswith(("#", "```")) or line.endswith(":"):
            continue
        name = _MARKER.sub("", line).strip(" .,;\"'*`")
        if len(name) <= _LONGEST and any(map(str.isalpha, name)):
            names.append(name)
    return names


def _distinct(names: Iterable[str]) -> list[str]:
    """The names without repetitions; case is ignored."""
    distinct: dict[str, str] = {}
    for name in names:
        distinct.setdefault(name.casefold(), name)
    return list(distinct.values())
