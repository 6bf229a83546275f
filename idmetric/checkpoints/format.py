"""The only reader and writer of model folders: config.json beside model.safetensors, locally or on the Hub.

Also folds LoRA adapters (PEFT's format) into plain weights, so that inference needs no peft.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric import __version__
from idmetric.checkpoints import config as configs
from idmetric.checkpoints.connection import answers
from idmetric.checkpoints.name_pattern import NamePatterns, PatternError
from idmetric.distance.finite import first_nonfinite, is_finite
from idmetric.io import json_file
from idmetric.io.output import replacing as replacing  # part of this module
from idmetric.io.output import writing

_log = logging.getLogger("idmetric")

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CALIBRATION = "calibration.json"  # optional, see idmetric.calibration.apply
FORMAT = 1
_SETTINGS = 2**24  # bytes of a JSON file


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be found, fetched or understood; the message says which, and the way out."""


@dataclass(frozen=True)
class Checkpoint:
    """What a model folder holds: `config` (parsed config.json), `state` (name -> tensor) and where it came from.

    `revision` names the exact weights: a Hub commit, or for a folder the first 12 hex digits of the SHA-256 of its
    weights and settings. `files` are those that it was read from.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    name: str
    revision: str
    files: Files | None = None


def write(folder: str | os.PathLike[str], config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Write a model folder; `config` must hold `model_type`. Existing files are replaced whole or not at all.

    Raises:
        OutputError: naming the file that cannot be written.
    """
    target = Path(folder)
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    record = {**config, "format": FORMAT, "idmetric_version": __version__}
    tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
    with replacing(target / WEIGHTS) as path:
        save_file(tensors, path, {"format": "pt"})
    with replacing(target / CONFIG) as path:
        path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")


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

    Raises:
        CheckpointError: if a folder lacks the file, or has no such revision, or the repository cannot be reached.
    """

    def __init__(self, source: str | os.PathLike[str], hub: Hub = Hub()) -> None:
        self.name = os.fspath(source)
        self.local = Path(self.name).is_dir()
        if self.local and hub.revision is not None:
            raise CheckpointError(f"{self.name!r} is a local folder, which has no revision {hub.revision!r}")
        self.hub = hub

    def __getitem__(self, filename: str) -> Path:
        if self.local:
            path = Path(self.name, filename)
            if not path.is_file():
                inside = Path(self.name, "snapshots").is_dir()
                advice = "; give the folder of one commit in its snapshots/" if inside else ""
                raise CheckpointError(f"{self.name!r} is not a model folder: it has no {filename}{advice}")
            return path
        path = fetch(self.name, filename, self.hub)
        self.hub = replace(self.hub, revision=_commit_of(path) or self.hub.revision)
        return path

    def optional(self, filename: str) -> Path | None:
        """The file, or None where there is none (or none in the cache, without a network).

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


def read(files: Files) -> Checkpoint:
    """Read a model folder or Hub repository of our own format.

    Raises:
        CheckpointError: naming what is missing, broken or unreachable.
    """
    settings = read_config(files)
    weights = files[WEIGHTS]
    return Checkpoint(settings, read_finite(weights), files.name, revision_of(weights, files[CONFIG]), files)


def read_config(files: Files) -> dict[str, Any]:
    """The config.json of a model folder or Hub repository of our own format; errors as in `read`."""
    path = files[CONFIG]
    found = read_json(path)
    if not isinstance(found.get("model_type"), str) or not isinstance(found.get("format"), int):
        raise CheckpointError(f"{str(path)!r} is not an idmetric config: it has no model_type or format")
    if found["format"] > FORMAT:
        raise CheckpointError(f"{str(path)!r} has format {found['format']}; this version of idmetric reads {FORMAT}")
    return found


T = TypeVar("T")


def parse(kind: type[T], saved: Checkpoint, model_type: str) -> T:
    """The config.json of a checkpoint as the dataclass `kind`.

    Raises:
        CheckpointError: if it describes another kind of model, lacks or has unknown fields, or a value is of another
            type or beyond its range.
    """
    found = saved.config["model_type"]
    if found != model_type:
        raise CheckpointError(f"{saved.name!r} holds a model of type {found!r}, not {model_type!r}: use idmetric.load")
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # kind is a dataclass
    values = {key: _tuples(value) for key, value in saved.config.items() if key in known}
    extra = saved.config.keys() - known - {"model_type", "format", "idmetric_version", "name"}
    if extra:
        raise CheckpointError(f"the config of {saved.name!r} has fields this version does not know: {sorted(extra)}")
    try:
        configs.check(kind, values)
        made = kind(**values)
        configs.check_view(*(getattr(made, name) for name in ("image_size", "mean", "std")))
        configs.check_arguments(getattr(made, "backbone_args", {}))
    except TypeError as error:
        raise CheckpointError(f"the config of {saved.name!r} is incomplete: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"the config of {saved.name!r}: {error}") from error
    return made


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def revision_of(*files: str | os.PathLike[str]) -> str:
    """The name of exactly these files: their commit in the Hub cache, else 12 hex digits of a SHA-256 over them."""
    commits = {_commit_of(Path(path)) for path in files}
    commit = commits.pop()
    if commit is not None and not commits:
        return commit
    return _content_of(*files)


def content_of(files: Files) -> str | None:
    """The name of exactly these weights and settings by their content, the same in a folder and on the Hub.

    None where the folder is not one of weights and config.json, as `write` makes it. Reads the weights: a second or so
    for each gigabyte.
    """
    weights, config = files.optional(WEIGHTS), files.optional(CONFIG)
    return None if weights is None or config is None else _content_of(weights, config)


def _content_of(*files: str | os.PathLike[str]) -> str:
    return hashlib.sha256("".join(_sha256(Path(path)) for path in files).encode()).hexdigest()[:12]


def fetch(repo: str, filename: str, hub: Hub = Hub()) -> Path:
    """Path of one file of a Hub repository, downloaded once into the Hub cache; an interrupted download is resumed.

    A file that the Hub names by its SHA-256 (all weights are) is checked against it after the download.

    Raises:
        CheckpointError: in one line: what failed, why, and the ways out.
    """
    _check_repository(repo)
    import huggingface_hub  # here, so that reading a folder does not load it

    start = time.time()
    now = _reached(repo, cached(repo, filename, hub) is not None, hub)
    with _explained(f"{filename} of {repo}", repo, hub):
        path = Path(huggingface_hub.hf_hub_download(repo, filename, **asdict(now)))
    _check_download(path, f"{filename} of {repo}", start)
    return path


def folder(files: Files, patterns: Sequence[str]) -> Path:
    """A local folder as it is, or that of a Hub repository with the files that match `patterns`, downloaded once.

    Raises:
        CheckpointError: as `Files`.
    """
    if files.local:
        return Path(files.name)
    _check_repository(files.name)
    import huggingface_hub

    start = time.time()
    with _explained(files.name, files.name, files.hub):
        options = asdict(_reached(files.name, False, files.hub))
        found = Path(huggingface_hub.snapshot_download(files.name, allow_patterns=list(patterns), **options))
    for path in found.glob("*.safetensors"):
        _check_download(path, f"{path.name} of {files.name}", start)
    return found


_fetched: set[str] = set()  # repositories whose download was announced


def _reached(repo: str, there: bool, hub: Hub) -> Hub:
    """The same `hub`, or its cache alone if the Hub does not answer; announces a download on stderr.

    Args:
        there: whether the file is in the cache already, and would only be checked against the Hub's.
    """
    from huggingface_hub import constants

    offline = hub.local_files_only or constants.HF_HUB_OFFLINE
    if offline or (there and re.fullmatch(r"[0-9a-f]{40}", hub.revision or "")):
        return hub  # the Hub is not asked
    if not there and repo not in _fetched:
        _fetched.add(repo)
        _log.warning("fetching %s from %s", repo, constants.ENDPOINT)
    if answers(constants.ENDPOINT):
        return hub
    if there:
        _log.warning("%s does not answer: %s is taken from the cache", constants.ENDPOINT, repo)
    return replace(hub, local_files_only=True)


def _check_repository(repo: str) -> None:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise CheckpointError(f"{repo!r} is neither an existing folder nor a Hub repository of the form owner/name")


@contextlib.contextmanager
def naming(what: str | os.PathLike[str]) -> Iterator[None]:
    """Errors about a checkpoint raised inside say which file it is."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(what)}: {error}") from error


@contextlib.contextmanager
def understanding(what: str | os.PathLike[str]) -> Iterator[None]:
    """Errors that values of an unexpected kind lead to say which files they are in."""
    try:
        yield
    except CheckpointError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, re.error) as error:
        raise CheckpointError(
            f"{os.fspath(what)!r} holds a damaged checkpoint: {type(error).__name__}: {error}"
        ) from error


@contextlib.contextmanager
def _explained(what: str, repo: str, hub: Hub) -> Iterator[None]:
    try:
        with quiet("huggingface_hub"):
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
        return f"it is gated: accept its licence at {page}, then {token}"
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


def cached(repo: str, filename: str, hub: Hub = Hub()) -> Path | None:
    """Path of one file of a Hub repository if it is in the cache; asks no network."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(repo, filename, cache_dir=_cache(hub), revision=hub.revision)
    return Path(found) if isinstance(found, str) else None


def _cache(hub: Hub) -> str:
    from huggingface_hub import constants

    return str(hub.cache_dir or constants.HF_HUB_CACHE)


def _check_download(path: Path, what: str, since: float) -> None:
    blob = path.resolve()  # the cache names the bytes of large files by their SHA-256
    if blob.stat().st_mtime < since - 60:
        return  # it was checked when it came; the minute is for clocks that differ
    if re.fullmatch(r"[0-9a-f]{64}", blob.name) and _sha256(blob) != blob.name:
        blob.unlink()
        path.unlink(missing_ok=True)
        raise CheckpointError(f"{what} was damaged on its way: its SHA-256 is not that of the Hub; fetch it again")


def push(folder: str | os.PathLike[str], repo: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a model folder to the Hub repository `owner/name`, created if absent; returns the commit's address."""
    import huggingface_hub

    api = huggingface_hub.HfApi(token=token)
    api.create_repo(repo, private=private, exist_ok=True)
    return str(api.upload_folder(repo_id=repo, folder_path=os.fspath(folder), commit_message="Upload idmetric model"))


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All tensors of a safetensors file.

    Raises:
        CheckpointError: if the file is absent or broken.
    """
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read weights {os.fspath(path)!r}: {error}") from error


def read_finite(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All tensors of a safetensors file of weights; each is read, to check that it is finite.

    Raises:
        CheckpointError: as `read_tensors` and `check_finite`.
    """
    found = read_tensors(path)
    check_finite(found, path)
    return found


def check_finite(tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Refuse NaN and infinite weights, which make scores NaN. Reads all tensors: 0.2 s for a gigabyte.

    Args:
        path: where they come from, for the message.

    Raises:
        CheckpointError: naming file and tensor.
    """
    if name := first_nonfinite(tensors):
        raise CheckpointError(
            f"{os.fspath(path)!r} holds damaged weights: {name} has values that are NaN or infinite; fetch or save the "
            "file again, or take the checkpoint before it if training diverged"
        )


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: if the file is absent, not JSON, or not an object.
    """
    try:
        value = json_file.read(path, most=_SETTINGS)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {os.fspath(path)!r}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{os.fspath(path)!r} does not hold a JSON object")
    return value


def fold_lora(
    state: dict[str, Tensor], adapter: Mapping[str, Tensor], config: Mapping[str, Any], *, prefix: str = ""
) -> dict[str, Tensor]:
    """Merge a LoRA adapter into plain weights: W + scale * B A (Hu et al. 2022, LoRA, Eq. 3).

    With use_dora, each row of the result is scaled to the length that the adapter's magnitude vector gives (Liu et al.
    2024, DoRA, Eq. 5). Biases and whole modules trained with the adapter (PEFT's `bias` and `modules_to_save`)
    replace those of `state`.

    Args:
        state: weights by name, e.g. `blocks.0.attn.qkv.weight` of shape (out, in), or (out, in, h, w) of a convolution.
        adapter: tensors named `<module>.lora_A.weight` (r, in[, h, w]), `<module>.lora_B.weight` (out, r[, 1, 1]) and
            `<module>.lora_magnitude_vector` (out values), where `<module>.weight` is in `state`; others are named as in
            `state`. PEFT's prefix is already removed.
        config: PEFT's adapter_config.json; read are lora_alpha, r, alpha_pattern, rank_pattern, use_rslora and
            use_dora. The rank itself is taken from the tensors.
        prefix: what PEFT saw before a module's name here, e.g. "extractor.model.": its patterns may speak of it.

    Returns:
        `state` itself, its changed weights replaced one by one, so that it is never held twice. Changed weights
        are float32 (float64 stays), whatever the stored type: PEFT computes with adapters in float32 as well.

    Raises:
        CheckpointError: for an adapter of another kind, or modules not in `state`.
    """
    _check_kind(config)
    modules: dict[str, dict[str, Tensor]] = {}
    for key, value in adapter.items():
        match = re.fullmatch(r"(.+)\.lora_(A|B|magnitude_vector)(?:\.default)?(?:\.weight)?", key)
        if match is not None:
            modules.setdefault(match[1], {})[match[2]] = value
        elif ".lora_" in key or key not in state or state[key].shape != value.shape:
            raise CheckpointError(f"the adapter holds {key!r}: not a LoRA matrix, and no layer of the model fits it")
        else:
            state[key] = value
    needed = {"A", "B", "magnitude_vector"} if config.get("use_dora") else {"A", "B"}
    alphas = _Alphas(config)
    for module, parts in modules.items():
        name = f"{module}.weight"
        if name not in state:
            raise CheckpointError(f"the adapter changes {module!r}, which the model does not have")
        if missing := sorted(needed - set(parts)):
            whole = "half of the pair lora_A, lora_B" if len(parts) == 1 else "LoRA matrices without lora_" + missing[0]
            raise CheckpointError(f"the adapter holds only {whole} of {module!r}")
        if parts.keys() - needed:
            raise CheckpointError(f"the adapter holds a magnitude vector of {module!r}, but its config has no use_dora")
        scale = _lora_scale(prefix + module, parts["A"], alphas, config)
        folded = _add_product(state[name], parts["A"], parts["B"], scale)
        state[name] = _with_lengths(folded, parts["magnitude_vector"]) if "magnitude_vector" in parts else folded
    return state


# settings of PEFT's LoRA with which a layer computes something else, or has other base weights
_OTHER_KINDS = (
    "fan_in_fan_out", "layer_replication", "target_parameters", "trainable_token_indices", "alora_invocation_tokens",
    "use_qalora", "use_bdlora", "kasa_config", "velora_config", "monteclora_config",
)  # fmt: skip
_OTHER_STARTS = ("pissa", "olora", "loftq", "corda", "lora_ga")  # these change the base model's weights first


def _check_kind(config: Mapping[str, Any]) -> None:
    if config.get("peft_type", "LORA") != "LORA":
        raise CheckpointError(f"only LoRA and DoRA adapters can be folded, not {config['peft_type']}")
    for setting in _OTHER_KINDS:
        if config.get(setting):
            raise CheckpointError(f"a LoRA adapter with {setting} cannot be folded: merge it with peft")
    if str(config.get("init_lora_weights", True)).startswith(_OTHER_STARTS):
        raise CheckpointError(
            f"a LoRA adapter with init_lora_weights {config['init_lora_weights']!r} changes the base model's "
            "weights first: merge it with peft"
        )


def _lora_scale(module: str, lora_a: Tensor, alphas: _Alphas, config: Mapping[str, Any]) -> float:
    rank = lora_a.shape[0]
    return alphas.of(module) / (math.sqrt(rank) if config.get("use_rslora") else rank)


class _Alphas:
    """The alpha of each module: the first match in PEFT's alpha_pattern, else lora_alpha."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        given = config.get("alpha_pattern") or {}
        self._default = float(config.get("lora_alpha", 8))
        self._values = [float(value) for value in given.values()]
        with _naming_patterns():
            self._patterns = NamePatterns(list(given))

    def of(self, module: str) -> float:
        with _naming_patterns():
            found = self._patterns.first(module)
        return self._default if found is None else self._values[found]


@contextlib.contextmanager
def _naming_patterns() -> Iterator[None]:
    try:
        yield
    except PatternError as error:
        raise CheckpointError(f"the adapter's alpha_pattern: {error}") from error


def _add_product(weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
    if lora_b.flatten(1).shape != (weight.shape[0], lora_a.shape[0]) or lora_a.shape[1:] != weight.shape[1:]:
        raise CheckpointError(
            f"LoRA matrices of shapes {tuple(lora_a.shape)} and {tuple(lora_b.shape)} do not fit a weight of shape "
            f"{tuple(weight.shape)}"
        )
    wide = torch.promote_types(weight.dtype, torch.float32)
    flat = torch.addmm(weight.flatten(1).to(wide), lora_b.flatten(1).to(wide), lora_a.flatten(1).to(wide), alpha=scale)
    return flat.view(weight.shape)


def _with_lengths(weight: Tensor, lengths: Tensor) -> Tensor:
    if lengths.numel() != weight.shape[0]:
        raise CheckpointError(f"a DoRA magnitude vector has {lengths.numel()} values for {weight.shape[0]} rows")
    rows = weight.flatten(1)
    factor = lengths.flatten().to(weight.dtype) / torch.linalg.vector_norm(rows, dim=1)
    scaled: Tensor = rows * factor[:, None]
    return scaled.view(weight.shape)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _commit_of(path: Path) -> str | None:
    # the Hub cache keeps files as .../snapshots/<commit>/<file>
    parent = path.parent.resolve()
    return parent.name if parent.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", parent.name) else None


def hub_name(folder: str | os.PathLike[str]) -> str | None:
    """`owner/name` of the repository that a folder of the Hub cache is a snapshot of; None for other folders."""
    path = Path(folder).resolve()  # .../models--owner--name/snapshots/<commit>
    match = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", path.parent.parent.name)
    return f"{match[1]}/{match[2]}" if match and path.parent.name == "snapshots" else None


@contextlib.contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Without the warnings of a library that says what we say better: the Hub client's retries, missing weights."""
    handlers = logging.getLogger(logger).handlers[:]

    def grave(record: logging.LogRecord) -> bool:  # one for each call, so that overlapping calls do not meet
        return record.levelno >= logging.ERROR

    for handler in handlers:
        handler.addFilter(grave)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(grave)


_building = threading.RLock()


@contextlib.contextmanager
def weightless(most: int | None = None, held: int | None = None) -> Iterator[None]:
    """Modules built inside, in this thread, have parameters without memory: `load_state` fills them.

    So a model is never in memory twice, with its initial and its loaded weights. Buffers are real, unless a module
    makes them from its parameters (which `torch.device("meta")` would not give: it makes all of them empty).

    Raises:
        CheckpointError: when they have more than `most` parameters, or buffers of more than `held` bytes.
    """
    builder, made, taken = threading.get_ident(), 0, 0

    def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        nonlocal made
        original(module, name, param)
        if param is not None and threading.get_ident() == builder:
            made += 1
            if most is not None and made > most:
                raise CheckpointError(f"the model would have more than {most} parameters, its weights have fewer")
            module._parameters[name] = torch.nn.Parameter(param.detach().to("meta"), param.requires_grad)

    def hold(module: torch.nn.Module, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        nonlocal taken
        if tensor is not None and threading.get_ident() == builder:
            taken += tensor.numel() * tensor.element_size()
            if held is not None and taken > held:
                found, allowed = f"{taken / 1e6:,.0f} MB", f"{held / 1e6:,.0f} MB"
                raise CheckpointError(
                    f"the model would hold tables of {found} or more in addition to its weights, {allowed} are allowed"
                )
        original_hold(module, name, tensor, persistent)

    with _building:
        original, original_hold = torch.nn.Module.register_parameter, torch.nn.Module.register_buffer
        # the places that all parameters, and all buffers, pass
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
        torch.nn.Module.register_buffer = hold  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.nn.Module.register_parameter = original  # type: ignore[method-assign]
            torch.nn.Module.register_buffer = original_hold  # type: ignore[method-assign]


def load_state(module: torch.nn.Module, state: dict[str, Tensor], name: str, dtype: torch.dtype | None = None) -> None:
    """Load weights strictly into a module, as `dtype` or in the types of its own; `state` is emptied on the way.

    Each tensor is copied out of its file's mapping: aligned, and safe from changes of the file.

    Raises:
        CheckpointError: naming missing and unexpected keys and shapes that differ.
    """
    check_state(module, state, name)
    for key, value in module.state_dict().items():
        wanted = dtype if dtype is not None and value.is_floating_point() else value.dtype
        given = state[key]
        state[key] = given.to(wanted, copy=True)
        if wanted is torch.float16 and given.dtype is not wanted and not is_finite(state[key]):
            raise CheckpointError(f"{key} of {name!r} exceeds what float16 can hold: open it in float32 or bfloat16")
    module.load_state_dict(state, assign=True)
    state.clear()


def check_state(module: torch.nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Check that tensors are exactly a module's, by name and shape.

    Raises:
        CheckpointError: naming missing and unexpected keys and shapes that differ.
    """
    own = module.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = [
        f"{k} {tuple(state[k].shape)} instead of {tuple(own[k].shape)}"
        for k in own.keys() & state.keys()
        if own[k].shape != state[k].shape
    ]
    if missing or extra or shapes:
        parts = [f"{what} {', '.join(keys[:5])}{' ...' if len(keys) > 5 else ''}" for what, keys in
                 (("missing", missing), ("unexpected", extra), ("wrong shape", shapes)) if keys]  # fmt: skip
        raise CheckpointError(f"weights of {name!r} do not fit the model: {'; '.join(parts)}")
