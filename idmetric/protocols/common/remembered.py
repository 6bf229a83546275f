"""Results of long computations on disk, so that a command that is run again answers at once."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from idmetric.io.output import replacing
from idmetric.version import __version__

Arrays = dict[str, NDArray[Any]]


def remembered(file: Path, inputs: Mapping[str, NDArray[Any] | str], compute: Callable[[], Arrays]) -> Arrays:
    """The arrays of `compute()`, or the ones that a file keeps from the same inputs, bit for bit.

    A file keeps one result, the last. One of other inputs or another version, and one that the disk has damaged, is
    replaced; if nothing can be written, nothing is kept.

    Args:
        inputs: everything that the result depends on.
    """
    key = _digest(inputs.items())
    found = _read(file, key)
    if found is None:
        found = compute()
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as temporary:
                save_file(found, temporary, {"key": key, "sum": _digest(sorted(found.items()))})
    return found


def _read(file: Path, key: str) -> Arrays | None:
    try:
        with safe_open(str(file), framework="numpy") as opened:
            about = opened.metadata() or {}
            if about.get("key") != key:
                return None
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError):  # missing or damaged
        return None
    return found if about.get("sum") == _digest(sorted(found.items())) else None


def _digest(named: Iterable[tuple[str, NDArray[Any] | str]]) -> str:
    digest = hashlib.blake2b(__version__.encode(), digest_size=16)
    for name, value in named:
        text = value if isinstance(value, str) else f"{value.dtype} {value.shape}"
        digest.update(f"\0{name}\0{text}\0".encode())
        if not isinstance(value, str):
            digest.update(np.ascontiguousarray(value).view(np.uint8).data if value.size else b"")
    return digest.hexdigest()
