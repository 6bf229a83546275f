"""The folder of a training run: its record (recipe.json), its lock, and whether a run may start or resume in it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from idmetric.io import json_file
from idmetric.io.lock import locked
from idmetric.train.state import TrainError, replace_text
from idmetric.version import __version__

FILE = "recipe.json"
SMOKE_DATA = "smoke-data"
_LOCK = ".run.lock"
_PACKAGES = ("torch", "timm", "torchvision", "accelerate", "peft", "transformers", "numpy", "safetensors")


def make(name: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of recipe.json.

    Args:
        settings: values that decide the weights: they must be the same in a resumed run. more: values that may differ.
    """
    plain = json.loads(json.dumps(settings))
    return {"recipe": name, "settings": plain, **more, "versions": versions(), "finished": False}


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages on which the weights depend."""
    found = {"idmetric": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@contextmanager
def own_folder(out: Path) -> Iterator[None]:
    """Make the folder and keep other runs out of it, if its file system has locks.

    Raises:
        TrainError: if another run is using it, or it holds something other than a run.
    """
    read(out)
    out.mkdir(parents=True, exist_ok=True)
    busy = TrainError(f"another run is using {out}: wait for it to end, or name another --out")
    with locked(out / _LOCK, busy):
        yield


def prepare(out: Path, record: Mapping[str, Any], resume: bool) -> bool:
    """Write the record of a run into its folder, unless the run in it is finished; returns whether it is.

    Raises:
        TrainError: if the folder holds something else, or a run with other settings (which are named), or any run
            without `resume`.
    """
    old = read(out)
    if old is not None and not resume:
        raise TrainError(f"{out} holds a run already: resume it, name another --out, or move it by --fresh")
    if old is not None and (changes := differences(old, record)):
        listed = "\n  ".join(changes)
        raise TrainError(
            f"{out} holds a run with other settings; start it as it was, name another --out, or start over with "
            f"--fresh:\n  {listed}"
        )
    if old is not None and old.get("finished"):
        return True
    write(out, record)
    return False


def read(out: Path) -> dict[str, Any] | None:
    """The recipe.json of a run; None if the folder is absent or empty.

    Raises:
        TrainError: if the path is a file, or the folder holds something other than a run.
    """
    if out.exists() and not out.is_dir():
        raise TrainError(f"--out {out} is a file: name a folder")
    path = out / FILE
    if not path.is_file():
        ours = (SMOKE_DATA, _LOCK)
        others = sorted(p.name for p in out.iterdir() if p.name not in ours) if out.is_dir() else []
        if others:
            raise TrainError(f"--out {out} holds other files ({', '.join(others[:3])}): name a new folder")
        return None
    try:
        found = json_file.read(path)
    except (OSError, ValueError) as error:
        raise TrainError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise TrainError(f"--out {out} holds a {FILE} that does not describe a training run: name a new folder")
    return found


def write(out: Path, record: Mapping[str, Any]) -> None:
    """Write recipe.json atomically."""
    replace_text(out / FILE, json.dumps(record, indent=2) + "\n")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Each setting in which two runs differ, as text: "lr: 0.1 there, 0.2 now"."""
    before, now = (flat({"recipe": run.get("recipe"), **run["settings"]}) for run in (old, new))
    return [
        f"{name}: {before.get(name, 'not set')!r} there, {now.get(name, 'not set')!r} now"
        for name in dict.fromkeys([*before, *now])
        if before.get(name, "not set") != now.get(name, "not set")
    ]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested objects into one, with names joined by dots."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
    return found


def move_aside(out: Path) -> Path | None:
    """Rename the folder of a run to the first free of out.1, out.2, ...; None if there was no run.

    Raises:
        TrainError: if the folder holds something other than a run, or a running one.
    """
    if read(out) is None:
        return None
    with own_folder(out):
        pass  # no run is using it
    found = out.resolve()
    number = 1
    while (target := found.with_name(f"{found.name}.{number}")).exists():
        number += 1
    found.rename(target)
    if out.is_symlink():
        found.mkdir()  # where the link leads
    return target
