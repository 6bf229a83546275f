"""Embeddings on disk by key: a folder of safetensors files, called shards, for each model.

    store = Store(folder / folder_name(model.about()))
    store.add([content_key(data)], model.embed(data).cpu())  # in a file after half a minute,
    store.save()                                             # or now
    store.vectors([content_key(data)])                       # (1, D)

Shards are written atomically, named by a digest of their bytes (`shards`), and never changed. So a killed run keeps
what it had saved, any number of processes may write to one folder without a lock, and a damaged shard is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from idmetric.metric.embedding import Embedding, concatenate, serialized
from idmetric.metric.files import StrPath, new_digest, read_bytes, refuse_irregular, replacing, writing
from idmetric.metric.lazy import LazyModule
from idmetric.metric.paths import is_hidden

# Names of stored embeddings: a folder for each model and way of looking, a key for the content of each image.
#
# An embedding may be reused only for the same image, seen in the same way by the same weights. So its key is a hash of
# the bytes of image and mask (`content_key`), and the name of its folder holds a hash of everything else that it
# depends
# on (`Embedder.about`), including the weights in memory.

torch: Any = LazyModule("torch")  # a command's --help does without

MASKED = "-m"
counts: Counter[str] = Counter()  # of this process: embeddings "asked" of its stores, and "made" for them
VARIABLE = "IDMETRIC_CACHE"  # of the environment: the folder of embeddings for all commands that name none


def cache_folder(folder: StrPath | None) -> Path | None:
    """The folder of embeddings that the caller names, else that of the environment; None without both."""
    folder = folder or os.environ.get(VARIABLE)
    return Path(folder) if folder else None


# Models


def settings_digest(facts: Mapping[str, Any]) -> str:
    """Return a hash of a JSON object: 16 hex digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def folder_name(facts: Mapping[str, str]) -> str:
    """Return the name of a folder of embeddings with these facts (`Embedder.about`): the model's name and a hash.

    The version of this package does not enter the hash: embeddings outlive releases.
    """
    name = re.sub("[^A-Za-z0-9._-]+", "-", facts["model"]).strip("-.")[-60:].lstrip("-.")
    return f"{name}.{settings_digest({key: value for key, value in facts.items() if key != 'idmetric'})}"


def stores_in(folder: StrPath, name: str) -> list[Path]:
    """Return the folders in a folder that hold a file of this name, sorted; none if the folder does not exist.

    Raises:
        PermissionError: if the folder or one in it is closed to the user, so that it may hold such a file.
    """
    stores = []
    try:
        for entry in sorted(os.listdir(folder)):
            if is_hidden(entry):
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.stat(os.path.join(folder, entry, name))
                stores.append(Path(folder, entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return stores


# Images


def content_key(image: bytes, mask: bytes | None = None, look: str = "") -> str:
    """Return the key of exactly this content: 32 hex digits, followed by `MASKED` for a masked image.

    Args:
        look: what becomes of the pixels outside of the mask, where that is known.
    """
    digest = hashlib.blake2b(image, digest_size=16)
    if mask is None:
        return digest.hexdigest()
    digest.update(b"\0" + hashlib.blake2b(mask, digest_size=16).digest() + look.encode())
    return digest.hexdigest() + MASKED


def key_of(image: StrPath | bytes, mask: StrPath | bytes | None = None, look: str = "") -> str:
    """Return the `content_key` of an image and its mask, given by their files or bytes; raises as `content`."""
    return content_key(content(image), None if mask is None else content(mask), look)


def content(source: StrPath | bytes) -> bytes:
    """Read all bytes of a file; bytes are returned as they are.

    Raises:
        OSError: as `read_bytes`.
    """
    if isinstance(source, bytes):
        return source
    return read_bytes(source)


# Files of embeddings and pictures, called shards: named by a digest of their bytes, which is checked before use.
#
#     path = write_shard(folder, "cls", data)  # folder/cls-<digest>.safetensors
#     check_shard(path)                        # ShardError if a byte has changed
#
# Files with other names in the folder are not read.

_DAMAGED = "is damaged: its bytes do not match the digest in its name; delete it, and its images are embedded again"
_NAME = re.compile(r"([a-z]+)-([0-9a-f]{32})\.safetensors")


class ShardError(ValueError):
    """A shard that cannot be used.

    Attributes:
        path: its file. reason: why it cannot be used, and what to do.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # the arguments, by which an exception is copied
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{os.fspath(self.path)!r} {self.reason}"


def write_shard(folder: Path, kind: str, data: bytes) -> Path:
    """Write a shard atomically and return its path; OutputError if that fails."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{_digest_of(data)}.safetensors"
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return path


def shards_in(folder: Path, *kinds: str) -> list[Path]:
    """Return the shards of some kinds in a folder, sorted by name; none if there is no folder.

    Raises:
        OSError: for a folder that cannot be listed.
    """
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [_NAME.fullmatch(name) for name in names]
    return [folder / match[0] for match in matches if match and match[1] in kinds]


def check_shard(path: Path) -> None:
    """Compare a shard's bytes with the digest in its name; an unchanged file is read once per process.

    Raises:
        ShardError: if they differ. OSError: if it cannot be read, or is a pipe or a device.
    """
    refuse_irregular(path)
    status = os.stat(path)
    _check(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(2**16)
def _check(path: Path, *stamp: int) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, new_digest)
    match = _NAME.fullmatch(path.name)
    if match is None or match[2] != digest.hexdigest():
        raise ShardError(path, _DAMAGED)


def _digest_of(data: bytes) -> str:
    digest = new_digest()
    digest.update(data)
    return digest.hexdigest()


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
        is_needed: embeddings are read from here later, so that a full disk is an error; otherwise nothing more is kept
            then, with a warning.

    Attributes:
        unsaved: keys added since the last shard was written. added: number of embeddings added so far.

    Raises:
        ShardError: for a damaged shard, another file with a shard's name, or a shard of another model.
        OSError: if the folder or a shard cannot be read.
    """

    def __init__(self, folder: Path, patches: bool = False, model: str | None = None, is_needed: bool = False) -> None:
        self.folder = folder
        self.patches = patches
        self.model = model
        self.added = 0
        self.counts = counts
        self.is_needed = is_needed
        self._is_full = False
        self.drop()
        self._rows: dict[str, tuple[Path, int]] = {}
        for path in shards_in(folder, *_KINDS):
            keys, has_patches = _head(path)
            if has_patches or not patches:
                self._rows |= {key: (path, row) for row, key in enumerate(keys)}

    def check(self) -> None:
        """Compare all shards with their digests; ShardError for one that has changed."""
        for path in shards_in(self.folder, *_KINDS):
            check_shard(path)

    def __contains__(self, key: str) -> bool:
        return key in self._rows or key in self.unsaved

    # Writing

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Add embeddings, on the CPU; a shard is written once many wait, or one for half a minute."""
        if self._is_full:
            return
        if not self._waiting:
            self._since = time.monotonic()
        self.unsaved.update(keys)
        self.added += len(keys)
        self.counts["made"] += len(keys)
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
            try:
                path = write_shard(self.folder, kind, data)
            except OSError as error:
                if self.is_needed:
                    raise
                self._is_full = True
                self.drop()
                warnings.warn(f"the cache is not complete ({error}); the scores are", stacklevel=2)
                return
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
            check_shard(path)
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
        self.counts["asked"] += len(keys)
        if not self.unsaved.isdisjoint(keys):
            self.save()
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
        check_shard(path)
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
        check_shard(path)
        raise ShardError(path, f"holds embeddings of {head.get(_FOLDER)!r}, another model or other settings: remove it")
    return keys, "patches" in names


def _read_rows(path: Path, rows: Sequence[int], patches: bool) -> Embedding:
    """Read some rows of a shard."""
    check_shard(path)
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
