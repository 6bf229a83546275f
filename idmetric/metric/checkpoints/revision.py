"""Revisions: which one is asked of the Hub, and the name of exact weights: their commit, or a hash of the files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from idmetric.metric.checkpoints.errors import check_file
from idmetric.metric.files import StrPath

ADVICE = "or choose the model in the package: IDSim('tiny') in Python, --model tiny in the shell"


@dataclass(frozen=True)
class Hub:
    """How to fetch from the Hub; the environment's HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE count as well.

    Args:
        revision: commit, branch or tag; default the repository's main branch.
        cache_dir: where files are kept; default the Hub client's cache.
        token: access token for gated and private repositories; default the one `hf auth login` stored.
        local_files_only: never go to the network; a file that is not in the cache is an error.

    Raises:
        ValueError: for a token with white space or other characters inside that none has; it is not shown.
    """

    revision: str | None = None
    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)
    local_files_only: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.token, str):
            return
        token = self.token.strip()  # the end of a line, where it was read from a file
        if not re.fullmatch(r"[!-~]*", token):
            raise ValueError("token= holds white space or characters that no token has: give the token alone")
        object.__setattr__(self, "token", token or None)


def revision_of(*files: StrPath) -> str:
    """The name of exactly these files: their commit in the Hub cache, else 12 hex digits of a SHA-256 over them."""
    commits = {commit_of(Path(path)) for path in files}
    commit = commits.pop()
    if commit is not None and not commits:
        return commit
    return content_digest(*files)


def content_digest(*files: StrPath) -> str:
    """12 hex digits of a SHA-256 over the SHA-256 of each file."""
    digests = "".join(sha256_of(Path(path)) for path in files)
    return hashlib.sha256(digests.encode()).hexdigest()[:12]


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hex digits."""
    check_file(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def commit_of(path: Path) -> str | None:
    """The commit of a file in the Hub cache, which keeps files as .../snapshots/<commit>/<file>; None elsewhere."""
    folder = path.parent.resolve()
    if folder.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", folder.name):
        return folder.name
    return None
