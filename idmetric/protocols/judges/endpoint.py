"""A model behind an OpenAI-compatible API: one request for each question, with its images as data URLs.

Requests go through httpx (`pip install 'idmetric[eval]'`). `timeout` is a deadline for the whole call, from the name
lookup to the last byte. Redirects are not followed, since the key would travel with them. Proxies and certificates come
from the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR); servers on this
machine are always reached directly.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import ipaddress
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from idmetric import __version__
from idmetric.io.hints import install
from idmetric.protocols.judges.reply import CallError, JudgeError, Picture, Reply, reply_of, seconds_of

if TYPE_CHECKING:
    import ssl

    import httpx


# Keys


SHORTEST = 8  # characters; shorter keys are placeholders of local servers ("EMPTY", "ollama") that occur in any text
_HIDDEN = "***"


def redactor(secret: str | None) -> Callable[[str], str]:
    """A function that replaces a key by "***" in a text; apply it before cutting the text.

    It finds the key itself, with characters escaped as in JSON (at any depth), Python, URLs and HTML, in base64 (alone
    or within a longer text), and in hexadecimal digits.
    """
    if secret is None or len(secret) < SHORTEST:
        return lambda text: text
    forms = ["".join(map(_escaped, secret)), *map(re.escape, _base64(secret.encode())), secret.encode().hex()]
    pattern = re.compile("|".join(forms[:-1]) + f"|(?i:{forms[-1]})")
    return lambda text: pattern.sub(_HIDDEN, text)


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


# Requests


_LARGEST = 4 * 2**20  # bytes of a reply; an answer is far smaller
_SHOWN = 300  # characters of a refusal
_AGAIN = (408, 409, 425, 429)  # and 5xx
_HOPELESS = (401, 402, 403, 404, 405)  # all further pairs would fail too


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server (vLLM, llama.cpp, Ollama, OpenAI, ...).

    Args:
        url: up to and including the version: https://api.openai.com/v1, http://127.0.0.1:8000/v1.
        model: its name on the server.
        key: name of the environment variable that holds the API key; None sends none. Wherever a server echoes the key,
            messages and stored records hold "***", see `redactor`.
        timeout: seconds for a whole call.
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
        hide = redactor(secret)

        try:
            reply = reply_of(self._post(json.dumps(body).encode(), secret, hide), self.model)
            return Reply(hide(reply.text), reply.usage, hide(reply.model))
        except (CallError, JudgeError) as error:
            error.args = (hide(str(error)),)
            raise

    def _post(self, body: bytes, secret: str | None, hide: Callable[[str], str]) -> Any:
        """The JSON value of the server's reply."""
        httpx = _httpx()
        try:
            kind, data = _await(self._exchange(body, secret, hide), self.timeout)
        except concurrent.futures.TimeoutError:
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
        """Media type and body of the reply."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity",
                   "User-Agent": f"idmetric/{__version__}"}  # fmt: skip
        if secret:
            headers["Authorization"] = f"Bearer {secret}"

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
        options = {"timeout": None, "follow_redirects": False, "trust_env": not self.is_local}
        try:
            return _httpx().AsyncClient(**options, verify=_certificates())
        except (ImportError, ValueError) as error:  # a proxy that httpx does not support
            raise JudgeError(f"a proxy in the environment cannot be used: {error}") from None

    def _key(self) -> str | None:
        if self.key is None:
            return None
        secret = os.environ.get(self.key, "").strip()
        if not secret:
            raise JudgeError(f"the environment variable {self.key} is empty: put the API key there")
        if not (secret.isascii() and secret.isprintable()):
            raise JudgeError(f"the environment variable {self.key} holds characters that HTTP headers cannot: check it")
        return secret

    def _refusal(
        self, response: httpx.Response, data: bytes, whole: bool, hide: Callable[[str], str]
    ) -> CallError | JudgeError:
        # hide the key before cutting the text, or part of it could remain at the cut
        said = hide(data.decode("utf-8", "replace"))
        said = said if whole else said[: len(said) // 2]
        status, phrase = response.status_code, hide(response.reason_phrase)
        reason = f"HTTP {status} {phrase[:_SHOWN]}: {' '.join(said.split())[:_SHOWN]}"
        if status in _HOPELESS or status < 400:
            return JudgeError(f"{self.url}: {reason}; check address, model name and key")
        again = status in _AGAIN or status >= 500
        return CallError(reason, again, seconds_of(response.headers.get("Retry-After")))


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ImportError(f"a judge behind an address needs httpx: {install('eval')}") from error
    return httpx


@cache
def _certificates() -> ssl.SSLContext:
    """The trusted certificates; loading them takes tens of milliseconds."""
    context: ssl.SSLContext = _httpx().create_ssl_context()
    return context


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in the background for all calls: a call's own loop would wait at its end for a hanging lookup."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="idmetric-judge", daemon=True).start()
    return loop


def _await(work: Any, timeout: float) -> Any:
    """The result of a coroutine, within a deadline that httpx lacks: its own limits are for single reads."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(timeout)
    finally:
        future.cancel()  # after the deadline or an interrupt


async def _read(response: httpx.Response) -> tuple[bytes, bool]:
    """The body up to the limit, and whether that is all of it."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise CallError("the reply is compressed, although that was ruled out")  # a few bytes could become gigabytes
    data = bytearray()
    async for part in response.aiter_raw():
        data += part
        if len(data) > _LARGEST:
            return bytes(data[:_LARGEST]), False
    return bytes(data), True
