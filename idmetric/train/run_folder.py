"""The folder of a training run: its record (recipe.json), its lock, and whether a run may start or resume in it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from idmetric.metric.checkpoints.format import RECORD
from idmetric.metric.files import locked, read_json_file, replacing
from idmetric.metric.paths import matching
from idmetric.train.state import TrainError
from idmetric.version import __version__

SMOKE_DATA = "smoke-data"
_LOCK = ".run.lock"
_PACKAGES = ("torch", "timm", "torchvision", "accelerate", "peft", "transformers", "numpy", "safetensors")


def make(name: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of recipe.json, with the versions of the packages on which the weights depend.

    Args:
        settings: values that decide the weights: they must be the same in a resumed run. more: values that may differ.
    """
    versions = {"idmetric": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    plain = json.loads(json.dumps(settings))
    return {"recipe": name, "settings": plain, **more, "versions": versions, "finished": False}


@contextmanager
def own_folder(out: Path) -> Iterator[None]:
    """Make the folder and keep other runs out of it, if its file system has locks."""
    read(out)
    out.mkdir(parents=True, exist_ok=True)
    busy = TrainError(f"another run is using {out}: wait for it to end, or name another --out")
    with locked(out / _LOCK, busy):
        yield


def prepare(out: Path, record: Mapping[str, Any]) -> bool:
    """Write the record of a run into its folder, unless the run in it is finished; returns whether it is."""
    old = check_same(out, record)
    if old is not None and old.get("finished"):
        return True
    write(out, record)
    return False


def check_same(out: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of the run in a folder, or None; TrainError if its settings are not those of `record`."""
    old = read(out)
    if old is None:
        return None
    before = {"recipe": old.get("recipe"), **old["settings"]}
    now = {"recipe": record["recipe"], **record["settings"]}
    changes = ""
    for name in {**before, **now}:
        old_value = before.get(name, "not set")
        new_value = now.get(name, "not set")
        if old_value != new_value:
            changes += f"\n  {name}: {old_value!r} there, {new_value!r} now"
    if changes:
        raise TrainError(f"{out} holds a run with other settings: start it as it was, or name another --out:{changes}")
    return old


def read(out: Path) -> dict[str, Any] | None:
    """The recipe.json of a run; None if the folder is absent or empty."""
    if out.exists() and not out.is_dir():
        raise TrainError(f"--out {out} is a file: name a folder")
    path = out / RECORD
    if not path.is_file():
        names = {entry.name for entry in matching(out, "*")} - {SMOKE_DATA, _LOCK}
        if names:
            listed = ", ".join(sorted(names)[:3])
            raise TrainError(f"--out {out} holds other files ({listed}): name a new folder")
        return None
    try:
        record = read_json_file(path)
        return {**record, "settings": dict(record["settings"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TrainError(f"{path} does not describe a training run: name a new folder") from error


def write(out: Path, record: Mapping[str, Any]) -> None:
    """Write recipe.json atomically."""
    with replacing(out / RECORD) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
