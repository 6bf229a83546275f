"""From the name of a model to a local folder with its files: a folder as it is, or one of the Hub, downloaded once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idmetric.metric.checkpoints.released import check_repository, find, source_name
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import StrPath

ADVICE = "or choose the model in the package: IDSim('tiny') in Python, --model tiny in the shell"


def resolve(
    source: StrPath,
    files: Sequence[str],
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
    local_files_only: bool = False,
    is_on_hub: bool = False,
    advice: str = ADVICE,
) -> Path:
    """A local folder with the files of a model; those of a Hub repository are downloaded once, all of one commit.

    Without a network the cache is used. The environment's HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE count.

    Args:
        source: the name of a release, even if there is a folder of that name; a folder; or the repository `owner/name`.
        files: names of the needed files, or patterns of them. Files that do not exist are not an error here.
        revision: commit, branch or tag; default that of the release, else the repository's main branch.
        cache_dir: where downloads are kept; default the Hub client's cache.
        token: for gated and private repositories; default the one that `hf auth login` stored. It is never shown.
        local_files_only: never ask the network.
        is_on_hub: the source is a repository, even if there is a folder of that name.
        advice: what to do instead of a download, for the message.

    Raises:
        CheckpointError: one sentence that says what failed, why, and how to fix it.
        ValueError: for a token with characters that no token has.
    """
    name = source_name(source)
    release = find(name)
    if release is not None:
        name = release.repo
        revision = revision or release.revision
    elif not is_on_hub and Path(name).is_dir():
        if revision is not None:
            raise CheckpointError(f"{name!r} is a local folder, which has no revision {revision!r}")
        return Path(name)
    check_repository(name)
    token = (token or "").strip()  # the end of a line, where it was read from a file
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError("token= holds white space or characters that no token has: give the token alone")

    import huggingface_hub  # here, as a local folder needs none of it

    try:
        folder = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(files),
            cache_dir=cache_dir,
            token=token or None,
            local_files_only=local_files_only,
            tqdm_class=_late_bar(),
        )
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        reason = _reason(error, name, revision)
        raise CheckpointError(
            f"cannot fetch {name} from the Hub: {reason}; or give a local folder, {advice}"
        ) from error
    return Path(folder)


def _late_bar() -> Any:
    """The Hub client's progress bar, shown after a second: not where all files are in the cache."""
    from huggingface_hub.utils import tqdm

    class LateBar(tqdm):  # type: ignore[misc]  # it has no types
        def __init__(self, *items: Any, **options: Any) -> None:
            super().__init__(*items, **{**options, "delay": 1})

    return LateBar


def _reason(error: Exception, repo: str, revision: str | None) -> str:
    """Why the Hub client failed, and how to fix it; faults of this machine and of the network keep their own words."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo}"
    log_in = "pass token=, set HF_TOKEN, or run `hf auth login`"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its license at {page}, then {log_in}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision!r}, see {page}/commits/main"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the repository does not exist, is private, or refuses the token: check the name, and {log_in}"
    cause = error.__cause__ or error
    if isinstance(error, errors.LocalEntryNotFoundError) and cause is not error:
        reason = f"{type(cause).__name__}: {cause}"
        return f"{constants.ENDPOINT} did not give the files, and they are not in the cache ({reason})"
    return f"{type(error).__name__}: {error}"
