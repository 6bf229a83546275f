"""Model folders of our own format, locally or in the Hub's cache: config.json and model.safetensors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import save_file
from torch import Tensor

from idmetric.metric.checkpoints.config import check_arguments, check_fields, check_view
from idmetric.metric.checkpoints.weights import read_finite
from idmetric.metric.errors import CheckpointError, check_file, understanding
from idmetric.metric.files import StrPath, read_json_file, replacing
from idmetric.version import __version__

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CALIBRATION = "calibration.json"  # optional, see idmetric.scoring.calibration
FILES = (CONFIG, WEIGHTS, CALIBRATION)  # of our own format
RECORD = "recipe.json"  # in the folder of a training run
FORMAT = 1
_RECORDED = ("model_type", "format", "idmetric_version", "name")  # in a config.json, but no settings
_SETTINGS = 2**24  # bytes of a JSON file


@dataclass(frozen=True)
class Checkpoint:
    """The content of a model folder: `config` (parsed config.json), `state` (name -> tensor), and the folder itself.

    `revision` names the exact weights, see `revision_of`.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    revision: str
    folder: Path


def file_of(folder: Path, name: str) -> Path:
    """A file of a model folder.

    Raises:
        CheckpointError: if the file does not exist.
    """
    path = folder / name
    if not path.is_file():
        advice = ""
        if (folder / RECORD).is_file() or (folder.parent / RECORD).is_file():
            advice = ", as its training is unfinished: resume it, or write its model by `idmetric train` with --export"
        raise CheckpointError(f"{str(folder)!r} is not a model folder: it has no {name}{advice}")
    return path


def revision_of(*files: StrPath) -> str:
    """The name of exactly these files of a folder: its commit in the Hub's cache, else `content_digest`."""
    folder = Path(files[0]).parent.resolve()  # .../snapshots/<commit>
    if folder.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", folder.name):
        return folder.name
    return content_digest(*files)


def content_digest(*files: StrPath) -> str:
    """12 hex digits of a SHA-256 over the SHA-256 of each file."""
    digests = ""
    for path in files:
        check_file(path)
        with open(path, "rb") as file:
            digests += hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(digests.encode()).hexdigest()[:12]


def write(
    folder: StrPath,
    config: Mapping[str, Any],
    state: Mapping[str, Tensor],
) -> None:
    """Write a model folder; `config` must hold `model_type`. Existing files are replaced atomically.

    Raises:
        OutputError: naming the file that cannot be written.
        CheckpointError: for quantized weights.
    """
    check_plain(state)
    tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
    with replacing(Path(folder, WEIGHTS), parents=True) as path:
        save_file(tensors, path, {"format": "pt"})
    record = {**config, "format": FORMAT, "idmetric_version": __version__}
    text = json.dumps(record, indent=2, sort_keys=True)
    with replacing(Path(folder, CONFIG)) as path:
        path.write_text(text + "\n", encoding="utf-8")


def check_plain(state: Mapping[str, Any]) -> None:
    """Refuse quantized weights, which model.safetensors cannot hold."""
    for key, value in state.items():
        if not isinstance(value, Tensor) or value.is_quantized:
            raise CheckpointError(
                f"quantized weights cannot be saved ({key} is no plain tensor): save the model before it is quantized"
            )


def read(folder: Path) -> Checkpoint:
    """Read a model folder of our own format.

    Raises:
        CheckpointError: naming the file that is missing or broken.
    """
    path = file_of(folder, CONFIG)
    config = read_json(path)
    if config.get("format") != FORMAT:
        saved_format = config.get("format")
        raise CheckpointError(f"{str(path)!r} is not a config in idmetric's format {FORMAT}: it has {saved_format!r}")
    weights = file_of(folder, WEIGHTS)
    return Checkpoint(config, read_finite(weights, packed=True), revision_of(weights, path), folder)


def revision(folder: Path) -> str:
    """The revision that `read` gives the weights of a model folder."""
    return revision_of(folder / WEIGHTS, folder / CONFIG)


T = TypeVar("T")


def parse(kind: type[T], saved: Checkpoint, model_type: str) -> T:
    """The config.json of a checkpoint as the dataclass `kind`.

    Raises:
        CheckpointError: if it describes another kind of model, lacks or has unknown fields, or a value is of another
            type or beyond its range.
    """
    saved_type = saved.config.get("model_type")
    if saved_type != model_type:
        raise CheckpointError(f"{str(saved.folder)!r} holds a model of type {saved_type!r}, not {model_type!r}")
    values = {}
    for key, value in saved.config.items():
        if key not in _RECORDED:
            values[key] = tuple(value) if isinstance(value, list) else value

    with understanding(saved.folder / CONFIG):
        check_fields(kind, values)
        config: Any = kind(**values)  # raises for unknown fields
        check_view(config.image_size, config.mean, config.std)
        check_arguments(getattr(config, "backbone_args", {}))
    return config  # type: ignore[no-any-return]


def read_json(path: StrPath) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: if the file is absent, not JSON, or not an object.
    """
    with understanding(path):
        value = read_json_file(path, most=_SETTINGS)
        if not isinstance(value, dict):
            raise CheckpointError("it does not hold a JSON object")
    return value
