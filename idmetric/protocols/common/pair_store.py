"""Similarities of pairs of images on disk, by the contents of both images."""

from __future__ import annotations

import uuid
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from idmetric.io.output import replacing, writing
from idmetric.protocols.common.arrays import Array, Ints


def cell_of(low: Ints, high: Ints) -> Ints:
    """The number of each unordered pair of images, in the order (0, 0), (0, 1), (1, 1), (0, 2), ..."""
    return high * (high + 1) // 2 + low


def ends_of(cells: Ints) -> tuple[Ints, Ints]:
    """The images low <= high of each cell."""
    high = ((np.sqrt(8.0 * cells + 1) - 1) / 2).astype(np.int64)
    high += (high + 1) * (high + 2) // 2 <= cells  # the root is rounded
    high -= high * (high + 1) // 2 > cells
    return cells - high * (high + 1) // 2, high


class PairStore:
    """Similarities of pairs by the contents of both images; each write makes a new file.

    Args:
        folder: of one metric and one treatment of masks; created with the first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, keys: Sequence[str]) -> tuple[Ints, Array]:
        """Cells of known pairs of these images, ascending, and their similarities; warns of damaged files."""
        number = {key: k for k, key in enumerate(keys)}
        cells, values = [np.empty(0, np.int64)], [np.empty(0)]
        for path in sorted(self.folder.glob("pairs-*.safetensors")) if self.folder.is_dir() else []:
            try:
                names, ends, found = _load(path)
            except (SafetensorError, ValueError, KeyError, OSError) as error:
                warnings.warn(f"{path} cannot be read and its pairs are compared again: {error}", stacklevel=2)
                continue
            here = np.array([number.get(name, -1) for name in names], dtype=np.int64)[ends]
            known = (here >= 0).all(0)
            cells.append(cell_of(here[:, known].min(0), here[:, known].max(0)))
            values.append(found[known])

        ordered, first = np.unique(np.concatenate(cells), return_index=True)
        return ordered, np.concatenate(values)[first]

    def add(self, keys: Sequence[str], cells: Ints, values: Array) -> None:
        """Write similarities of pairs of these images to a new file."""
        used, ends = np.unique(np.stack(ends_of(cells)), return_inverse=True)
        names = np.frombuffer(bytes.fromhex("".join(keys[k] for k in used)), np.uint8).reshape(len(used), -1)
        tensors: dict[str, NDArray[Any]] = {
            "keys": names,
            "ends": ends.reshape(2, -1).astype(np.int32),
            "values": values.astype(np.float64),
        }
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder / f"pairs-{uuid.uuid4().hex}.safetensors") as temporary:
            save_file(tensors, temporary, {"crc32": _crc(tensors)})


def _load(path: Path) -> tuple[list[str], Ints, Array]:
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in ("keys", "ends", "values")}
        if (file.metadata() or {}).get("crc32") != _crc(tensors):
            raise ValueError("its checksum does not match")
    return [row.tobytes().hex() for row in tensors["keys"]], tensors["ends"], tensors["values"]


def _crc(tensors: Mapping[str, NDArray[Any]]) -> str:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(np.ascontiguousarray(tensors[name]).tobytes(), total)
    return f"{total:08x}"
