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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.embedding import Embedding, concatenate
from idmetric.metric.files import StrPath, locked, read_bytes, refuse_irregular, replacing, writing
from idmetric.metric.lazy import LazyModule

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = LazyModule("torch")  # a command's --help does without

Row = dict[str, "Tensor"]  # by column
VARIABLE = "IDMETRIC_CACHE"  # of the environment: the folder of embeddings for all commands that name none
MASKED = "-m"  # ends the key of a masked image
counts: Counter[str] = Counter()  # of this process: embeddings "asked" of its stores, and "made" for them

_SAVE_SECONDS = 30.0  # a killed run loses about this much work
_PART_BYTES = 2**28  # of a part, at most; as much is held in memory
_MOST_PARTS = 64  # beyond, small ones are joined
_NAME = re.compile(r"part-[0-9a-f-]+\.safetensors")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "U8": "uint8"}
_BITS = {"bfloat16": "uint16"}  # types that NumPy lacks


def cache_folder(folder: StrPath | None) -> Path | None:
    """The folder of embeddings that the caller names, else that of the environment; None without both."""
    folder = folder or os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def settings_digest(facts: Mapping[str, Any]) -> str:
    """Return a hash of a JSON object: 16 hex digits."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder_name(facts: Mapping[str, str]) -> str:
    """Return the name of a folder of embeddings with these facts (`Embedder.about`): the model's name and a hash.

    The version of this package does not enter the hash: embeddings outlive releases.
    """
    name = re.sub("[^A-Za-z0-9._-]+", "-", facts["model"]).strip("-.")[-60:].lstrip("-.")
    lasting = {key: value for key, value in facts.items() if key != "idmetric"}
    return f"{name}.{settings_digest(lasting)}"


def content_key(image: bytes, mask: bytes | None = None, look: str = "") -> str:
    """Return the key of exactly this content: 32 hex digits, followed by `MASKED` for a masked image.

    Args:
        look: what becomes of the pixels outside of the mask.
    """
    digest = hashlib.blake2b(image, digest_size=16)
    if mask is None:
        return digest.hexdigest()
    mask_digest = hashlib.blake2b(mask, digest_size=16).digest()
    digest.update(b"\0" + mask_digest + look.encode())
    return digest.hexdigest() + MASKED


def key_of(image: StrPath | bytes, mask: StrPath | bytes | None = None, look: str = "") -> str:
    """Return the `content_key` of an image and its mask, given by their files or bytes; raises as `content`."""
    mask_bytes = None if mask is None else content(mask)
    return content_key(content(image), mask_bytes, look)


def content(source: StrPath | bytes) -> bytes:
    """Read all bytes of a file; bytes are returned as they are. Raises OSError as `read_bytes`."""
    return source if isinstance(source, bytes) else read_bytes(source)


class PartFile:
    """A file of rows. Its reader is ours, as libraries read a header again for each row; any error means damage.

    Attributes:
        size: in bytes. columns: dtype, shape and data_offsets of each, as in the file's header.
    """

    def __init__(self, path: Path) -> None:
        refuse_irregular(path)
        self.path = path
        self.size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(min(length, self.size))
        self.columns = json.loads(header)
        self._mapped: dict[str, NDArray[Any]] = {}
        self._start = 8 + length
        self._facts = self.columns.pop("__metadata__")
        if self._facts.keys() != {"folder", "keys", *self.columns}:  # or a mask's weights could be lost in silence
            raise ValueError("its columns are not those that it was written with")
        if self._facts["folder"] != path.parent.name:
            raise ValueError(f"it is of {self._facts['folder']!r}, another model or other settings")
        ends = [column["data_offsets"][1] for column in self.columns.values()]
        if self.size != self._start + max(ends):
            raise ValueError("it is cut short")

    @cached_property
    def keys(self) -> list[str]:
        """The key of each row."""
        keys: list[str] = self._facts["keys"].split()
        return keys

    def mapped(self, name: str) -> NDArray[Any]:
        """A column (N, ...) as it lies in the file, memory-mapped; bfloat16 as its 16 bits."""
        if name not in self._mapped:
            column = self.columns[name]
            dtype = _DTYPES[column["dtype"]]
            start = self._start + column["data_offsets"][0]
            shape = tuple(column["shape"])
            self._mapped[name] = np.memmap(self.path, _BITS.get(dtype, dtype), "r", start, shape)
        return self._mapped[name]

    def is_damaged(self, name: str, number: int, key: str) -> bool:
        """Whether a byte of a row has changed in this column, or the row is of another key."""
        data = self.mapped(name)[number].tobytes()
        return self._is_changed(name, number, key, data)

    def _is_changed(self, name: str, number: int, key: str, data: bytes) -> bool:
        checksums: str = self._facts[name]
        start = 8 * number
        return checksums[start : start + 8] != _checksum(key, data)

    def row(self, number: int, columns: set[str]) -> Row:
        """Read those columns of a row that it has; ValueError if a byte has changed."""
        row = {}
        with self.path.open("rb") as file:
            for name in columns & self.columns.keys():
                column = self.columns[name]
                count, *shape = column["shape"]
                begin, end = column["data_offsets"]
                size = (end - begin) // count
                file.seek(self._start + begin + number * size)
                data = file.read(size)
                if self._is_changed(name, number, self.keys[number], data):
                    raise ValueError("a byte has changed")
                dtype = getattr(torch, _DTYPES[column["dtype"]])
                values = torch.frombuffer(bytearray(data), dtype=dtype)
                row[name] = values.reshape(shape)
        return row


def _checksum(key: str, data: bytes) -> str:
    """8 hex digits, of the key as well."""
    start = zlib.crc32(key.encode())
    return f"{zlib.crc32(data, start):08x}"


class Parts:
    """Rows of tensors by key, in a folder.

    Args:
        folder: made with the first part.
        columns: the names of a row's tensors; parts without one of them are not seen. optional: tensors of some rows.
        is_needed: rows are read from here later, so that a full disk is an error; otherwise nothing more is kept then,
            with a warning.

    Raises:
        OSError: if the folder cannot be listed.
    """

    def __init__(
        self, folder: Path, columns: Sequence[str], optional: Sequence[str] = (), *, is_needed: bool = True
    ) -> None:
        self.folder = folder
        self.columns = set(columns)
        self.all_columns = {*columns, *optional}
        self.is_needed = is_needed
        self._is_closed = False
        self._waiting: dict[str, Row] = {}
        self._waiting_bytes = 0
        self._since = 0.0
        self.reload()

    def reload(self) -> None:
        """List the parts again, which other processes may have written or joined."""
        self._places: dict[str, tuple[PartFile, int]] = {}
        self._own_parts: list[PartFile] = []  # oldest first; without further columns
        names: list[str] = []
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if self.is_needed:
                raise
            self._is_closed = True
            warnings.warn(f"the cache is not used ({error}); the scores are complete", stacklevel=2)
        for name in sorted(names):
            if not _NAME.fullmatch(name):
                continue
            path = self.folder / name
            try:
                self._note(PartFile(path))
            except FileNotFoundError:  # joined with others meanwhile
                return self.reload()
            except Exception as error:  # whatever a damaged header gives
                warnings.warn(f"{str(path)!r} is left out, and its rows are made again: {error}", stacklevel=2)

    def _note(self, part: PartFile) -> None:
        part_columns = part.columns.keys()
        if self.columns <= part_columns:
            for number, key in enumerate(part.keys):
                self._places[key] = (part, number)
            if part_columns <= self.all_columns:
                self._own_parts.append(part)

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._waiting

    def place(self, key: str) -> tuple[str, int]:
        """The name of the part that holds a key, and the row in it; KeyError if there is none."""
        part, number = self._places[key]
        return part.path.name, number

    def drop_damaged(self, column: str) -> None:
        """Count rows of which a byte of this column has changed as missing, with a warning that names their part."""
        damaged: dict[Path, list[str]] = defaultdict(list)
        for key, (part, number) in self._places.items():
            if part.is_damaged(column, number, key):
                damaged[part.path].append(key)
        for path, keys in damaged.items():
            warnings.warn(f"{str(path)!r} is damaged: {len(keys)} rows of it are made again", stacklevel=2)
            for key in keys:
                del self._places[key]

    # Writing

    def add_rows(self, keys: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        """Add rows (N, ...) on the CPU; a part is written once many wait, or one for half a minute."""
        if self._is_closed:
            return
        if not self._waiting:
            self._since = time.monotonic()
        for number, key in enumerate(keys):
            row = {column: tensor[number] for column, tensor in tensors.items()}
            self._waiting[key] = row
        for tensor in tensors.values():
            self._waiting_bytes += tensor.nbytes
        seconds = time.monotonic() - self._since
        if seconds > _SAVE_SECONDS or self._waiting_bytes >= _PART_BYTES:
            self.save()

    def save(self) -> None:
        """Write the rows that are not in a part yet; OutputError if that fails, and they are needed."""
        try:
            self._write(self._waiting)
        except OSError as error:
            if self.is_needed:
                raise
            self._is_closed = True
            warnings.warn(f"the cache is not complete ({error}); the scores are", stacklevel=2)
        self._waiting = {}
        self._waiting_bytes = 0
        if len(self._own_parts) > _MOST_PARTS:
            with suppress(OSError):  # another process joins them, or the disk is full or has no locks
                self._join_parts()

    def _write(self, rows: Mapping[str, Row]) -> None:
        """Write a part for each shape of rows."""
        from safetensors.torch import save

        keys_of_shape: dict[Any, list[str]] = defaultdict(list)
        for key, row in rows.items():
            shapes = [(column, tensor.shape) for column, tensor in row.items()]
            keys_of_shape[tuple(shapes)].append(key)
        for columns, keys in keys_of_shape.items():
            facts = {"folder": self.folder.name, "keys": " ".join(keys)}
            tensors = {}
            for column, _ in columns:
                stacked = torch.stack([rows[key][column] for key in keys])
                data = stacked.view(len(keys), -1).view(torch.uint8).numpy()
                checksums = [_checksum(key, values.tobytes()) for key, values in zip(keys, data, strict=True)]
                tensors[column] = stacked
                facts[column] = "".join(checksums)
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"part-{time.time_ns():016x}-{uuid.uuid4().hex[:8]}.safetensors"
            with replacing(path) as temporary:
                temporary.write_bytes(save(tensors, facts))
            with suppress(FileNotFoundError):  # another process has joined it with others already
                self._note(PartFile(path))

    def _join_parts(self) -> None:
        """Join the smallest parts."""
        with locked(self.folder / ".parts.lock", BlockingIOError()):
            self.reload()
            joined = []
            size = 0
            for part in sorted(self._own_parts, key=lambda part: part.size):
                size += part.size
                if size <= _PART_BYTES:
                    joined.append(part)
            if len(joined) > 1:
                keys = [key for part in joined for key in part.keys]
                self._write(self.rows(keys))
                for part in joined:
                    part.path.unlink()
                self.reload()

    # Reading

    def rows(self, keys: Iterable[str]) -> dict[str, Row]:
        """The rows of those keys that are held, undamaged."""
        rows = {}
        for key in keys:
            row = self._row(key)
            if row is not None:
                rows[key] = row
        return rows

    def _row(self, key: str) -> Row | None:
        waiting = self._waiting.get(key)
        part, number = self._places.get(key, (None, 0))  # other threads may write or list meanwhile
        if waiting is not None or part is None:
            return waiting
        try:
            return part.row(number, self.all_columns)
        except FileNotFoundError:  # joined with others meanwhile
            self.reload()
            return self._row(key)
        except OSError:  # no damage: the row may be read later
            raise
        except Exception as error:  # whatever a damaged header gives
            self._places.pop(key, None)
            warnings.warn(f"{str(part.path)!r} is damaged, rows of it are made again: {error}", stacklevel=2)
            return None


class Store(Parts):
    """The embeddings of one model, by key (`content_key`).

    Args:
        model: `Embedding.model` of the embeddings read here.
        patches: keep patch tokens as well; parts without them are not seen then.
        folder, is_needed: see `Parts`.
    """

    def __init__(self, folder: Path, model: str = "", *, patches: bool = False, is_needed: bool = False) -> None:
        if patches:
            super().__init__(folder, ["cls", "patches"], ["grid", "weights"], is_needed=is_needed)
        else:
            super().__init__(folder, ["cls"], is_needed=is_needed)
        self.model = model
        self.counts = counts

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Add embeddings on the CPU, see `add_rows`."""
        self.counts["made"] += len(keys)
        grid = None
        if embedding.grid is not None:
            grid = torch.tensor([embedding.grid] * len(keys))
        columns = {"cls": embedding.cls, "patches": embedding.patches, "weights": embedding.weights, "grid": grid}
        tensors = {}
        for name, tensor in columns.items():
            if tensor is not None and name in self.all_columns:
                tensors[name] = tensor
        self.add_rows(keys, tensors)

    def readable(self, keys: Iterable[str]) -> dict[str, Embedding]:
        """The embeddings (1, ...) of those keys that it holds, undamaged."""
        embeddings = {}
        try:
            rows = self.rows(keys)
        except OSError as error:
            if self.is_needed:
                raise
            warnings.warn(f"rows of the cache are made again, as they cannot be read: {error}", stacklevel=2)
            return {}
        for key, row in rows.items():
            columns: dict[str, Any] = {}
            for name, tensor in row.items():
                columns[name] = tensor[None]
            if "grid" in row:
                columns["grid"] = tuple(row["grid"].tolist())
            embeddings[key] = Embedding(**columns, model=self.model)
        return embeddings

    def embedding(self, keys: Sequence[str]) -> Embedding:
        """The embeddings of at least one key, in order; KeyError for one that is missing or damaged."""
        embeddings = self.readable(keys)
        return concatenate([embeddings[key] for key in keys])

    def vectors(self, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D); KeyError as `embedding`."""
        if not keys:
            return np.empty((0, 0), dtype=np.float32)
        rows = self.rows(dict.fromkeys(keys))
        features = [rows[key]["cls"].float().numpy() for key in keys]
        return np.stack(features)
