"""The client of language models behind an OpenAI-compatible address."""

from __future__ import annotations

import ipaddress
import os
import urllib.parse
from typing import TYPE_CHECKING, Any

from idmetric.metric.errors import RequestError
from idmetric.metric.files import need

if TYPE_CHECKING:
    import openai

_SENT = {
    "host", "accept", "accept-encoding", "connection", "content-type", "content-length", "user-agent",
    "x-stainless-raw-response",  # by which the client knows that the caller wants the reply as it came
}  # fmt: skip
_SHOWN = 400  # characters of an error


def open_client(url: str, key: str = "", *, timeout: float, max_retries: int) -> openai.OpenAI:
    """A client that sends nothing but the request and this key, and to this address alone.

    `openai` would also send the keys, organization and headers that it finds in the environment; redirects are not
    followed, since the key would travel with them. Proxies and certificates come from the environment (HTTPS_PROXY,
    SSL_CERT_FILE, ...), except for servers on this machine.

    Args:
        url: up to and including the version: https://api.openai.com/v1.
        key: bearer token, "" for none.
        timeout: seconds to wait for the connection, and for the reply.
        max_retries: further tries after timeouts, lost connections and HTTP 408, 409, 429 and 5xx.

    Raises:
        RequestError: if the address is not one of an API, or the key has characters that cannot be sent.
    """
    check_address(url)
    if not (key.isascii() and key.isprintable()):
        raise RequestError(f"the key for {url} has characters that no key has: check its environment variable")
    need("judge", "a language model behind an address", openai="openai")
    import openai

    def replace_headers(request: Any) -> None:
        for name in set(request.headers) - _SENT:
            del request.headers[name]
        if key:
            request.headers["Authorization"] = f"Bearer {key}"

    http_client = openai.DefaultHttpxClient(
        follow_redirects=False,
        trust_env=not is_local(url),
        event_hooks={"request": [replace_headers]},
    )
    return openai.OpenAI(
        base_url=url,
        api_key=key or "none",
        timeout=timeout,
        max_retries=max_retries,
        http_client=http_client,
    )


def key_for(url: str, variable: str | None = None) -> str:
    """The key in an environment variable; by default that in OPENAI_API_KEY for OpenAI's own address, else none."""
    parts = urllib.parse.urlsplit(url)
    if variable is None:
        is_openai = (parts.scheme, parts.hostname, parts.port or 443) == ("https", "api.openai.com", 443)
        return os.environ.get("OPENAI_API_KEY", "") if is_openai else ""
    if variable not in os.environ:
        raise RequestError(f"the environment variable {variable} is not set; it must hold the key for {url}")
    return os.environ[variable]


def check_address(url: str) -> None:
    """Raise RequestError for a text that is not the address of an API."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise RequestError(f"{url!r} is not the address of an API: give https://HOST/v1")


def is_local(url: str) -> bool:
    """Whether the address is one of this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reason_of(error: Exception, key: str = "") -> str:
    """Why a call failed, in one line without the key: what the server or the connection says."""
    import openai

    if isinstance(error, openai.APIStatusError):
        text = f"HTTP {error.status_code}: {error.response.text}"
    else:
        text = f"{error} {error.__cause__ or ''}"
    return hidden(" ".join(text.split()), key)[:_SHOWN]


def hidden(text: str, key: str) -> str:
    """The text without the key; short keys are placeholders of local servers ("EMPTY"), which occur in any text."""
    if len(key) < 8:
        return text
    return text.replace(key, "***")
