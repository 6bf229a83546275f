"""Features of a frozen trunk, kept on disk: each picture passes the trunk once for all epochs and runs.

    cache = FeatureCache(folder, trunk_id(model, "bf16"))
    cache.fill(wanted, compute, processes)        # once, by all processes together
    cache.get(key)                                # (T, D)

    folder/3f2a.../features-91c0....safetensors   up to 256 pictures each, named by a digest of the file's bytes

A picture's key is the hash of its file's bytes, and of its mask's where its background is painted black; the folder's
is the hash of the trunk's weights, its preprocessing and the precision. So files that change, move or are renamed are
never taken for one another, and several runs can share a folder. Files are written atomically, and compared with their
digests before they are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from idmetric.data.manifest.table import Manifest
from idmetric.metric.embedder import Embedder
from idmetric.metric.files import StrPath, refuse_irregular
from idmetric.metric.fingerprint import tensors_digest
from idmetric.store import ShardError, check_shard, key_of, settings_digest, shards_in
from idmetric.store import write_shard as write_shard
from idmetric.train.processes import Processes
from idmetric.train.state import TrainError

PER_FILE = 256
KIND = "features"  # of shards


class FeatureCache:
    """Token features by key.

    Args:
        folder: holds the caches of all trunks; all processes must share it.
        trunk: from `trunk_id`.
    """

    def __init__(self, folder: StrPath, trunk: str) -> None:
        self.folder = Path(folder) / trunk
        self.files: dict[str, Path]  # by key
        self.refresh()

    def refresh(self) -> None:
        """List the files in the folder again."""
        _opened.cache_clear()
        self.files = {}
        for path in shards_in(self.folder, KIND):
            self.files |= dict.fromkeys(_opened(path, os.getpid()).keys(), path)

    def get(self, key: str) -> Tensor:
        """Return the features of a key in the cache."""
        path = self.files[key]
        try:
            check_shard(path)
        except (ShardError, OSError) as error:
            raise TrainError(f"the cache of features cannot be read: {error}") from error
        features: Tensor = _opened(path, os.getpid()).get_tensor(key)
        return features

    def fill(
        self, wanted: Sequence[str], compute: Callable[[Sequence[str]], Iterable[Tensor]], processes: Processes
    ) -> None:
        """Add missing features. Processes share the work, and files that are finished survive a stop.

        Args:
            compute: returns the features (T, D) of up to 256 keys, on any device.
        """
        missing = processes.on_main(lambda: [key for key in dict.fromkeys(wanted) if key not in self.files])

        def write() -> None:
            try:
                for start in range(processes.rank * PER_FILE, len(missing), processes.count * PER_FILE):
                    keys = missing[start : start + PER_FILE]
                    features = [computed.cpu().contiguous().clone() for computed in compute(keys)]
                    write_shard(self.folder, KIND, save(dict(zip(keys, features, strict=True))))
            except (OSError, ValueError) as error:  # a full disk, an image that is gone
                raise TrainError(f"the cache of features in {self.folder} cannot be filled: {error}") from error

        processes.together(write)
        self.refresh()


@lru_cache(maxsize=64)
def _opened(path: Path, process: int) -> Any:
    """A file of the cache, open in this process: a forked one opens its own."""
    try:
        refuse_irregular(path)
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise TrainError(
            f"{path}, of the cache of features, cannot be read: {error}: delete it, and it is computed again"
        ) from error


def trunk_id(model: Embedder, trunk: Mapping[str, Tensor], precision: str) -> str:
    """Name a trunk's features by a digest of its weights, of the model's settings and of the precision.

    Args:
        model: the model with the preprocessing. trunk: its frozen tensors by name.
    """
    settings = {**model.config(), "background": model.background, "precision": precision}
    return settings_digest({"settings": settings, "weights": tensors_digest(sorted(trunk.items()))})


def picture_keys(data: Manifest, pictures: Sequence[tuple[int, bool]]) -> dict[tuple[int, bool], str]:
    """Return the key of each picture: a row, and whether its background is painted black by the row's mask."""
    keys = {}
    for row, is_masked in pictures:
        mask = data.source(row, "mask") if is_masked else None
        try:
            keys[row, is_masked] = key_of(data.source(row) or b"", mask)
        except OSError as error:
            raise TrainError(f"{error.filename} cannot be read: {error.strerror or error}") from error
    return keys
