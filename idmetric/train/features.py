"""Features of a frozen trunk, kept on disk: each picture passes the trunk once for all epochs and runs.

    cache = FeatureCache(folder, trunk_id(model, "bf16"), limit=100 * 10**9)
    cache.fill(wanted, compute, processes, each)  # once, by all processes together
    cache.get(key)                                # (T, D), where `key in cache`

    folder/3f2a.../features-91c0....safetensors   up to 256 pictures each, named by their content

A picture's key is the hash of its file's bytes, and of its mask's where its background is painted black; the folder's
is the hash of the trunk's weights, its preprocessing and the precision. So files that change, move or are renamed are
never taken for one another, and several runs can share a folder. Files are written atomically.

The cache is not a `store.Store`: training reads single pictures at random and at full speed, so files stay open, keep
the trunk's precision, and stay within a limit of disk space.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from idmetric.checkpoints.fingerprint import tensors_digest
from idmetric.data.manifest.table import Manifest
from idmetric.embed.keys import key_of, settings_digest
from idmetric.io.output import replacing
from idmetric.models.embedder import Embedder
from idmetric.train.processes import Processes
from idmetric.train.state import TrainError

PER_FILE = 256
_OPEN = 64  # most open files of a process
_ABOUT = 256  # most bytes per feature in the header of a file


class FeatureCache:
    """Token features by key, within a limit of disk space.

    Args:
        folder: holds the caches of all trunks; all processes must share it.
        trunk: from `trunk_id`.
        limit: most bytes of this trunk's files.

    Raises:
        TrainError: naming a file of the cache that cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], trunk: str, limit: int) -> None:
        self.folder, self.limit = Path(folder) / trunk, limit
        self._open: OrderedDict[Path, Any] = OrderedDict()
        self._owner = os.getpid()
        self.files: dict[str, Path] = {}
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def __contains__(self, key: str) -> bool:
        return key in self.files

    def refresh(self) -> None:
        """List the files in the folder again."""
        found = sorted(self.folder.glob("features-*.safetensors"))
        self.files = {key: path for path in found for key in list(self._file(path).keys())}

    @property
    def size(self) -> int:
        """Bytes of its files."""
        found = 0
        for path in self.folder.glob("features-*.safetensors"):
            with contextlib.suppress(FileNotFoundError):  # deleted just now
                found += path.stat().st_size
        return found

    def get(self, key: str) -> Tensor:
        """Return the features of a key in the cache.

        Raises:
            TrainError: if its file is missing or damaged.
        """
        path = self.files[key]
        try:
            found: Tensor = self._file(path).get_tensor(key)
        except SafetensorError as error:
            raise TrainError(_damaged(path, error)) from error
        return found

    def fill(
        self,
        wanted: Sequence[str],
        compute: Callable[[Sequence[str]], Iterable[Tensor]],
        processes: Processes,
        each: int,
    ) -> None:
        """Add missing features in the order of `wanted`, as far as there is room.

        Processes share the work, and files that are finished survive a stop.

        Args:
            compute: returns the features (T, D) of up to 256 keys, on any device.
            each: bytes per feature.

        Raises:
            TrainError: if a picture cannot be read or a file not written, e.g. on a full disk.
        """
        missing = processes.on_main(lambda: self.missing(wanted, each))
        parts = [missing[k : k + PER_FILE] for k in range(0, len(missing), PER_FILE)]
        failed = ""
        for part in parts[processes.rank :: processes.count]:
            try:
                found = [features.cpu().contiguous().clone() for features in compute(part)]
                self._write(dict(zip(part, found, strict=True)))
            except (OSError, ValueError, SafetensorError) as error:  # a full disk, an image that is gone
                failed = f"the cache of features in {self.folder} cannot be filled: {error}"
                break
        if failures := [text for text in processes.all_values(failed) if text]:  # all stop together
            raise TrainError(failures[0])
        self._agree(processes)

    def _agree(self, processes: Processes) -> None:
        """Let all processes use the list of files that the main process sees.

        The list decides how batches are read, and two listings can differ: another run may write in between.
        """

        def names() -> dict[str, str]:
            self.refresh()
            return {key: path.name for key, path in self.files.items()}

        self.files = {key: self.folder / name for key, name in processes.on_main(names).items()}

    def missing(self, wanted: Sequence[str], each: int) -> list[str]:
        """Return the keys of `wanted` that are missing and for which there is room."""
        self.refresh()
        missing = [key for key in dict.fromkeys(wanted) if key not in self.files]
        return missing[: max(0, self.limit - self.size) // (each + _ABOUT)]

    def _write(self, features: Mapping[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256("".join(features).encode()).hexdigest()[:32]
        with replacing(self.folder / f"features-{name}.safetensors") as path:
            save_file(dict(features), path)

    def _file(self, path: Path) -> Any:
        if self._owner != os.getpid():  # an open file is not shared with a forked process
            self._open, self._owner = OrderedDict(), os.getpid()
        if path not in self._open:
            try:
                self._open[path] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise TrainError(_damaged(path, error)) from error
        self._open.move_to_end(path)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return self._open[path]


def _damaged(path: Path, error: Exception) -> str:
    return f"{path}, of the cache of features, cannot be read: {error}: delete it, and it is computed again"


def trunk_id(model: Embedder, trunk: Mapping[str, Tensor], precision: str) -> str:
    """Name a trunk's features by a digest of its weights, of the model's settings and of the precision.

    Args:
        model: the model with the preprocessing. trunk: its frozen tensors by name.
    """
    settings = {**model.config(), "background": model.background, "precision": precision}
    return settings_digest({"settings": settings, "weights": tensors_digest(sorted(trunk.items()))})


def picture_keys(data: Manifest, pictures: Sequence[tuple[int, bool]]) -> dict[tuple[int, bool], str]:
    """Return the key of each picture: a row, and whether its background is painted black by the row's mask.

    Raises:
        TrainError: if a file cannot be read.
    """
    try:
        return {
            (row, masked): key_of(data.source(row) or b"", (data.source(row, "mask") or b"") if masked else None)
            for row, masked in dict.fromkeys(pictures)
        }
    except OSError as error:
        raise TrainError(f"{error.filename} cannot be read: {error.strerror or error}") from error
