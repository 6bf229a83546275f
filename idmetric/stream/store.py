"""Embeddings on disk by key: a folder of safetensors files, called shards, for each model.

    store = Store(folder / folder_name(model.about()))
    store.add([content_key(data)], model.embed(data).cpu())  # in a file after half a minute,
    store.save()                                             # or now
    store.vectors([content_key(data)])                       # (1, D)

Shards are written atomically, named by a digest of their bytes (`shards`), and never changed. So a killed run keeps
what it had saved, any number of processes may write to one folder without a lock, and a damaged shard is never used.
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

KINDS = ("cls", "patches")  # of shards
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
        damaged: shards that are ignored because their bytes have changed, and the errors; `mend` deletes them.

    Raises:
        ShardError: for another file with a shard's name, or a shard of another model; `path` is the file.
        OSError: if the folder or a shard cannot be read.
    """

    def __init__(self, folder: Path, patches: bool = False, model: str | None = None) -> None:
        self.folder = folder
        self.patches = patches
        self.model = model
        self.added = 0
        self.damaged: dict[Path, ShardError] = {}
        self.drop()
        self.scan()

    # Which embeddings it holds

    def scan(self) -> None:
        """List the shards in the folder again."""
        self._rows: dict[str, tuple[Path, int]] = {}
        for path in shards.shards_in(self.folder, *KINDS):
            if path in self.damaged:
                continue
            try:
                keys, has_patches = _head(path)
            except ShardError as error:
                if not error.is_damaged:
                    raise
                self.damaged[path] = error
                continue
            except FileNotFoundError:  # another process has just removed it
                continue
            if has_patches or not self.patches:
                self._rows |= {key: (path, row) for row, key in enumerate(keys)}

    def check(self) -> None:
        """Compare all shards with their digests; those that have changed are ignored from now on."""
        for path in shards.shards_in(self.folder, *KINDS):
            try:
                shards.check(path)
            except ShardError as error:
                self.damaged[path] = error
            except FileNotFoundError:  # another process has just removed it
                continue
        self.scan()

    def drop_damaged(self) -> list[str]:
        """Delete damaged shards, so that their images are embedded again; return a line about each.

        Raises:
            ShardError, OutputError: for a shard that is reached through a link or cannot be deleted.
        """
        lines = []
        for path in list(self.damaged):
            shards.remove(path, root=self.folder.parent)
            del self.damaged[path]
            lines.append(f"the shard {path.name} was damaged: its images are embedded again")
        return lines

    def __contains__(self, key: str) -> bool:
        return key in self._rows or key in self.unsaved

    def files(self) -> dict[Path, list[str]]:
        """Keys by shard; a key in several shards counts for the one that it is read from."""
        keys: dict[Path, list[str]] = {}
        for key, (path, _) in self._rows.items():
            keys.setdefault(path, []).append(key)
        return keys

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
        """Embeddings of the keys that can be read: another process may prune the folder meanwhile."""
        while True:
            stored = [key for key in dict.fromkeys(keys) if key in self]
            if not stored:
                return {}
            try:
                return dict(zip(stored, self.embedding(stored), strict=True))
            except ShardError as error:
                if not error.is_damaged:
                    raise
                self.damaged[error.path] = error
            except FileNotFoundError:
                pass
            self.scan()

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
