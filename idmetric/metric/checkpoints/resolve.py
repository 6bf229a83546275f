"""Revisions: which one is asked of the Hub, and the name of exact weights: their commit, or a hash of the files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from idmetric.metric.errors import CheckpointError, check_file
from idmetric.metric.files import StrPath
from idmetric.metric.paths import matching

# The files of a training run that others must know: its record and its checkpoints.

RECORD = "recipe.json"
FOLDER = "checkpoints"


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoint files of a run by step, in order."""
    paths = {}
    for path in matching(run / FOLDER, "step-*.safetensors"):
        if match := re.fullmatch(r"step-(\d{6,})", path.stem):
            paths[int(match[1])] = path
    return dict(sorted(paths.items()))


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


# Files of Hub repositories, each fetched once.

_COMMIT = "[0-9a-f]{40}"


def fetch(repo: str, filename: str, hub: Hub = Hub(), advice: str = ADVICE) -> Path:
    """Path of one file of a Hub repository, downloaded once into the Hub cache.

    A file of a commit that is in the cache is returned at once. For a branch or tag the Hub is asked once which commit
    it is; if the Hub does not answer, the cached file is used.

    Raises:
        CheckpointError: one line that says what failed, why, and how to fix it.
    """
    check_repository(repo)
    import huggingface_hub  # here, so that reading a folder does not load it

    with _explained(f"{filename} of {repo}", repo, hub, advice):
        problem = _problem(repo, filename, hub)
        options = asdict(replace(hub, local_files_only=hub.local_files_only or problem is not None))
        try:
            return Path(huggingface_hub.hf_hub_download(repo, filename, **options))
        except huggingface_hub.errors.LocalEntryNotFoundError:
            if problem is None:
                raise
        raise problem


def file_names(repo: str, hub: Hub, advice: str, folder: Path) -> list[str]:
    """Names of the files of a Hub repository; none without a network, if `folder` in the cache has weights.

    Raises:
        CheckpointError: as `fetch`.
    """
    if _is_offline(hub):
        return []
    with _explained(repo, repo, hub, advice):
        try:
            info = _model_info(repo, hub)
        except Exception as error:
            if _is_unreachable(error) and matching(folder, "*.safetensors"):
                return []
            raise
    return [sibling.rfilename for sibling in info.siblings or []]


def _model_info(repo: str, hub: Hub) -> Any:
    """What the Hub says of a repository, as its client returns it."""
    import huggingface_hub
    from huggingface_hub import constants

    api = huggingface_hub.HfApi(token=hub.token)
    return api.model_info(repo, revision=hub.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)


def is_absent(error: BaseException | None) -> bool:
    """Whether the Hub answered that there is no such file."""
    from huggingface_hub import errors

    return isinstance(error, errors.EntryNotFoundError) or _status(error) == 404  # which a mirror gives alone


def check_repository(repo: str) -> None:
    """Refuse a name that is not of the form owner/name."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise CheckpointError(f"{repo!r} is neither an existing folder nor a Hub repository of the form owner/name")


@contextlib.contextmanager
def _explained(what: str, repo: str, hub: Hub, advice: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        raise CheckpointError(
            f"cannot fetch {what} from the Hub: {_reason(error, repo, hub)}; or give a local folder, {advice}"
        ) from error


def _problem(repo: str, filename: str, hub: Hub) -> Exception | None:
    """Why the Hub cannot give a file, after one request: the Hub client would retry for minutes, a line for each.

    None also where the Hub need not be asked, and where it answers that the file does not exist: the client asks again
    and remembers it.
    """
    import huggingface_hub
    from huggingface_hub import constants, errors

    if _is_offline(hub):
        return None
    is_commit = re.fullmatch(_COMMIT, hub.revision or "")
    if is_commit and cached_file(repo, filename, hub) is not None:
        return None

    url = huggingface_hub.hf_hub_url(repo, filename, revision=hub.revision)
    try:
        answer = huggingface_hub.get_hf_file_metadata(url, token=hub.token, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError):
        return None
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        if not _is_unreachable(error):
            return error
        problem: Exception = errors.LocalEntryNotFoundError(str(error))
        problem.__cause__ = error
        return problem

    # The client makes paths in the cache from the commit and the ETag.
    if re.fullmatch(_COMMIT, answer.commit_hash or "") and re.fullmatch(r"\w[\w-]*", answer.etag or ""):
        return None
    return ValueError(
        f"{constants.ENDPOINT} does not answer as a Hub does (commit {answer.commit_hash!r}, ETag {answer.etag!r}): "
        "check HF_ENDPOINT and HTTPS_PROXY"
    )


def _status(error: BaseException | None) -> int:
    """The HTTP status of an error; 0 if there was no answer."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))


def _is_unreachable(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    status = _status(error)
    return status == 0 or status == 429 or status >= 500


def _is_offline(hub: Hub) -> bool:
    from huggingface_hub import constants

    return bool(hub.local_files_only or constants.HF_HUB_OFFLINE)


_ADVICE = {  # for an HTTP status
    403: "access is refused: give the token the right to read it, or check HF_ENDPOINT and proxy",
    404: "it does not exist: check the name, the revision and HF_ENDPOINT",
    429: "too many requests to the Hub: wait some minutes, or log in (`hf auth login`) for a higher limit",
}


def _reason(error: BaseException, repo: str, hub: Hub) -> str:
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo}"
    token = "pass token=, set HF_TOKEN, or run `hf auth login`"
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return f"the disk is full: free space, or set cache_dir= or HF_HOME to another disk (now {_cache(hub)})"
    for cause in (error, error.__cause__):
        is_of_file = isinstance(cause, OSError) and cause.filename is not None
        if is_of_file or isinstance(cause, ImportError):  # of this machine, not of the network
            return f"{type(cause).__name__}: {cause}"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its license at {page}, then {token}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {hub.revision!r}, see {page}/commits/main"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if _is_offline(hub):
            cache = _cache(hub)
            return f"the network is switched off (local_files_only or HF_HUB_OFFLINE) and the file is not in {cache}"
        error = error.__cause__ or error
    elif isinstance(error, errors.EntryNotFoundError):
        return f"the repository has no such file, see {page}/tree/{hub.revision or 'main'}"

    # a mirror or a proxy may leave out the error code that the client reads
    status = _status(error)
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return f"the repository does not exist, is private, or refuses the token: check the name, and {token}"
    if status:
        advice = _ADVICE.get(status, "an error of the server: try again later")
        return f"HTTP {status} for {page}, {advice}"
    text = " ".join(str(error).split())[:200]
    if isinstance(error, ValueError):
        return text
    return (
        f"{constants.ENDPOINT} did not answer ({type(error).__name__}: {text}) and the file is not in {_cache(hub)}: "
        "check the network, HTTPS_PROXY and HF_ENDPOINT"
    )


def cached_file(repo: str, filename: str, hub: Hub = Hub()) -> Path | None:
    """Path of one file of a Hub repository if it is in the cache; asks no network."""
    import huggingface_hub

    path = huggingface_hub.try_to_load_from_cache(repo, filename, cache_dir=_cache(hub), revision=hub.revision)
    if isinstance(path, str):
        return Path(path)
    return None  # also for a marker that the Hub has no such file


def _cache(hub: Hub) -> str:
    from huggingface_hub import constants

    return str(hub.cache_dir or constants.HF_HUB_CACHE)


def hub_name(folder: StrPath) -> str | None:
    """`owner/name` of the repository that a folder of the Hub cache is a snapshot of; None for other folders."""
    path = Path(folder).resolve()  # .../models--owner--name/snapshots/<commit>
    match = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", path.parent.parent.name)
    if match is None or path.parent.name != "snapshots":
        return None
    return f"{match[1]}/{match[2]}"


# The files of a model folder or a Hub repository, fetched when they are asked for.


class Files:
    """The files of a model folder, or of the Hub repository `owner/name`, each fetched when first asked for.

    >>> path = Files("folder")["config.json"]  # doctest: +SKIP

    All files of a repository come from one commit: that of the first one fetched.

    Args:
        source: the folder or `owner/name`.
        published: it is a repository, even if there is a folder of that name.
        advice: alternative to a local folder, for messages.

    Raises:
        CheckpointError: if a folder lacks the file, or has no such revision, or the repository cannot be reached.
    """

    def __init__(self, source: StrPath, hub: Hub = Hub(), *, published: bool = False, advice: str = ADVICE) -> None:
        self.name = os.fspath(source)
        self.advice = advice
        self.local = not published and Path(self.name).is_dir()
        if self.local and hub.revision is not None:
            raise CheckpointError(f"{self.name!r} is a local folder, which has no revision {hub.revision!r}")
        self.hub = hub

    def __getitem__(self, filename: str) -> Path:
        if not self.local:
            pass

            path = fetch(self.name, filename, self.hub, self.advice)
            revision = commit_of(path) or self.hub.revision
            self.hub = replace(self.hub, revision=revision)
            return path

        path = Path(self.name, filename)
        if path.is_file():
            return path
        advice = ""
        if any((folder / RECORD).is_file() for folder in (Path(self.name), Path(self.name).parent)):
            advice = ", as its training is unfinished: resume it, or write its model by `idmetric train` with --export"
        raise CheckpointError(f"{self.name!r} is not a model folder: it has no {filename}{advice}")

    def optional(self, filename: str) -> Path | None:
        """The file, or None if it does not exist (without a network: if it is not in the cache).

        Raises:
            CheckpointError: if the repository cannot be reached for another reason.
        """
        if self.local:
            path = Path(self.name, filename)
            if path.is_file():
                return path
            return None
        pass

        try:
            return self[filename]
        except CheckpointError as error:
            if is_absent(error.__cause__):
                return None
            raise


# A whole folder of a Hub repository.

_CONFIG = "config.json"  # of each repository that is fetched as a folder


def fetch_folder(files: Files, patterns: Sequence[str]) -> Path:
    """A local folder as it is, or that of a Hub repository with the files that match `patterns`, downloaded once.

    Without a network the folder in the cache is returned as it is.

    Raises:
        CheckpointError: as `Files`.
    """
    if files.local:
        return Path(files.name)
    folder = files[_CONFIG].parent
    for name in file_names(files.name, files.hub, files.advice, folder):
        if any(fnmatch(name, pattern) for pattern in patterns):
            _ = files[name]
    return folder
