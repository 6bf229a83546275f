"""A model behind an OpenAI-compatible address: one request for each question, images inside it as data URLs.

Requests go through httpx (`pip install 'idmetric[eval]'`). `timeout` is a deadline for the whole call: name lookup,
connection, headers and body together, however slowly they come. Redirects are not followed, since the key would travel
with them. Proxies and certificates come from the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY,
SSL_CERT_FILE, SSL_CERT_DIR), except for servers on this machine, which are always reached directly.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from idmetric import __version__
from idmetric.io.hints import install
from idmetric.protocols.judges.redaction import redactor

if TYPE_CHECKING:
    import ssl

    import httpx

_LARGEST = 4 * 2**20  # bytes of a reply; more is no answer to our question
_SHOWN = 300  # characters of a refusal
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
        key: name of the environment variable that holds the API key; None sends none. Wherever a server echoes the key,
            messages and stored records hold "***", see `judge_redaction.redactor`.
        timeout: seconds until a call has to be complete, from the name lookup to the last byte.
        extra: further fields of the request, which win over ours; null takes one of ours away
            ({"max_tokens": null, "max_completion_tokens": 2000} for models that want the newer name).

    Raises:
        ValueError: for an address that is none, or a key that would go over the network in the clear.
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
            raise ValueError(f"{self.url!r} is no address of an API: give https://HOST/v1")
        if self.key is not None and parts.scheme == "http" and not self.is_local:
            raise ValueError(f"{self.url!r}: the key of ${self.key} would be sent unencrypted: use https")
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout must be above 0 seconds and finite, got {self.timeout}")
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
        """scheme://host:port/path in one spelling: two servers on one host have two addresses."""
        parts = urllib.parse.urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"

    def about(self) -> dict[str, Any]:
        """See `judge.Backend`."""
        return {"model": self.model, "endpoint": self.address, "extra": dict(self.extra)}

    def about_before(self) -> dict[str, Any]:
        """`about` of version 0.1, which named the host alone."""
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
        secret = self._key()
        hide = redactor(secret)
        try:
            reply = _reply(self._post(json.dumps(body).encode(), secret, hide), self.model)
        except (CallError, JudgeError) as error:
            error.args = (hide(str(error)),)
            raise
        return Reply(hide(reply.text), reply.usage, hide(reply.model))

    def _post(self, body: bytes, secret: str | None, hide: Callable[[str], str]) -> Any:
        """The JSON that the server answers with."""
        httpx = _httpx()
        try:
            kind, data = _await(self._exchange(body, secret, hide))
        except TimeoutError:
            raise CallError(f"timed out: no complete reply after {self.timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise CallError(f"{type(error).__name__}: {error}") from None
        if kind != "application/json":
            raise CallError(f"the reply is {hide(kind)[:_SHOWN]}, not application/json")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CallError(f"the reply is not JSON ({error})") from None

    async def _exchange(self, body: bytes, secret: str | None, hide: Callable[[str], str]) -> tuple[str, bytes]:
        """Media type and body of the reply, before the deadline."""
        import anyio

        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity",
                   "User-Agent": f"idmetric/{__version__}"}  # fmt: skip
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        # httpx limits single reads, which a server that sends a byte now and then never exceeds
        with anyio.fail_after(self.timeout):
            async with (
                self._client() as client,
                client.stream("POST", f"{self.address}/chat/completions", content=body, headers=headers) as response,
            ):
                data, whole = await _read(response)
                if not response.is_success:
                    raise self._refusal(response, data, whole, hide)
        if not whole:
            raise CallError(f"the reply is longer than {_LARGEST} bytes", again=False)
        return response.headers.get("Content-Type", "").partition(";")[0].strip().lower() or "untyped", data

    def _client(self) -> httpx.AsyncClient:
        try:
            return _httpx().AsyncClient(
                timeout=None, follow_redirects=False, trust_env=not self.is_local, verify=_certificates()
            )
        except (ImportError, ValueError) as error:  # of a proxy that httpx does not speak to
            raise JudgeError(f"a proxy in the environment cannot be used: {error}") from None

    def _key(self) -> str | None:
        if self.key is None:
            return None
        secret = os.environ.get(self.key, "").strip()
        if not secret:
            raise JudgeError(f"the environment variable {self.key} is empty: put the API key there")
        if not (secret.isascii() and secret.isprintable()):
            raise JudgeError(
                f"the environment variable {self.key} holds characters that an HTTP header cannot: check it"
            )
        return secret

    def _refusal(
        self, response: httpx.Response, data: bytes, whole: bool, hide: Callable[[str], str]
    ) -> CallError | JudgeError:
        # hidden before it is cut: otherwise part of a key at the cut would remain
        said = hide(data.decode("utf-8", "replace"))
        said = said if whole else said[: len(said) // 2]
        status, phrase = response.status_code, hide(response.reason_phrase)
        reason = f"HTTP {status} {phrase[:_SHOWN]}: {' '.join(said.split())[:_SHOWN]}"
        if status in _HOPELESS or status < 400:
            return JudgeError(f"{self.url}: {reason}; check address, model name and key")
        again = status in _AGAIN or status >= 500
        return CallError(reason, again, _wait(response.headers.get("Retry-After")))


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ImportError(f"a judge behind an address needs httpx: {install('eval')}") from error
    return httpx


@cache
def _certificates() -> ssl.SSLContext:
    """Trusted certificates, which take tens of milliseconds to load."""
    context: ssl.SSLContext = _httpx().create_ssl_context()
    return context


_STARTING = threading.Lock()
_LOOPS: list[asyncio.AbstractEventLoop] = []


def _await(work: Any) -> Any:
    """The result of a coroutine, run by one background loop for all threads.

    A loop of its own for each call would wait at its end for a name lookup that hangs, beyond any deadline.
    """
    with _STARTING:
        if not _LOOPS:
            _LOOPS.append(asyncio.new_event_loop())
            threading.Thread(target=_LOOPS[0].run_forever, name="idmetric-judge", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(work, _LOOPS[0])
    try:
        return future.result()
    finally:
        future.cancel()  # where the wait was interrupted


async def _read(response: httpx.Response) -> tuple[bytes, bool]:
    """The body, and whether all of it was read: it ends at the limit."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise CallError("the reply is compressed, although that was ruled out")  # a few bytes could become gigabytes
    data = bytearray()
    async for part in response.aiter_raw():
        data += part
        if len(data) > _LARGEST:
            return bytes(data[:_LARGEST]), False
    return bytes(data), True


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
