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
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from idmetric.io.hints import install
from idmetric.protocols.judges.reply import CallError, JudgeError, Picture, Reply, reply_of, seconds_of
from idmetric.version import __version__

if TYPE_CHECKING:
    import httpx

_SHOWN = 300  # characters of a refusal
_AGAIN = (408, 409, 425, 429)  # and 5xx
_HOPELESS = (401, 402, 403, 404, 405)  # all further pairs would fail too


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
        _httpx()  # report a missing package now, not at the first call

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        host = urllib.parse.urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @cached_property
    def address(self) -> str:
        """scheme://host:port/path in canonical spelling; two servers on one host have two addresses."""
        parts = urllib.parse.urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"

    def about(self) -> dict[str, Any]:
        """See `judge.Backend`."""
        return {"model": self.model, "endpoint": self.address, "extra": dict(self.extra)}

    def ask(self, prompt: str, pictures: Sequence[Picture], *, max_tokens: int, temperature: float, seed: int) -> Reply:
        """Send a prompt and images, and return the model's reply.

        Raises:
            CallError: if this request failed.
            JudgeError: if all requests would fail: a missing or wrong key, an unknown address or model.
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
        secret = self._key()

        try:
            reply = reply_of(self._post(body, secret), self.model)
            return Reply(_hidden(reply.text, secret), reply.usage, _hidden(reply.model, secret))
        except (CallError, JudgeError) as error:
            error.args = (_hidden(str(error), secret),)
            raise

    def _post(self, body: Mapping[str, Any], secret: str) -> Any:
        """The JSON value of the server's reply."""
        httpx = _httpx()
        headers = {"User-Agent": f"idmetric/{__version__}", **({"Authorization": f"Bearer {secret}"} if secret else {})}
        try:
            response = self._client.post(f"{self.address}/chat/completions", json=body, headers=headers)
        except httpx.TimeoutException:
            raise CallError(f"timed out: no reply after {self.timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise CallError(f"{type(error).__name__}: {error}") from None

        if not response.is_success:
            raise self._refusal(response, secret)
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise CallError(f"the reply is not JSON ({error})") from None

    @cached_property
    def _client(self) -> httpx.Client:
        try:
            return _httpx().Client(timeout=self.timeout, follow_redirects=False, trust_env=not self.is_local)
        except (ImportError, ValueError) as error:  # a proxy that httpx does not support
            raise JudgeError(f"a proxy in the environment cannot be used: {error}") from None

    def _key(self) -> str:
        """The key, "" for none."""
        if self.key is None:
            return ""
        secret = os.environ.get(self.key, "").strip()
        if not secret:
            raise JudgeError(f"the environment variable {self.key} is empty: put the API key there")
        if not (secret.isascii() and secret.isprintable()):
            raise JudgeError(f"the environment variable {self.key} holds characters that HTTP headers cannot: check it")
        return secret

    def _refusal(self, response: httpx.Response, secret: str) -> CallError | JudgeError:
        said = " ".join(_hidden(response.text, secret).split())  # hidden before the cut, or a part could remain
        status = response.status_code
        reason = f"HTTP {status} {response.reason_phrase}: {said[:_SHOWN]}"
        if status in _HOPELESS or status < 400:
            return JudgeError(f"{self.url}: {reason}; check address, model name and key")
        again = status in _AGAIN or status >= 500
        return CallError(reason, again, seconds_of(response.headers.get("Retry-After")))


def _hidden(text: str, secret: str) -> str:
    """The text without the key; short keys are placeholders of local servers ("EMPTY"), which occur in any text."""
    return text.replace(secret, "***") if len(secret) >= 8 else text


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ImportError(f"a judge behind an address needs httpx: {install('eval')}") from error
    return httpx
