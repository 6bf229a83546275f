"""A server on 127.0.0.1 that speaks the part of the Hub's protocol which downloading a file needs."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """Serves `repos`: name -> folder, at one commit."""

    repos: dict[str, Path]
    commits: dict[str, str] = field(default_factory=dict)  # repository -> its commit, where it is not COMMIT
    gated: dict[str, str] = field(default_factory=dict)  # repository -> token that opens it
    refusal: int = 0  # HTTP status of all answers, without the Hub's code for the reason
    about: dict[str, dict[str, Any]] = field(default_factory=dict)  # repository -> more facts of it, such as tags
    etag: str = ""  # of all files, in place of their hash
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range

    def __enter__(self) -> HubServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def log_message(self, *_: Any) -> None:
                pass

            def refuse(self, status: int, code: str) -> None:
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def answer(self, body: bool) -> None:
                asked = self.headers.get("Range", "")
                if not self.path.startswith("/api/agent-harnesses"):  # the client's own, once a day
                    outer.requests.append((self.command, self.path, asked))
                if outer.refusal:
                    self.send_response(outer.refusal)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                if urlsplit(self.path).path.strip("/") == "":  # the Hub's first page
                    self.send_response(200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                parts = urlsplit(self.path).path.strip("/").split("/")  # a proxy is asked for the whole address
                api = parts[0] == "api"
                parts = parts[2 if api else 1 if parts[0] == "datasets" else 0 :]
                owner, name, kind, revision, *rest = [*parts, "revision", "main"] if len(parts) == 2 else parts
                repo, filename = f"{owner}/{name}", "/".join(rest)
                if repo not in outer.repos:
                    return self.refuse(404, "RepoNotFound")
                if repo in outer.gated and self.headers.get("Authorization") != f"Bearer {outer.gated[repo]}":
                    return self.refuse(401, "GatedRepo")
                commit = outer.commits.get(repo, COMMIT)
                if revision not in ("main", commit):
                    return self.refuse(404, "RevisionNotFound")
                if api:
                    root = outer.repos[repo]
                    sizes = {x.relative_to(root).as_posix(): x.stat().st_size for x in root.rglob("*") if x.is_file()}
                    tree = [{"type": "file", "path": x, "size": sizes[x], "oid": "0" * 40} for x in sorted(sizes)]
                    siblings = [{"rfilename": x, "size": sizes[x]} for x in sorted(sizes)]
                    info = {"id": repo, "sha": commit, "siblings": siblings, **outer.about.get(repo, {})}
                    found = json.dumps(tree if kind == "tree" else info).encode()
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(found)))
                    self.end_headers()
                    self.wfile.write(found)
                    return None
                path = outer.repos[repo] / filename
                if not path.is_file():
                    return self.refuse(404, "EntryNotFound")
                data = path.read_bytes()
                etag = outer.etag or hashlib.sha256(data).hexdigest()
                start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
                self.send_response(206 if asked else 200)
                self.send_header("X-Repo-Commit", commit)
                self.send_header("ETag", f'"{etag}"')
                self.send_header("Content-Length", str(len(data) - start))
                if asked:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.end_headers()
                if not body:
                    return None
                self.wfile.write(data[start:])
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def stands_in(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Take the Hub's place for the client in this process, with a cache in `folder` and no token."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", self.endpoint)
        template = self.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no token"))

    def downloads(self, filename: str) -> list[str]:
        """The Range of each download of a file."""
        return [ranges for method, path, ranges in self.requests if method == "GET" and path.endswith(filename)]
