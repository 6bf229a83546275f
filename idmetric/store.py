"""Embeddings on disk by key: a folder for each model, with append-only parts.

    store = Store(folder / folder_name(metric.about()), metric.model_id)
    store.add([key_of("a.jpg")], metric.embed("a.jpg").cpu())  # in a file after half a minute,
    store.save()                                               # or now
    store.vectors([key_of("a.jpg")])                           # (1, D)

An embedding may be reused only for the same image, seen in the same way by the same weights. So its key is a hash of
the bytes of image and mask (`content_key`), and the name of its folder holds a hash of everything else that it depends
on (`Embedder.about`), the weights in memory included.

Parts are written beside and renamed, and never changed. So any number of processes may write to a folder, and one that
is killed loses what it had not written yet. Each row has a checksum: a damaged one counts as missing, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from idmetric.metric.embedding import Embedding, concatenate
from idmetric.metric.files import StrPath, locked, read_bytes, refuse_irregular, replacing, writing
from idmetric.metric.lazy import LazyModule

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = LazyModule("torch")  # a command's --help does without

Rows = dict[str, dict[str, "Tensor"]]  # by key and column
VARIABLE = "IDMETRIC_CACHE"  # of the environment: the folder of embeddings for all commands that name none
counts: Counter[str] = Counter()  # of this process: embeddings "asked" of its stores, and "made" for them

MASKED = "-m"
_SAVE_SECONDS = 30.0  # a killed run loses about this much work
_PART_BYTES = 2**28  # of a part, at most; as much is held in memory
_MOST_PARTS = 64  # beyond, small ones are joined
_ROWS = 4096  # that are read at once
_UNREADABLE = (SafetensorError, OSError, ValueError, LookupError, RuntimeError)


def cache_folder(folder: StrPath | None) -> Path | None:
    """The folder of embeddings that the caller names, else that of the environment; None without both."""
    folder = folder or os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def settings_digest(facts: Mapping[str, Any]) -> str:
    """Return a hash of a JSON object: 16 hex digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def folder_name(facts: Mapping[str, str]) -> str:
    """Return the name of a folder of embeddings with these facts (`Embedder.about`): the model's name and a hash.

    The version of this package does not enter the hash: embeddings outlive releases.
    """
    name = re.sub("[^A-Za-z0-9._-]+", "-", facts["model"]).strip("-.")[-60:].lstrip("-.")
    return f"{name}.{settings_digest({key: value for key, value in facts.items() if key != 'idmetric'})}"


def content_key(image: bytes, mask: bytes | None = None, look: str = "") -> str:
    """Return the key of exactly this content: 32 hex digits, followed by `MASKED` for a masked image.

    Args:
        look: what becomes of the pixels outside of the mask.
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
    """Read all bytes of a file; bytes are returned as they are. Raises OSError as `read_bytes`."""
    return source if isinstance(source, bytes) else read_bytes(source)


class Parts:
    """Rows of tensors by key, in a folder.

    Args:
        folder: made with the first part.
        columns: the names of a row's tensors; parts without one of them are not seen.
        is_needed: rows are read from here later, so that a full disk is an error; otherwise nothing more is kept then,
            with a warning.

    Raises:
        OSError: if the folder cannot be listed.
    """

    def __init__(self, folder: Path, columns: Sequence[str], *, is_needed: bool = True) -> None:
        self.folder = folder
        self.columns = columns
        self.is_needed = is_needed
        self._is_full = False
        self._waiting: Rows = {}
        self._waiting_bytes = 0
        self._since = 0.0
        self.reload()

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._waiting

    def reload(self) -> None:
        """List the parts again, which other processes may have written or joined."""
        self._places: dict[str, tuple[Path, int]] = {}  # part and row
        self._own_parts: list[Path] = []  # oldest first; with exactly these columns
        names: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            names = sorted(os.listdir(self.folder))
        for path in [self.folder / name for name in names if re.fullmatch(r"part-[0-9a-f-]+\.safetensors", name)]:
            try:
                keys, columns = self._head(path)
            except FileNotFoundError:  # joined with others meanwhile
                self.reload()
                return
            except _UNREADABLE as error:
                warnings.warn(f"{os.fspath(path)!r} is left out, and its rows are made again: {error}", stacklevel=2)
                continue
            if set(self.columns) <= columns:
                self._places |= {key: (path, number) for number, key in enumerate(keys)}
            if set(self.columns) == columns:
                self._own_parts.append(path)

    def _head(self, path: Path) -> tuple[list[str], set[str]]:
        """The keys of a part's rows, and the names of its columns."""
        refuse_irregular(path)
        with safe_open(path, "pt") as part:
            header = part.metadata() or {}
            columns = set(part.keys())
        if header.get("folder") != self.folder.name:
            raise ValueError(f"it is of {header.get('folder')!r}, another model or other settings")
        return header["keys"].split(), columns

    # Writing

    def add_rows(self, keys: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        """Add rows (N, ...) on the CPU; a part is written once many wait, or one for half a minute."""
        if self._is_full:
            return
        if not self._waiting:
            self._since = time.monotonic()
        for number, key in enumerate(keys):
            self._waiting[key] = {column: tensors[column][number] for column in self.columns}
        self._waiting_bytes += sum(tensor.nbytes for tensor in tensors.values())
        if time.monotonic() - self._since > _SAVE_SECONDS or self._waiting_bytes >= _PART_BYTES:
            self.save()

    def save(self) -> None:
        """Write the rows that are not in a part yet; OutputError if that fails, and they are needed."""
        if not self._waiting:
            return
        try:
            self._write(self._waiting)
        except OSError as error:
            if self.is_needed:
                raise
            self._is_full = True
            warnings.warn(f"the cache is not complete ({error}); the scores are", stacklevel=2)
        self._waiting = {}
        self._waiting_bytes = 0
        if len(self._own_parts) > _MOST_PARTS:
            with suppress(*_UNREADABLE):  # another process joins them, or the disk is full or has no locks
                self._join_parts()

    def _write(self, rows: Rows) -> None:
        """Write a part for each shape of rows."""
        from safetensors.torch import save

        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        keys_of_shape: dict[Any, list[str]] = defaultdict(list)
        for key, row in rows.items():
            keys_of_shape[tuple([tensor.shape for tensor in row.values()])].append(key)
        for keys in keys_of_shape.values():
            header = {"folder": self.folder.name, "keys": " ".join(keys)}
            tensors = {}
            for column in self.columns:
                column_rows = [rows[key][column] for key in keys]
                tensors[column] = torch.stack(column_rows)
                header[column] = "".join(map(_checksum, keys, column_rows))
            path = self.folder / f"part-{time.time_ns():016x}-{uuid.uuid4().hex[:8]}.safetensors"
            with replacing(path) as temporary:
                temporary.write_bytes(save(tensors, header))
            self._own_parts.append(path)
            self._places |= {key: (path, number) for number, key in enumerate(keys)}

    def _join_parts(self) -> None:
        """Join the oldest parts into one, as far as they are small."""
        with locked(self.folder / ".parts.lock", BlockingIOError()):
            self.reload()
            rows: Rows = {}
            joined = []
            size = 0
            for path in self._own_parts:
                size += path.stat().st_size
                if size > _PART_BYTES:
                    break
                keys, _ = self._head(path)
                rows |= self._read(path, {key: number for number, key in enumerate(keys)})
                joined.append(path)
            self._write(rows)
            for path in joined:
                path.unlink()
            self.reload()

    # Reading

    def rows(self, keys: Iterable[str]) -> Rows:
        """The rows of those keys that are held, undamaged."""
        rows: Rows = {}
        numbers_in_part: dict[Path, dict[str, int]] = defaultdict(dict)
        for key in keys:
            if key in self._waiting:
                rows[key] = self._waiting[key]
            elif key in self._places:
                path, number = self._places[key]
                numbers_in_part[path][key] = number
        for path, numbers in numbers_in_part.items():
            try:
                part_rows = self._read(path, numbers)
            except FileNotFoundError:  # joined with others meanwhile
                self.reload()
                part_rows = self.rows(numbers)
            except _UNREADABLE:
                part_rows = {}
            rows |= part_rows
            damaged = [key for key in numbers if key not in part_rows]
            if damaged:
                message = f"{os.fspath(path)!r} is damaged: {len(damaged)} of its rows are made again"
                warnings.warn(message, stacklevel=2)
            for key in damaged:
                self._places.pop(key, None)
        return rows

    def _read(self, path: Path, numbers: Mapping[str, int]) -> Rows:
        """The undamaged rows of a part, by their keys."""
        rows: Rows = {}
        refuse_irregular(path)
        with safe_open(path, "pt") as part:
            header = part.metadata()
            tensors = {column: part.get_tensor(column) for column in self.columns}
        for key, number in numbers.items():
            row = {column: tensor[number].clone() for column, tensor in tensors.items()}
            place = slice(8 * number, 8 * number + 8)
            if all(header[column][place] == _checksum(key, tensor) for column, tensor in row.items()):
                rows[key] = row
        return rows


def _checksum(key: str, tensor: Tensor) -> str:
    """8 hex digits, of the key as well."""
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
    return f"{zlib.crc32(data, zlib.crc32(key.encode())):08x}"


class Store(Parts):
    """The embeddings of one model, by key (`content_key`).

    Args:
        model: `Embedding.model` of the embeddings read here.
        patches: keep patch tokens as well; parts without them are not seen then.
        folder, is_needed: see `Parts`.
    """

    def __init__(self, folder: Path, model: str = "", *, patches: bool = False, is_needed: bool = False) -> None:
        super().__init__(folder, ("cls", "patches", "grid", "weights") if patches else ("cls",), is_needed=is_needed)
        self.model = model
        self.counts = counts

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Add embeddings on the CPU, see `add_rows`."""
        count = len(keys)
        self.counts["made"] += count
        nothing = torch.empty(count, 0)
        tensors = {
            "cls": embedding.cls,
            "patches": nothing if embedding.patches is None else embedding.patches,
            "grid": torch.tensor([embedding.grid or ()] * count),
            "weights": nothing if embedding.weights is None else embedding.weights,
        }
        self.add_rows(keys, {column: tensors[column] for column in self.columns})

    def readable(self, keys: Sequence[str]) -> dict[str, Embedding]:
        """The embeddings (1, ...) of those keys that it holds, undamaged."""
        self.counts["asked"] += len(keys)
        embeddings = {}
        for key, row in self.rows(keys).items():
            columns: dict[str, Any] = {name: tensor[None] for name, tensor in row.items() if tensor.numel()}
            if "grid" in columns:
                columns["grid"] = tuple(row["grid"].tolist())
            embeddings[key] = Embedding(**columns, model=self.model)
        return embeddings

    def embedding(self, keys: Sequence[str]) -> Embedding:
        """The embeddings of at least one key, in order; KeyError for one that is missing or damaged."""
        embeddings = self.readable(keys)
        return concatenate([embeddings[key] for key in keys])

    def vectors(self, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D); KeyError as `embedding`."""
        vectors = np.empty((0, 0), dtype=np.float32)
        for start in range(0, len(keys), _ROWS):
            part_keys = keys[start : start + _ROWS]
            rows = self.rows(part_keys)
            part = torch.stack([rows[key]["cls"] for key in part_keys]).float().numpy()
            if not start:
                vectors = np.empty((len(keys), part.shape[1]), dtype=np.float32)
            vectors[start : start + _ROWS] = part
        return vectors
