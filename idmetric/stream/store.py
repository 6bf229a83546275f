"""Embeddings on disk by key: a folder of safetensors files, called shards, for each model.

    store = Store(folder / folder_name(model.about()))
    store.add([content_key(data)], model.embed(data).cpu())  # in a file after half a minute,
    store.save()                                             # or now
    store.vectors([content_key(data)])                       # (1, D)

Shards are written atomically, named by a digest of their bytes (`shards`), and never changed. So a killed run keeps
what it had saved, any number of processes may write to one folder without a lock, and a damaged shard is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from idmetric.metric.distance.embedding import Embedding, concatenate, serialized
from idmetric.metric.files.output import refuse_irregular
from idmetric.stream import shards
from idmetric.stream.shards import ShardError

_KINDS = ("cls", "patches")  # of shards
_KEYS, _FOLDER = "keys", "folder"  # in the metadata of a shard
_SAVE_SECONDS = 30.0  # a killed run loses about this much work
_SAVE_BYTES = 2**28  # at most this much is held in memory


class Store:
    """The embeddings of one model, by key (`keys.content_key`).

    Args:
        folder: created with the first shard.
        patches: keep patch tokens as well as global features; shards without them are then ignored.
        model: `Embedding.model` of all embeddings read here; default: the model that each shard names.

    Attributes:
        unsaved: keys added since the last shard was written. added: number of embeddings added so far.

    Raises:
        ShardError: for a damaged shard, another file with a shard's name, or a shard of another model.
        OSError: if the folder or a shard cannot be read.
    """

    def __init__(self, folder: Path, patches: bool = False, model: str | None = None) -> None:
        self.folder = folder
        self.patches = patches
        self.model = model
        self.added = 0
        self.drop()
        self._rows: dict[str, tuple[Path, int]] = {}
        for path in shards.shards_in(folder, *_KINDS):
            keys, has_patches = _head(path)
            if has_patches or not patches:
                self._rows |= {key: (path, row) for row, key in enumerate(keys)}

    def check(self) -> None:
        """Compare all shards with their digests; ShardError for one that has changed."""
        for path in shards.shards_in(self.folder, *_KINDS):
            shards.check(path)

    def __contains__(self, key: str) -> bool:
        return key in self._rows or key in self.unsaved

    # Writing

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Add embeddings, on the CPU; a shard is written once many wait, or one for half a minute."""
        if not self._waiting:
            self._since = time.monotonic()
        self.unsaved.update(keys)
        self.added += len(keys)
        self._waiting.append((keys, embedding))
        for tensor in (embedding.cls, embedding.patches, embedding.weights):
            self._waiting_bytes += 0 if tensor is None else tensor.nbytes

        is_late = time.monotonic() - self._since > _SAVE_SECONDS
        if is_late or self._waiting_bytes >= _SAVE_BYTES:
            self.save()

    def save(self) -> None:
        """Write the embeddings that are not in a shard yet; OutputError if the shard cannot be written."""
        if self._waiting:
            keys: list[str] = []
            for batch_keys, _ in self._waiting:
                keys += batch_keys
            embedding = concatenate([embedding for _, embedding in self._waiting])
            header = {_KEYS: " ".join(keys), _FOLDER: self.folder.name}
            data = serialized(embedding, header)
            kind = "patches" if self.patches else "cls"
            path = shards.write(self.folder, kind, data)
            self._rows |= {key: (path, row) for row, key in enumerate(keys)}
        self.drop()

    def drop(self) -> None:
        """Forget the embeddings that are not in a shard yet."""
        self._waiting: list[tuple[Sequence[str], Embedding]] = []
        self._waiting_bytes = 0
        self.unsaved: set[str] = set()

    # Reading

    def vectors(self, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D); errors as in `embedding`."""
        vectors = np.empty((0, 0), dtype=np.float32)
        for path, numbers, rows in self._by_shard(keys):
            shards.check(path)
            with _opened(path) as file:
                shard = file.get_tensor("cls").float().numpy()
            features = shard[rows]
            if not vectors.size:
                vectors = np.empty((len(keys), features.shape[1]), dtype=np.float32)
            vectors[numbers] = features
        return vectors

    def embedding(self, keys: Sequence[str]) -> Embedding:
        """Embeddings of at least one key, with patches if the store keeps them; only these rows are read into memory.

        Raises:
            KeyError: for an unknown key. ShardError: naming a shard that has changed.
            OSError: for a shard that cannot be read, or has been removed.
        """
        parts: list[Embedding] = []
        order: list[int] = []
        for path, numbers, rows in self._by_shard(keys):
            parts.append(_read_rows(path, rows, self.patches))
            order += numbers
        embedding = concatenate(parts)[torch.tensor(order).argsort()]
        if self.model is None:
            return embedding
        return replace(embedding, model=self.model)

    def readable(self, keys: Sequence[str]) -> dict[str, Embedding]:
        """Embeddings of those keys that it holds; errors as in `embedding`."""
        stored = [key for key in dict.fromkeys(keys) if key in self]
        return dict(zip(stored, self.embedding(stored), strict=True)) if stored else {}

    def _by_shard(self, keys: Sequence[str]) -> list[tuple[Path, list[int], list[int]]]:
        """Return each shard, which of the keys it holds, and their rows there."""
        if not self.unsaved.isdisjoint(keys):
            self.save()
        shard_rows: dict[Path, dict[int, int]] = {}
        for number, key in enumerate(keys):
            path, row = self._rows[key]
            shard_rows.setdefault(path, {})[number] = row
        by_shard = []
        for path, row_of_number in shard_rows.items():
            numbers = list(row_of_number)
            rows = list(row_of_number.values())
            by_shard.append((path, numbers, rows))
        return by_shard


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a shard; only a changed byte counts as damage, while an error of the system, such as no memory, does not."""
    refuse_irregular(path)
    path.open("rb").close()  # safetensors reports the system's errors as its own
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
        shards.check(path)
        raise ShardError(path, f"cannot be read as embeddings: {error}") from error


def _head(path: Path) -> tuple[list[str], bool]:
    """Return the keys of a shard, and whether it has patches."""
    with _opened(path) as file:
        names = list(file.keys())
        head = file.metadata() or {}
        keys = head.get(_KEYS, "").split()
        counts = {file.get_slice(name).get_shape()[0] for name in names}
        if "cls" not in names or counts != {len(keys)}:
            raise ValueError("it does not say which images it holds")
    if head.get(_FOLDER) != path.parent.name:
        shards.check(path)
        raise ShardError(path, f"holds embeddings of {head.get(_FOLDER)!r}, another model or other settings: remove it")
    return keys, "patches" in names


def _read_rows(path: Path, rows: Sequence[int], patches: bool) -> Embedding:
    """Read some rows of a shard."""
    shards.check(path)
    with _opened(path) as file:
        head = file.metadata() or {}
        names = list(file.keys())
        if not patches:
            names = ["cls"]
            head = {"model": head.get("model", "")}
        tensors = {}
        for name in names:
            stored = file.get_slice(name)
            tensors[name] = torch.cat([stored[row : row + 1] for row in rows])
        return Embedding.of(tensors, head)
