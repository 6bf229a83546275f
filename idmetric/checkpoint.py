"""The only reader and writer of model folders: config.json beside model.safetensors, locally or on the Hub.

Also folds LoRA adapters (PEFT's format) into plain weights, so that inference needs no peft.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric._version import __version__

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be found, fetched or understood; the message says which, and the way out."""


@dataclass(frozen=True)
class Checkpoint:
    """What a model folder holds: `config` (parsed config.json), `state` (name -> tensor) and where it came from.

    `revision` names the exact weights: a Hub commit, or for a folder the first 12 hex digits of the SHA-256 of its
    weights file.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    name: str
    revision: str


def write(folder: str | os.PathLike[str], config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Write a model folder; `config` must hold `model_type`. Existing files are replaced whole or not at all."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    record = {**config, "format": FORMAT, "idmetric_version": __version__}
    tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
    with _replacing(target / WEIGHTS) as path:
        save_file(tensors, path, {"format": "pt"})
    with _replacing(target / CONFIG) as path:
        path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read(source: str | os.PathLike[str], *, revision: str | None = None, cache_dir: str | None = None) -> Checkpoint:
    """Read a model folder, or the Hub repository `owner/name` (downloaded once, at `revision` if given).

    Raises:
        CheckpointError: naming what is missing, broken or unreachable.
    """
    text = os.fspath(source)
    if Path(text).is_dir():
        weights_path = Path(text, WEIGHTS)
        if not weights_path.is_file():
            raise CheckpointError(f"{text!r} is not a model folder: it has no {WEIGHTS}")
        config = read_config(text, revision=revision)
        return Checkpoint(config, read_tensors(weights_path), text, revision_of(weights_path))
    config_path = fetch(text, CONFIG, revision=revision, cache_dir=cache_dir)
    commit = _commit_of(config_path) or revision  # both files from one commit
    weights_path = fetch(text, WEIGHTS, revision=commit, cache_dir=cache_dir)
    return Checkpoint(_parse_config(config_path), read_tensors(weights_path), text, revision_of(weights_path))


def read_config(
    source: str | os.PathLike[str], *, revision: str | None = None, cache_dir: str | None = None
) -> dict[str, Any]:
    """The config.json of a model folder or Hub repository; arguments and errors as in `read`."""
    text = os.fspath(source)
    if not Path(text).is_dir():
        return _parse_config(fetch(text, CONFIG, revision=revision, cache_dir=cache_dir))
    if revision is not None:
        raise CheckpointError(f"{text!r} is a local folder, which has no revision {revision!r}")
    if not Path(text, CONFIG).is_file():
        raise CheckpointError(f"{text!r} is not a model folder: it has no {CONFIG}")
    return _parse_config(Path(text, CONFIG))


T = TypeVar("T")


def parse(kind: type[T], saved: Checkpoint, model_type: str) -> T:
    """The config.json of a checkpoint as the dataclass `kind`.

    Raises:
        CheckpointError: if it describes another kind of model, or lacks or has unknown fields.
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
        return kind(**values)
    except TypeError as error:
        raise CheckpointError(f"the config of {saved.name!r} is incomplete: {error}") from error


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def revision_of(weights: str | os.PathLike[str]) -> str:
    """The name of exactly these weights: the commit of a file in the Hub cache, else 12 hex digits of its SHA-256."""
    return _commit_of(Path(weights)) or _digest(Path(weights))


def fetch(repo: str, filename: str, *, revision: str | None = None, cache_dir: str | None = None) -> Path:
    """Path of one file of a Hub repository, downloaded once into the Hub cache.

    Raises:
        CheckpointError: in one line: what failed, why, and the two ways out.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise CheckpointError(f"{repo!r} is neither an existing folder nor a Hub repository of the form owner/name")
    import huggingface_hub  # here, so that reading a folder does not load it

    try:
        with _quiet("huggingface_hub"):
            return Path(huggingface_hub.hf_hub_download(repo, filename, revision=revision, cache_dir=cache_dir))
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"cannot fetch {filename} of {repo} from the Hub ({type(error).__name__}: {reason[:200]}); "
            "give a local folder instead, or choose the model in the package: IDSim('tiny') in Python, "
            "--model tiny in the shell"
        ) from error


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


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: if the file is absent, not JSON, or not an object.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {os.fspath(path)!r}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{os.fspath(path)!r} does not hold a JSON object")
    return value


def fold_lora(
    state: Mapping[str, Tensor], adapter: Mapping[str, Tensor], config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Merge a LoRA adapter into plain weights: W + scale * B A (Hu et al. 2022, LoRA, Eq. 3).

    Args:
        state: weights by name, e.g. `blocks.0.attn.qkv.weight` of shape (out, in), or (out, in, h, w) of a convolution.
        adapter: tensors named `<module>.lora_A.weight` (r, in[, h, w]) and `<module>.lora_B.weight` (out, r[, 1, 1]),
            where `<module>.weight` is in `state`; PEFT's prefix already removed.
        config: PEFT's adapter_config.json; read are lora_alpha, r, alpha_pattern, rank_pattern and use_rslora. The rank
            itself is taken from the tensors.

    Returns:
        A new dict; what the adapter does not name is the same tensor as before.

    Raises:
        CheckpointError: for an adapter of another kind (DoRA, biases, embeddings, ...), or modules not in `state`.
    """
    if config.get("peft_type", "LORA") != "LORA" or config.get("use_dora"):
        raise CheckpointError(f"only plain LoRA adapters can be folded, not {config.get('peft_type')} (DoRA: no)")
    if config.get("fan_in_fan_out"):
        raise CheckpointError("a LoRA adapter with fan_in_fan_out cannot be folded into linear layers")
    folded = dict(state)
    modules: dict[str, dict[str, Tensor]] = {}
    for key in adapter:
        match = re.fullmatch(r"(.+)\.lora_([AB])(?:\.default)?\.weight", key)
        if match is None:
            raise CheckpointError(f"the adapter holds {key!r}, which is no LoRA matrix: cannot fold it")
        modules.setdefault(match[1], {})[match[2]] = adapter[key]
    for module, parts in modules.items():
        name = f"{module}.weight"
        if name not in folded:
            raise CheckpointError(f"the adapter changes {module!r}, which the backbone does not have")
        if set(parts) != {"A", "B"}:
            raise CheckpointError(f"the adapter holds only half of the pair lora_A, lora_B of {module!r}")
        folded[name] = _add_product(folded[name], parts["A"], parts["B"], _lora_scale(module, parts["A"], config))
    return folded


def _lora_scale(module: str, lora_a: Tensor, config: Mapping[str, Any]) -> float:
    alpha = float(config.get("lora_alpha", 8))
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        # PEFT: a pattern matches a whole module path or its end at a dot
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = float(value)
            break
    rank = lora_a.shape[0]
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _add_product(weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
    if lora_b.flatten(1).shape != (weight.shape[0], lora_a.shape[0]) or lora_a.shape[1:] != weight.shape[1:]:
        raise CheckpointError(
            f"LoRA matrices of shapes {tuple(lora_a.shape)} and {tuple(lora_b.shape)} do not fit a weight of shape "
            f"{tuple(weight.shape)}"
        )
    product = lora_b.flatten(1).double() @ lora_a.flatten(1).double()
    return (weight.double() + scale * product.view(weight.shape)).to(weight.dtype)


def _parse_config(path: Path) -> dict[str, Any]:
    config = read_json(path)
    if not isinstance(config.get("model_type"), str) or not isinstance(config.get("format"), int):
        raise CheckpointError(f"{str(path)!r} is not an idmetric config: it has no model_type or format")
    if config["format"] > FORMAT:
        raise CheckpointError(f"{str(path)!r} has format {config['format']}; this version of idmetric reads {FORMAT}")
    return config


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()[:12]


def _commit_of(path: Path) -> str | None:
    # the Hub cache keeps files as .../snapshots/<commit>/<file>
    parent = path.parent
    return parent.name if parent.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", parent.name) else None


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    # the Hub client logs each retry; the error raised at the end says it once
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def load_state(module: torch.nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Load weights strictly into a module.

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
    module.load_state_dict(dict(state))
