"""Replies of a model, and the errors of requests."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any


class JudgeError(ValueError):
    """The judge cannot work at all; the message gives the reason and how to fix it."""


class CallError(Exception):
    """One request failed.

    Attributes:
        again: whether the same request may succeed later. wait: seconds to wait, as the server asks.
        usage: tokens (in, out) that the failed request cost.
    """

    def __init__(
        self, reason: str, again: bool = True, wait: float | None = None, usage: tuple[int, int] | None = None
    ) -> None:
        super().__init__(reason)
        self.again, self.wait, self.usage = again, wait, usage


class NoAnswerError(CallError):
    """The request succeeded without a complete answer; repeating it unchanged would not help."""


@dataclass(frozen=True)
class Reply:
    """A model's answer.

    Attributes:
        text: the answer. usage: tokens in and out; None if the server does not count them.
        model: the model's name according to the server.
    """

    text: str
    usage: tuple[int, int] | None
    model: str


@dataclass(frozen=True)
class Picture:
    """An encoded image as it is sent."""

    data: bytes
    mime: str


def reply_of(found: Any, asked: str) -> Reply:
    """The answer in the JSON of a chat completion; `asked` is the model's name if the server gives none.

    Raises:
        CallError: if it has no answer, or an incomplete one.
    """
    usage = _usage(found)
    try:
        choice = found["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise CallError("the reply has no choices[0].message.content", usage=usage) from None

    if not isinstance(text, str) or not text.strip():
        refusal = choice["message"].get("refusal")
        raise NoAnswerError(f"the answer is empty{f' (refused: {refusal})' if refusal else ''}", usage=usage)
    if choice.get("finish_reason") == "length":
        raise NoAnswerError("the answer was cut off at max_tokens: allow more", usage=usage)
    return Reply(text, usage, str(found.get("model") or asked))


def _usage(found: Any) -> tuple[int, int] | None:
    try:
        return int(found["usage"]["prompt_tokens"]), int(found["usage"]["completion_tokens"])
    except (KeyError, TypeError, ValueError):
        return None


def seconds_of(header: str | None) -> float | None:
    """Seconds to wait by a Retry-After header, which holds a number or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass

    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
