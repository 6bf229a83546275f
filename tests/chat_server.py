"""A server on this machine that answers chat completions by a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Act:
    """What the server does with one request; status 0 closes the connection without a reply."""

    status: int
    body: bytes = b"no"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


DROPS = Act(0)


def says(
    text: str | dict[str, Any], usage: tuple[int, int] | None = (100, 20), finish: str = "stop", seconds: float = 0.0
) -> Act:
    """A chat completion."""
    content = text if isinstance(text, str) else json.dumps(text)
    reply: dict[str, Any] = {"model": "fake-1", "choices": [{"message": {"content": content}, "finish_reason": finish}]}
    if usage:
        reply["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return Act(200, json.dumps(reply).encode(), seconds=seconds)


def fails(status: int, body: bytes = b"no", **headers: str) -> Act:
    """Another reply; clients that ask again need not wait."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Act(status, body, named or {"retry-after-ms": "1"})


@dataclass
class ChatServer:
    """Follows its script, one act for each request, and repeats the last act."""

    script: list[Act]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Message] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    @property
    def count(self) -> int:
        return len(self.bodies)


@contextmanager
def serving(*script: Act) -> Iterator[ChatServer]:
    chat = ChatServer(list(script))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                act = chat.script[min(chat.count, len(chat.script) - 1)]
                chat.bodies.append(body)
                chat.headers.append(self.headers)
                chat.at_once += 1
                chat.most_at_once = max(chat.most_at_once, chat.at_once)
            time.sleep(act.seconds)
            with lock:
                chat.at_once -= 1
            if act.status == 0:
                self.close_connection = True
                return
            self.send_response(act.status)
            for name, value in {"Content-Type": "application/json", **act.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(act.body)))
            self.end_headers()
            self.wfile.write(act.body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
