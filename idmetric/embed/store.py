"""Embeddings on disk by key: a folder of safetensors files, called shards, for each model.

    store = Store(folder / folder_name(model.about()))
    store.add([content_key(data)], model.embed(data).cpu())  # in a file after half a minute,
    store.save()                                             # or now
    store.vectors([content_key(data)])                       # (1, D)

Shards are written atomically, under random names, and never changed. So a killed run keeps what it had saved, and any
number of processes may write to one folder without a lock.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from idmetric.distance.embedding import Embedding, concatenate
from idmetric.io.output import replacing, writing

_KEYS = "keys"
_SAVE_SECONDS = 30.0  # a killed run loses about this much work
_SAVE_BYTES = 2**28  # at most this much is held in memory


class DamagedShardError(ValueError):
    """A shard that cannot be read. `path` is its file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{os.fspath(path)!r} is not a readable shard of embeddings ({reason}): delete it")
        self.path, self.reason = path, reason


class Store:
    """The embeddings of one model, by key (`keys.content_key`).

    Args:
        folder: created with the first shard.
        patches: keep patch tokens as well as global features; shards without them are then ignored.
        model: `Embedding.model` of all embeddings read here; default: the model that each shard names.

    Attributes:
        unsaved: keys added since the last shard was written. added: number of embeddings added so far.
        damaged: the errors of shards that cannot be read and are ignored; `mend` deletes them.
    """

    def __init__(self, folder: Path, patches: bool = False, model: str | None = None) -> None:
        self.folder, self.patches, self.model = folder, patches, model
        self.added = 0
        self.drop()
        self.scan()

    # Which embeddings it holds

    def scan(self) -> None:
        """List the shards in the folder again."""
        self._where: dict[str, tuple[Path, int]] = {}
        self.damaged: list[DamagedShardError] = []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                names, has_patches = _head(path)
            except DamagedShardError as error:
                if path.exists():  # else another process has just removed it
                    self.damaged.append(error)
                continue
            if self.patches <= has_patches:
                self._where |= {name: (path, k) for k, name in enumerate(names)}

    def mend(self) -> list[str]:
        """Delete damaged shards, so that their images are embedded again; return a line about each."""
        lines = [
            f"the shard {e.path.name} was damaged ({e.reason}): its images are embedded again" for e in self.damaged
        ]
        for error in self.damaged:
            error.path.unlink(missing_ok=True)
        self.damaged = []
        return lines

    def __contains__(self, key: str) -> bool:
        return key in self._where or key in self.unsaved

    def files(self) -> dict[Path, list[str]]:
        """Keys by shard; a key in several shards counts for the one that it is read from."""
        found: dict[Path, list[str]] = {}
        for key, (path, _) in self._where.items():
            found.setdefault(path, []).append(key)
        return found

    # Writing

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Add embeddings, on the CPU; a shard is written once many wait, or one for half a minute."""
        if not self._waiting:
            self._since = time.monotonic()
        self.unsaved.update(keys)
        self.added += len(keys)
        self._waiting.append((tuple(keys), embedding))
        self._held += sum(x.nbytes for x in (embedding.cls, embedding.patches, embedding.weights) if x is not None)

        late = time.monotonic() - self._since > _SAVE_SECONDS
        if late or self._held >= _SAVE_BYTES:
            self.save()

    def save(self) -> None:
        """Write the embeddings that are not in a shard yet; OutputError if the shard cannot be written."""
        if self._waiting:
            keys = [key for some, _ in self._waiting for key in some]
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{'patches' if self.patches else 'cls'}-{uuid.uuid4().hex}.safetensors"
            with replacing(path) as temporary:
                concatenate([e for _, e in self._waiting]).save(temporary, {_KEYS: " ".join(keys)})
            self._where |= {key: (path, k) for k, key in enumerate(keys)}
        self.drop()

    def drop(self) -> None:
        """Forget the embeddings that are not in a shard yet."""
        self._waiting: list[tuple[tuple[str, ...], Embedding]] = []
        self.unsaved: set[str] = set()
        self._held = 0  # bytes that wait

    # Reading

    def vectors(self, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D); errors as in `embedding`."""
        rows: NDArray[np.float32] | None = None
        for path, at, inside in self._by_shard(keys):
            with _opened(path) as file:
                found = file.get_tensor("cls").float().numpy()[inside]
            if rows is None:
                rows = np.empty((len(keys), found.shape[1]), dtype=np.float32)
            rows[at] = found
        return np.empty((0, 0), dtype=np.float32) if rows is None else rows

    def embedding(self, keys: Sequence[str]) -> Embedding:
        """Embeddings of at least one key, with patches if the store keeps them; only these rows are read into memory.

        Raises:
            KeyError: for an unknown key. DamagedShardError: naming a shard that cannot be read, or has been removed.
        """
        parts: list[Embedding] = []
        order: list[int] = []
        for path, at, inside in self._by_shard(keys):
            parts.append(_some(path, inside, self.patches))
            order += at
        found = concatenate(parts)[torch.tensor(order).argsort()]
        return found if self.model is None else replace(found, model=self.model)

    def readable(self, keys: Sequence[str]) -> dict[str, Embedding]:
        """Embeddings of the keys that can be read: another process may prune the folder meanwhile."""
        for _ in range(3):
            there = [key for key in dict.fromkeys(keys) if key in self]
            try:
                return dict(zip(there, self.embedding(there), strict=True)) if there else {}
            except DamagedShardError:
                self.scan()
        return {}

    def _by_shard(self, keys: Sequence[str]) -> Iterator[tuple[Path, list[int], list[int]]]:
        """Yield each shard, positions in `keys`, and the rows there."""
        if any(key in self.unsaved for key in keys):
            self.save()
        found: dict[Path, tuple[list[int], list[int]]] = {}
        for at, key in enumerate(keys):
            path, inside = self._where[key]
            places = found.setdefault(path, ([], []))
            places[0].append(at)
            places[1].append(inside)
        return ((path, *places) for path, places in found.items())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if path.is_file():  # safetensors reports all errors alike; those of the system are no damage, and are raised here
        path.open("rb").close()
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
        names = list(file.keys())
        keys = (file.metadata() or {}).get(_KEYS, "").split()
        if "cls" not in names or {file.get_slice(name).get_shape()[0] for name in names} != {len(keys)}:
            raise DamagedShardError(path, "it does not say which images it holds")
    return keys, "patches" in names


def _some(path: Path, rows: Sequence[int], patches: bool) -> Embedding:
    """Read some rows of a shard."""
    with _opened(path) as file:
        names = file.keys() if patches else ["cls"]
        tensors = {name: torch.cat([file.get_slice(name)[k : k + 1] for k in rows]) for name in names}
        head = file.metadata() or {}
        return Embedding.of(tensors, head if patches else {"model": head.get("model", "")})
