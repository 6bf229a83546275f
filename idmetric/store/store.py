"""Embeddings on disk by key: a folder of safetensors files, called shards, for each model.

    store = Store(folder / folder_name(model.about()))
    store.add([content_key(data)], model.embed(data).cpu())  # in a file after half a minute,
    store.save()                                             # or now
    store.vectors([content_key(data)])                       # (1, D)

Shards are written atomically, under random names, and never changed. So a killed run keeps what it had saved, and any
number of processes may write to one folder without a lock. Each row has a CRC-32, and so does the header (since
idmetric 0.2): a shard that the disk has damaged is reported and never used.
"""

from __future__ import annotations

import json
import os
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from idmetric.distance.finite import is_finite
from idmetric.io.output import replacing, writing
from idmetric.models.embedding import Embedding, concatenate

_KEYS = "keys"
_SUMS = "crc32."  # before a tensor's name: the sums of its rows
_HEAD_SUM = "head-crc32"
_AGAIN = 3  # searches for a shard that another process has removed
_SAVE_SECONDS = 30.0  # a killed run loses about this much work
_SAVE_IMAGES = 4096  # and at most this many images;
_SAVE_BYTES = 2**28  # at most this much is held in memory


class DamagedShardError(ValueError):
    """A shard cannot be read, or holds other numbers than were written. `path` is its file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{os.fspath(path)!r} is not a readable shard of embeddings ({reason}): delete it")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type[DamagedShardError], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class Store:
    """The embeddings of one model, by key (`fingerprint.content_key`).

    Args:
        folder: created with the first shard.
        patches: keep patch tokens as well as global features; shards without them are then ignored.
        damaged: called with the error of each damaged shard, which is then ignored; default: raise the error.
        model: `Embedding.model` of all embeddings read here; default: the model that each shard names.

    Attributes:
        unsaved: keys added since the last shard was written.

    Raises:
        DamagedShardError: naming the shard.
    """

    def __init__(
        self,
        folder: Path,
        patches: bool = False,
        damaged: Callable[[DamagedShardError], None] | None = None,
        model: str | None = None,
    ) -> None:
        self.folder, self.patches, self.model = folder, patches, model
        self._damaged = damaged
        self._where: dict[str, tuple[Path, int]] = {}
        self.drop()
        self.scan()

    # Which embeddings it holds

    def scan(self) -> None:
        """List the shards in the folder again."""
        self._where = {}
        for path in sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else []:
            try:
                names, has_patches = _head(path)
            except DamagedShardError as error:
                if path.exists():  # else another process has just removed it
                    self._lose(error)
                continue
            if self.patches <= has_patches:
                self._where |= {name: (path, k) for k, name in enumerate(names)}

    def __contains__(self, key: str) -> bool:
        return key in self._where or key in self.unsaved

    def files(self) -> dict[Path, list[str]]:
        """Keys by shard; a key in several shards counts for the one that it is read from."""
        found: dict[Path, list[str]] = {}
        for key, (path, _) in self._where.items():
            found.setdefault(path, []).append(key)
        return found

    def check(self) -> list[DamagedShardError]:
        """Read all shards and return the errors of the damaged ones, which are then ignored."""
        found = []
        for path in sorted(self.files()):
            try:
                with _opened(path) as file:
                    for name in file.keys():  # noqa: SIM118 (not a dict)
                        _checked(path, file.metadata() or {}, name, file.get_tensor(name))
            except DamagedShardError as error:
                found.append(error)
                self._forget(path)
        return found

    # Writing

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Add embeddings, on the CPU; a shard is written once many wait, or one for half a minute."""
        if len(keys) != len(embedding) or not keys:
            raise ValueError(f"{len(keys)} keys for {len(embedding)} embeddings")
        if not self._waiting:
            self._since = time.monotonic()
        self.unsaved.update(keys)
        self._waiting.append((tuple(keys), embedding))
        self._held += sum(x.nbytes for x in (embedding.cls, embedding.patches, embedding.weights) if x is not None)

        late = time.monotonic() - self._since > _SAVE_SECONDS
        if late or len(self.unsaved) >= _SAVE_IMAGES or self._held >= _SAVE_BYTES:
            self.save()

    def save(self) -> None:
        """Write the embeddings that are not in a shard yet.

        Raises:
            OutputError: if the shard cannot be written.
        """
        if self._waiting:
            self._write([key for keys, _ in self._waiting for key in keys], concatenate([e for _, e in self._waiting]))
        self.drop()

    def drop(self) -> None:
        """Forget the embeddings that are not in a shard yet."""
        self._waiting: list[tuple[tuple[str, ...], Embedding]] = []
        self.unsaved: set[str] = set()
        self._held = 0  # bytes that wait

    def _write(self, keys: Sequence[str], embedding: Embedding) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{'patches' if self.patches else 'cls'}-{uuid.uuid4().hex}.safetensors"

        tensors = {"cls": embedding.cls, "patches": embedding.patches, "weights": embedding.weights}
        sums = {_SUMS + name: " ".join(_sums(x)) for name, x in tensors.items() if x is not None}
        more = {_KEYS: " ".join(keys), **sums}
        more[_HEAD_SUM] = _head_sum({**more, **embedding.header})

        with replacing(path) as temporary:
            embedding.save(temporary, more)
        self._where |= {key: (path, k) for k, key in enumerate(keys)}

    # Reading

    def vectors(self, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D).

        Raises:
            KeyError: for an unknown key.
            DamagedShardError: naming the shard.
        """
        rows: NDArray[np.float32] | None = None
        for at, found in self.blocks(keys):
            if rows is None:
                rows = np.empty((len(keys), found.shape[1]), dtype=np.float32)
            rows[at] = found
        return np.empty((0, 0), dtype=np.float32) if rows is None else rows

    def blocks(self, keys: Sequence[str]) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Global features, a shard at a time: positions in `keys` and the features there; errors as in `vectors`."""
        for path, places in self._by_shard(keys).items():
            with _opened(path) as file:
                found = _checked(path, file.metadata() or {}, "cls", file.get_tensor("cls")).float().numpy()
            at, inside = zip(*places, strict=True)
            yield list(at), found[list(inside)]

    def embedding(self, keys: Sequence[str]) -> Embedding:
        """Embeddings, with patches if the store keeps them; only the rows of these keys are read into memory.

        Raises:
            KeyError: for an unknown key.
            ValueError: if `keys` is empty.
            DamagedShardError: naming the shard.
        """
        parts: list[Embedding] = []
        order: list[int] = []
        for path, places in self._by_shard(keys).items():
            at, inside = zip(*places, strict=True)
            parts.append(_some(path, inside, self.patches))
            order += at
        found = concatenate(parts)[torch.tensor(order).argsort()]
        return found if self.model is None else replace(found, model=self.model)

    def readable(self, keys: Sequence[str]) -> dict[str, Embedding]:
        """Embeddings of the keys that are here and can be read.

        Damaged shards are passed to `damaged` and ignored from then on. If another process has removed a shard (as
        `idmetric gallery prune` does), the other shards are searched for its images.
        """
        again = 0
        while there := [key for key in dict.fromkeys(keys) if key in self]:
            try:
                return dict(zip(there, self.embedding(there), strict=True))
            except DamagedShardError as error:
                if error.path.exists():
                    self._lose(error)
                elif again < _AGAIN:
                    again += 1
                    self.scan()
                else:
                    self._forget(error.path)
        return {}

    def _by_shard(self, keys: Sequence[str]) -> dict[Path, list[tuple[int, int]]]:
        """Shard -> positions in `keys` and in the shard."""
        if not all(key in self._where for key in keys):
            self.save()
        found: dict[Path, list[tuple[int, int]]] = {}
        for at, key in enumerate(keys):
            path, inside = self._where[key]
            found.setdefault(path, []).append((at, inside))
        return found

    def _lose(self, error: DamagedShardError) -> None:
        if self._damaged is None:
            raise error
        self._forget(error.path)
        self._damaged(error)

    def _forget(self, lost: Path) -> None:
        self._where = {key: place for key, place in self._where.items() if place[0] != lost}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except DamagedShardError:
        raise
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise DamagedShardError(path, str(error)) from error  # the last four: tensors of other shapes and types


def _head(path: Path) -> tuple[list[str], bool]:
    """Return the keys of a shard, and whether it has patches."""
    with _opened(path) as file:
        head, names = file.metadata() or {}, list(file.keys())
        rows = {file.get_slice(name).get_shape()[0] for name in names}
    if head.get(_HEAD_SUM, _head_sum(head)) != _head_sum(head):
        raise DamagedShardError(path, "its head is not what was written: the disk changed it")
    keys = head.get(_KEYS, "").split()
    if "cls" not in names or rows != {len(keys)}:
        raise DamagedShardError(path, "it does not say which images it holds")
    return keys, "patches" in names


def _some(path: Path, rows: Sequence[int], patches: bool) -> Embedding:
    """Read some rows of a shard."""
    with _opened(path) as file:
        head = file.metadata() or {}
        if not patches:
            cls = torch.cat([file.get_slice("cls")[k : k + 1] for k in rows])
            return Embedding(_checked(path, head, "cls", cls, rows), model=head.get("model", ""))
        tensors = {
            name: _checked(path, head, name, torch.cat([file.get_slice(name)[k : k + 1] for k in rows]), rows)
            for name in file.keys()  # noqa: SIM118 (not a dict)
        }
        return Embedding.of(tensors, head)


def _head_sum(head: Mapping[str, str]) -> str:
    rest = {key: value for key, value in head.items() if key != _HEAD_SUM}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"


def _sums(tensor: Tensor) -> list[str]:
    """CRC-32 of each row."""
    rows = tensor.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
    return [f"{zlib.crc32(row):08x}" for row in rows]


def _checked(
    path: Path, head: Mapping[str, str], name: str, tensor: Tensor, rows: Sequence[int] | None = None
) -> Tensor:
    """Return the tensor if it is finite and has its checksum; shards without checksums are trusted."""
    written = head.get(_SUMS + name, "").split()
    if written and _sums(tensor) != (written if rows is None else [written[k] for k in rows if k < len(written)]):
        raise DamagedShardError(path, f"its {name} are not what was written: the disk changed them")
    if not is_finite(tensor):
        raise DamagedShardError(path, f"its {name} hold NaN or infinity")
    return tensor
