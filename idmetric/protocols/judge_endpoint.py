"""A model behind an OpenAI-compatible address: one request for each question, images inside it as data URLs.

Only the standard library is used, so that the baseline needs no client package. Redirects are not followed: the key
would go along. Proxies are taken from the environment, as urllib does.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

_LARGEST = 4 * 2**20  # bytes of a reply; more is no answer to our question
_AGAIN = (408, 409, 425, 429)  # and 5xx
_HOPELESS = (401, 402, 403, 404, 405)  # the next pair would fare no better


class JudgeError(ValueError):
    """No pair can be judged this way; the message says why and the way out."""


class CallError(Exception):
    """One request went wrong.

    Attributes:
        again: whether the same request may succeed later. wait: seconds the server asked us to wait.
        usage: tokens that it cost all the same (in, out).
    """

    def __init__(
        self, reason: str, again: bool = True, wait: float | None = None, usage: tuple[int, int] | None = None
    ) -> None:
        super().__init__(reason)
        self.again, self.wait, self.usage = again, wait, usage


class NoAnswerError(CallError):
    """The request went well, but nothing whole was said; the same words would give the same."""


@dataclass(frozen=True)
class Reply:
    """What a model said.

    Attributes:
        text: its words. usage: tokens in and out, None where the server does not count them.
        model: who answered, as the server names it.
    """

    text: str
    usage: tuple[int, int] | None
    model: str


@dataclass(frozen=True)
class Picture:
    """An encoded image as it is sent."""

    data: bytes
    mime: str


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server (vLLM, llama.cpp, Ollama, OpenAI, ...).

    Args:
        url: up to and including the version: https://api.openai.com/v1, http://127.0.0.1:8000/v1.
        model: its name there.
        key: name of the environment variable that holds the API key; None sends none. Neither the key nor anything that
            repeats it is ever shown or stored.
        timeout: seconds for a whole request.
        extra: further fields of the request, which win over ours; null takes one of ours away
            ({"max_tokens": null, "max_completion_tokens": 2000} for models that want the newer name).

    Raises:
        ValueError: for an address that is none, or a key that would go over the network in the clear.
    """

    url: str
    model: str
    key: str | None = None
    timeout: float = 120.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ValueError(f"{self.url!r} is no address of an API: give https://HOST/v1")
        if self.key is not None and parts.scheme == "http" and not _is_here(parts.hostname):
            raise ValueError(f"{self.url!r}: the key of ${self.key} would be sent unencrypted: use https")
        if self.timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, got {self.timeout}")

    def about(self) -> dict[str, Any]:
        """All that its answers depend on, as far as can be told from here."""
        return {"model": self.model, "host": urllib.parse.urlsplit(self.url).hostname, "extra": dict(self.extra)}

    def ask(self, prompt: str, pictures: Sequence[Picture], *, max_tokens: int, temperature: float, seed: int) -> Reply:
        """Send a prompt and images, return what is said.

        Raises:
            CallError: if this request failed.
            JudgeError: if all would: no or a wrong key, an unknown address or model.
        """
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
        for name, picture in zip("AB", pictures, strict=True):
            address = f"data:{picture.mime};base64,{base64.b64encode(picture.data).decode()}"
            content += [
                {"type": "text", "text": f"Image {name}:"},
                {"type": "image_url", "image_url": {"url": address}},
            ]
        body = {
            "model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens,
            "temperature": temperature, "seed": seed,
        }  # fmt: skip
        body = {name: value for name, value in {**body, **self.extra}.items() if value is not None}
        return _reply(self._post(json.dumps(body).encode()), self.model)

    def _post(self, body: bytes) -> Any:
        secret = self._key()
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", body, {"Content-Type": "application/json"}, method="POST"
        )
        if secret:
            request.add_unredirected_header("Authorization", f"Bearer {secret}")
        try:
            with _OPENER.open(request, timeout=self.timeout) as response:
                kind = response.headers.get_content_type()
                data = _read(response, time.monotonic() + self.timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, secret) from None
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = getattr(error, "reason", None) or error
            raise CallError(f"{type(reason).__name__}: {_hidden(str(reason), secret)}") from None
        if kind != "application/json":
            raise CallError(f"the reply is {kind}, not application/json")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CallError(f"the reply is not JSON ({_hidden(str(error), secret)})") from None

    def _key(self) -> str | None:
        if self.key is None:
            return None
        secret = os.environ.get(self.key, "").strip()
        if not secret:
            raise JudgeError(f"the environment variable {self.key} is empty: put the API key there")
        return secret

    def _refusal(self, error: urllib.error.HTTPError, secret: str | None) -> Exception:
        try:
            said = error.read(2000).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            said = ""
        reason = _hidden(f"HTTP {error.code} {error.reason}: {' '.join(said.split())[:300]}", secret)
        if error.code in _HOPELESS or 300 <= error.code < 400:
            return JudgeError(f"{self.url}: {reason}; check address, model name and key")
        again = error.code in _AGAIN or error.code >= 500
        return CallError(reason, again, _wait(error.headers.get("Retry-After")))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # the redirect itself becomes the error


_OPENER = urllib.request.build_opener(_NoRedirect)


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The whole body, by a deadline that a server cannot stretch by dribbling."""
    parts, size = [], 0
    while part := response.read1(65536):
        parts.append(part)
        size += len(part)
        if size > _LARGEST:
            raise CallError(f"the reply is longer than {_LARGEST} bytes", again=False)
        if time.monotonic() > deadline:
            raise TimeoutError("the reply did not end in time")
    promised = response.headers.get("Content-Length", "")
    if promised.isdigit() and size < int(promised):
        raise CallError(f"the reply broke off after {size} of {promised} bytes")
    return b"".join(parts)


def _reply(found: Any, asked: str) -> Reply:
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
    usage = found.get("usage") if isinstance(found, dict) else None
    if not isinstance(usage, dict):
        return None
    tokens = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in tokens):
        return None
    return int(tokens[0]), int(tokens[1])  # type: ignore[arg-type]


def _wait(header: str | None) -> float | None:
    """Seconds of a Retry-After header, which holds a number or a date."""
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


def _hidden(text: str, secret: str | None) -> str:
    return text.replace(secret, "***") if secret else text


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
