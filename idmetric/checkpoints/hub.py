"""Files of model folders and Hub repositories, each fetched once."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from idmetric.checkpoints.errors import CheckpointError
from idmetric.checkpoints.revision import commit_of


@dataclass(frozen=True)
class Hub:
    """How to fetch from the Hub; the environment's HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE count as well.

    Args:
        revision: commit, branch or tag; default the repository's main branch.
        cache_dir: where files are kept; default the Hub client's cache.
        token: access token for gated and private repositories; default the one `hf auth login` stored.
        local_files_only: never go to the network; a file that is not in the cache is an error.
    """

    revision: str | None = None
    cache_dir: str | None = None
    token: str | None = None
    local_files_only: bool = False


class Files:
    """The files of a model folder, or of the Hub repository `owner/name`, each fetched when first asked for.

    >>> path = Files("folder")["config.json"]  # doctest: +SKIP

    All files of a repository come from one commit: that of the first one fetched.

    Args:
        source: the folder or `owner/name`.
        published: it is a repository, even if there is a folder of that name.

    Raises:
        CheckpointError: if a folder lacks the file, or has no such revision, or the repository cannot be reached.
    """

    def __init__(self, source: str | os.PathLike[str], hub: Hub = Hub(), *, published: bool = False) -> None:
        self.name = os.fspath(source)
        self.local = not published and Path(self.name).is_dir()
        if self.local and hub.revision is not None:
            raise CheckpointError(f"{self.name!r} is a local folder, which has no revision {hub.revision!r}")
        self.hub = hub

    def __getitem__(self, filename: str) -> Path:
        if self.local:
            path = Path(self.name, filename)
            if not path.is_file():
                advice = ""
                if Path(self.name, "snapshots").is_dir():
                    advice = "; give the folder of one commit in its snapshots/"
                elif Path(self.name, f"{filename}.index.json").is_file():
                    advice = f", but a {filename}.index.json: save the model again, with all weights in one file"
                raise CheckpointError(f"{self.name!r} is not a model folder: it has no {filename}{advice}")
            return path
        path = fetch(self.name, filename, self.hub)
        self.hub = replace(self.hub, revision=commit_of(path) or self.hub.revision)
        return path

    def optional(self, filename: str) -> Path | None:
        """The file, or None if it does not exist (without a network: if it is not in the cache).

        Raises:
            CheckpointError: if the repository cannot be reached for another reason.
        """
        if self.local:
            path = Path(self.name, filename)
            return path if path.is_file() else None
        from huggingface_hub import errors

        try:
            return self[filename]
        except CheckpointError as error:
            if isinstance(error.__cause__, errors.EntryNotFoundError):
                return None
            raise


def fetch(repo: str, filename: str, hub: Hub = Hub()) -> Path:
    """Path of one file of a Hub repository, downloaded once into the Hub cache; an interrupted download is resumed.

    Raises:
        CheckpointError: one line that says what failed, why, and how to fix it.
    """
    check_repository(repo)
    import huggingface_hub  # here, so that reading a folder does not load it

    with _explained(f"{filename} of {repo}", repo, hub):
        return Path(huggingface_hub.hf_hub_download(repo, filename, **asdict(hub)))


def fetch_folder(files: Files, patterns: Sequence[str]) -> Path:
    """A local folder as it is, or that of a Hub repository with the files that match `patterns`, downloaded once.

    Raises:
        CheckpointError: as `Files`.
    """
    if files.local:
        return Path(files.name)
    check_repository(files.name)
    import huggingface_hub

    with _explained(files.name, files.name, files.hub):
        return Path(huggingface_hub.snapshot_download(files.name, allow_patterns=list(patterns), **asdict(files.hub)))


def check_repository(repo: str) -> None:
    """Refuse a name without the form of a Hub repository's."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise CheckpointError(f"{repo!r} is neither an existing folder nor a Hub repository of the form owner/name")


@contextlib.contextmanager
def _explained(what: str, repo: str, hub: Hub) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        raise CheckpointError(
            f"cannot fetch {what} from the Hub: {_reason(error, repo, hub)}; or give a local folder, or choose the "
            "model in the package: IDSim('tiny') in Python, --model tiny in the shell"
        ) from error


def _reason(error: Exception, repo: str, hub: Hub) -> str:
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo}"
    token = "pass token=, set HF_TOKEN, or run `hf auth login`"
    chain = [error, error.__cause__, error.__context__]
    if any(isinstance(x, OSError) and x.errno == errno.ENOSPC for x in chain):
        return f"the disk is full: free space, or set cache_dir= or HF_HOME to another disk (now {_cache(hub)})"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its license at {page}, then {token}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {hub.revision!r}, see {page}/commits/main"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no such repository, or it is private: check the name; for a private one {token}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        asked = hub.local_files_only or constants.HF_HUB_OFFLINE
        why = "the network is switched off (local_files_only or HF_HUB_OFFLINE)" if asked else "the Hub did not answer"
        return f"{why} and the file is not in the cache {_cache(hub)}"
    if isinstance(error, errors.EntryNotFoundError):
        return f"the repository has no such file, see {page}/tree/{hub.revision or 'main'}"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:200]}"


def cached_file(repo: str, filename: str, hub: Hub = Hub()) -> Path | None:
    """Path of one file of a Hub repository if it is in the cache; asks no network."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(repo, filename, cache_dir=_cache(hub), revision=hub.revision)
    return Path(found) if isinstance(found, str) else None


def _cache(hub: Hub) -> str:
    from huggingface_hub import constants

    return str(hub.cache_dir or constants.HF_HUB_CACHE)


def hub_name(folder: str | os.PathLike[str]) -> str | None:
    """`owner/name` of the repository that a folder of the Hub cache is a snapshot of; None for other folders."""
    path = Path(folder).resolve()  # .../models--owner--name/snapshots/<commit>
    match = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", path.parent.parent.name)
    return f"{match[1]}/{match[2]}" if match and path.parent.name == "snapshots" else None
