"""The name of exact weights: the commit of the Hub repository, or a hash of the files."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from idmetric.metric.checkpoints.errors import check_file


def revision_of(*files: str | os.PathLike[str]) -> str:
    """The name of exactly these files: their commit in the Hub cache, else 12 hex digits of a SHA-256 over them."""
    commits = {commit_of(Path(path)) for path in files}
    commit = commits.pop()
    if commit is not None and not commits:
        return commit
    return content_digest(*files)


def content_digest(*files: str | os.PathLike[str]) -> str:
    return hashlib.sha256("".join(sha256_of(Path(path)) for path in files).encode()).hexdigest()[:12]


def sha256_of(path: Path) -> str:
    check_file(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def commit_of(path: Path) -> str | None:
    # the Hub cache keeps files as .../snapshots/<commit>/<file>
    parent = path.parent.resolve()
    return parent.name if parent.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", parent.name) else None
