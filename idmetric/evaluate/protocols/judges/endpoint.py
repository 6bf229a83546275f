"""A model behind an OpenAI-compatible API: one request for each question, with its images as data URLs.

Requests go through httpx (`pip install 'idmetric[eval]'`). Redirects are not followed, since the key would travel with
them. Proxies and certificates come from the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE,
SSL_CERT_DIR); servers on this machine are always reached directly.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from idmetric.metric.errors import RequestError
from idmetric.metric.files.hints import need
from idmetric.version import __version__

if TYPE_CHECKING:
    import httpx

_SHOWN = 400  # characters of an error
_AGAIN = (408, 409, 425, 429)  # and 5xx
_HOPELESS = (401, 402, 403, 404, 405)  # all further pairs would fail too


@dataclass(frozen=True)
class FailedCall:
    """A request without an answer; `again`: it may succeed later, after `wait` seconds if the server says so."""

    reason: str
    again: bool = True
    wait: float | None = None


@dataclass(frozen=True)
class Reply:
    """A model's answer.

    Attributes:
        text: the answer. problem: why it is not a whole answer, or "".
        tokens: in and out, 0 if the server does not count them. model: the model's name according to the server.
    """

    text: str
    problem: str
    tokens: tuple[int, int]
    model: str


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
        ImportError: if httpx is missing.
    """

    url: str
    model: str
    key: str | None = None
    timeout: float = 120.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ValueError(f"{self.url!r} is not the address of an API: give https://HOST/v1")
        if self.key is not None and parts.scheme == "http" and not self.is_local:
            raise ValueError(f"{self.url!r}: the key of ${self.key} would be sent unencrypted: use https")
        need("eval", "a judge behind an address", httpx="httpx")  # now, not at the first call

    @property
    def host(self) -> str:
        """The server's name or IP address."""
        return urllib.parse.urlsplit(self.url).hostname or ""

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @cached_property
    def address(self) -> str:
        """scheme://host:port/path in canonical spelling; two servers on one host have two addresses."""
        parts = urllib.parse.urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"

    def about(self) -> dict[str, Any]:
        """Everything that its answers depend on, as JSON values."""
        return {"model": self.model, "endpoint": self.address, "extra": dict(self.extra)}

    def ask(
        self,
        prompt: str,
        images: Sequence[bytes],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Reply | FailedCall:
        """Ask one question about two JPEG images.

        Raises:
            RequestError: if all questions would fail.
        """
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
        for name, image in zip("AB", images, strict=True):
            address = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
            content += [
                {"type": "text", "text": f"Image {name}:"},
                {"type": "image_url", "image_url": {"url": address}},
            ]
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            **self.extra,
        }
        body = {name: value for name, value in body.items() if value is not None}
        secret = self._key()

        try:
            received = self._post(body, secret)
        except RequestError as error:
            raise RequestError(_hidden(str(error), secret)[:_SHOWN]) from None
        if isinstance(received, FailedCall):
            return replace(received, reason=_hidden(received.reason, secret)[:_SHOWN])
        return Reply(
            text=_hidden(received.text, secret),
            problem=_hidden(received.problem, secret),
            tokens=received.tokens,
            model=_hidden(received.model, secret) or self.model,
        )

    def _post(self, body: Mapping[str, Any], secret: str) -> Reply | FailedCall:
        import httpx

        headers = {"User-Agent": f"idmetric/{__version__}"}
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        try:
            response = self._client.post(f"{self.address}/chat/completions", json=body, headers=headers)
        except httpx.TimeoutException:
            return FailedCall(f"timed out: no reply after {self.timeout:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return FailedCall(f"{type(error).__name__}: {error}")

        status = response.status_code
        if not response.is_success:
            reason = f"HTTP {status} {response.reason_phrase}: {' '.join(response.text.split())}"
            if status in _HOPELESS or status < 400:
                raise RequestError(f"{self.url}: check address, model name and key: {reason}")
            wait = None
            with suppress(ValueError):  # a date
                wait = float(response.headers.get("Retry-After", ""))
            return FailedCall(reason, again=status in _AGAIN or status >= 500, wait=wait)
        try:
            return _reply(response.json())
        except (ValueError, RecursionError) as error:
            return FailedCall(f"the reply is not JSON ({error})")
        except (KeyError, IndexError, TypeError, AttributeError):
            return FailedCall("the reply has no choices[0].message.content")

    @cached_property
    def _client(self) -> httpx.Client:
        import httpx

        try:
            return httpx.Client(timeout=self.timeout, follow_redirects=False, trust_env=not self.is_local)
        except (ImportError, ValueError) as error:  # a proxy that httpx does not support
            raise RequestError(f"a proxy in the environment cannot be used: {error}") from None

    def _key(self) -> str:
        """The key, "" for none."""
        if self.key is None:
            return ""
        secret = os.environ.get(self.key, "").strip()
        if not secret or not (secret.isascii() and secret.isprintable()):
            raise RequestError(f"the environment variable {self.key} is empty, or no key: put the API key there")
        return secret


def _reply(completion: Any) -> Reply:
    """The answer in the JSON of a chat completion; raises KeyError, IndexError, TypeError or AttributeError without."""
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
    tokens = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return Reply(text, problem, tokens, str(completion.get("model") or ""))


def _hidden(text: str, secret: str) -> str:
    """The text without the key; short keys are placeholders of local servers ("EMPTY"), which occur in any text."""
    if len(secret) < 8:
        return text
    return text.replace(secret, "***")
