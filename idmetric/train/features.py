"""Features of a frozen trunk, kept on disk: each picture passes the trunk once for all epochs and runs.

    cache = FeatureCache(folder, trunk_id(model, "bf16"))
    cache.fill(wanted, compute, processes)        # once, by all processes together
    cache.get(key)                                # (T, D)

A picture's key is the hash of its file's bytes, and of its mask's where its background is painted black; the folder's
is the hash of the trunk's weights, its preprocessing and the precision. So files that change, move or are renamed are
never taken for one another, and several runs can share a folder, see `store.Parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from idmetric.metric.embedder import Embedder
from idmetric.metric.files import StrPath
from idmetric.metric.fingerprint import tensors_digest
from idmetric.store import Parts, key_of, settings_digest
from idmetric.train.processes import Processes
from idmetric.train.state import TrainError

if TYPE_CHECKING:
    from pandas import DataFrame

PER_FILE = 256


class FeatureCache:
    """Token features by key.

    Args:
        folder: holds the caches of all trunks; all processes must share it.
        trunk: from `trunk_id`.
    """

    def __init__(self, folder: StrPath, trunk: str) -> None:
        self.folder = Path(folder) / trunk
        try:
            self.parts = Parts(self.folder, ("features",))
        except OSError as error:  # a file of this name, a folder of another user
            raise TrainError(f"the cache of features in {self.folder} cannot be read: {error}") from error

    def get(self, key: str) -> Tensor:
        """Return the features of a key in the cache."""
        rows = self.parts.rows([key])
        if key not in rows:
            raise TrainError(f"the cache of features in {self.folder} is damaged: start again, and they are computed")
        return rows[key]["features"]

    def fill(
        self, wanted: Sequence[str], compute: Callable[[Sequence[str]], Iterable[Tensor]], processes: Processes
    ) -> None:
        """Add missing features. Processes share the work, and files that are finished survive a stop.

        Args:
            compute: returns the features (T, D) of up to 256 keys, on any device.
        """
        missing = processes.on_main(lambda: [key for key in dict.fromkeys(wanted) if key not in self.parts])

        def write() -> None:
            try:
                for start in range(processes.rank * PER_FILE, len(missing), processes.count * PER_FILE):
                    keys = missing[start : start + PER_FILE]
                    self.parts.add_rows(keys, {"features": torch.stack([row.cpu() for row in compute(keys)])})
                    self.parts.save()
            except (OSError, ValueError) as error:  # a full disk, an image that is gone
                raise TrainError(f"the cache of features in {self.folder} cannot be filled: {error}") from error

        processes.together(write)
        self.parts.reload()


def trunk_id(model: Embedder, trunk: Mapping[str, Tensor], precision: str) -> str:
    """Name a trunk's features by a digest of its weights, of the model's settings and of the precision.

    Args:
        model: the model with the preprocessing. trunk: its frozen tensors by name.
    """
    settings = {**model.config(), "background": model.background, "precision": precision}
    return settings_digest({"settings": settings, "weights": tensors_digest(sorted(trunk.items()))})


def picture_keys(data: DataFrame, pictures: Sequence[tuple[int, bool]]) -> dict[tuple[int, bool], str]:
    """Return the key of each picture: a row, and whether its background is painted black by the row's mask."""
    keys = {}
    for row, is_masked in pictures:
        mask = data["mask"][row] if is_masked else None
        try:
            keys[row, is_masked] = key_of(data["path"][row] or b"", mask)
        except OSError as error:
            raise TrainError(f"{error.filename} cannot be read: {error.strerror or error}") from error
    return keys
