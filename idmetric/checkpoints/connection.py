"""Whether a server can be reached, asked once and briefly, before a client retries for half a minute."""

from __future__ import annotations

import queue
import socket
import threading
import time
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_WAIT = 5.0  # seconds for a name and a connection
_REMEMBERED = 60.0  # seconds in which a server that did not answer is not asked again
_silent: dict[str, float] = {}  # address -> when it did not answer


def answers(address: str, wait: float = _WAIT) -> bool:
    """Whether a TCP connection opens to an address's host, or to the proxy that the environment sets for it.

    Args:
        address: such as "https://huggingface.co". wait: seconds; also limits looking up the name.
    """
    if time.monotonic() - _silent.get(address, -_REMEMBERED) < _REMEMBERED:
        return False
    found: queue.Queue[bool] = queue.Queue()
    # in a thread, as looking up a name has no time limit of its own
    threading.Thread(target=lambda: found.put(_opens(address, wait)), daemon=True).start()
    try:
        opened = found.get(timeout=wait)
    except queue.Empty:
        opened = False
    if not opened:
        _silent[address] = time.monotonic()
    return opened


def _opens(address: str, wait: float) -> bool:
    try:
        target = urlsplit(address)
        proxies = getproxies()
        proxy = proxies.get(target.scheme) or proxies.get("all")
        if proxy and not proxy_bypass(target.hostname or ""):
            target = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        port = target.port or {"https": 443, "socks5": 1080, "socks5h": 1080}.get(target.scheme, 80)
        socket.create_connection((target.hostname or "", port), wait).close()
    except (OSError, ValueError):
        return False
    return True
