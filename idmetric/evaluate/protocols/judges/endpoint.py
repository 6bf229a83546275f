"""A model behind an OpenAI-compatible API: one request for each question, with its images as data URLs.

Needs the `openai` client (`pip install 'idmetric[judge]'`); `data.chat` says what it sends to whom.
"""

from __future__ import annotations

import base64
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from idmetric.data.chat import check_address, hidden, is_local, open_client, reason_of
from idmetric.metric.errors import RequestError
from idmetric.metric.files import need

if TYPE_CHECKING:
    import openai

_RETRIES = 3  # by the client: timeouts, lost connections, HTTP 408, 409, 429 and 5xx
_HOPELESS = (401, 402, 403, 404, 405)  # all further pairs would fail too


@dataclass(frozen=True)
class Reply:
    """A model's answer.

    Attributes:
        text: the answer. problem: why it is not a whole answer, or "".
        failed: whether the server gave no answer at all, after all retries.
        tokens: in and out, 0 if the server does not count them. model: the model's name according to the server.
    """

    text: str = ""
    problem: str = ""
    failed: bool = False
    tokens: tuple[int, int] = (0, 0)
    model: str = ""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server (vLLM, llama.cpp, Ollama, OpenAI, ...).

    Args:
        url: up to and including the version: https://api.openai.com/v1, http://127.0.0.1:8000/v1.
        model: its name on the server.
        key: name of the environment variable that holds the API key; None sends none. Messages and stored records show
            "***" in its place.
        timeout: seconds to wait for the server to connect, and for its reply.
        extra: further fields of the request, which override the standard ones; null removes one
            ({"max_tokens": null, "max_completion_tokens": 2000} for models that expect the newer name).

    Raises:
        ValueError: if the address is not one of an API, or the key would be sent unencrypted over a network.
        ImportError: if `openai` is missing.
    """

    url: str
    model: str
    key: str | None = None
    timeout: float = 120.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_address(self.url)
        if self.key is not None and not self.url.lower().startswith("https:") and not is_local(self.url):
            raise ValueError(f"{self.url!r}: the key of ${self.key} would be sent unencrypted: use https")
        need("judge", "a judge behind an address", openai="openai")  # now, not at the first call

    @property
    def host(self) -> str:
        """The server's name or IP address."""
        return urllib.parse.urlsplit(self.url).hostname or ""

    def about(self) -> dict[str, Any]:
        """Everything that its answers depend on, as JSON values."""
        return {"model": self.model, "endpoint": self.url.rstrip("/"), "extra": dict(self.extra)}

    def ask(
        self,
        prompt: str,
        images: Sequence[bytes],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Reply:
        """Ask one question about two JPEG images.

        Raises:
            RequestError: if all questions would fail.
        """
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
        for name, image in zip("AB", images, strict=True):
            address = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
            content.append({"type": "text", "text": f"Image {name}:"})
            content.append({"type": "image_url", "image_url": {"url": address}})
        options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, **self.extra}
        client = self._client
        import openai

        try:
            response = client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=[{"role": "user", "content": content}],
                extra_body={name: value for name, value in options.items() if value is not None},
            )
        except openai.APIStatusError as error:
            reason = reason_of(error, self._secret)
            if error.status_code in _HOPELESS or error.status_code < 400:  # a redirect
                raise RequestError(f"{self.url}: check address, model name and key: {reason}") from None
            return Reply(problem=reason, failed=True)
        except openai.OpenAIError as error:
            return Reply(problem=reason_of(error, self._secret), failed=True)

        try:
            return self._reply(response.http_response.json())
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return Reply(problem="the reply is not a chat completion")

    def _reply(self, completion: Any) -> Reply:
        """The answer in the JSON of a chat completion."""
        choice = completion["choices"][0]
        text, refusal = choice["message"]["content"], choice["message"].get("refusal")
        problem = ""
        if not isinstance(text, str) or not text.strip():
            text, problem = "", "the answer is empty"
            if refusal:
                problem += f" (refused: {refusal})"
        elif choice.get("finish_reason") == "length":
            problem = "the answer was cut off at max_tokens: allow more"
        usage = completion.get("usage") or {}
        return Reply(
            text=hidden(text, self._secret),
            problem=hidden(problem, self._secret),
            tokens=(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0),
            model=hidden(str(completion.get("model") or self.model), self._secret),
        )

    @cached_property
    def _client(self) -> openai.OpenAI:
        return open_client(self.url, self._secret, timeout=self.timeout, max_retries=_RETRIES)

    @property
    def _secret(self) -> str:
        """The key, "" for none."""
        if self.key is None:
            return ""
        secret = os.environ.get(self.key, "").strip()
        if not secret:
            raise RequestError(f"the environment variable {self.key} is empty: put the API key there")
        return secret
