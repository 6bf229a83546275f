"""Embeddings in files that only ever get more: a folder for each model, safetensors shards named by no number.

A shard is written atomically, so a killed run leaves what it had saved, and two runs may share a folder. Each image's
numbers have a CRC-32, and so has the head (not yet in shards of idmetric 0.1): a shard that the disk has damaged is
named and never used.
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
_AGAIN = 3  # how often a shard that another process has removed is looked for
_SAVE_SECONDS = 30.0  # a killed run loses about so much work,
_SAVE_IMAGES = 4096  # at most so many images,
_SAVE_BYTES = 2**28  # and with patches no more than this is held in memory


class DamagedShardError(ValueError):
    """A shard that cannot be read, or holds other numbers than were written. `path` is the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{os.fspath(path)!r} is not a readable shard of embeddings ({reason}): delete it")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type[DamagedShardError], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class Shards:
    """The embeddings of one model, by key.

    Args:
        folder: made when the first shard is written.
        patches: whether patch tokens are kept beside the global features; shards without them then do not count.
        damaged: called for each shard that cannot be read, which then does not count; default: it is raised.
        model: `Embedding.model` of all embeddings here; default: what each shard says.

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
        self.scan()

    def scan(self) -> None:
        """Look again at which shards are in the folder."""
        self._where = {}
        for path in sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else []:
            try:
                names, held = _head(path)
            except DamagedShardError as error:
                if not path.exists():  # removed just now
                    continue
                self._lose(error)
                continue
            if self.patches <= held:
                self._where |= {name: (path, k) for k, name in enumerate(names)}

    def _lose(self, error: DamagedShardError) -> None:
        if self._damaged is None:
            raise error
        self._forget(error.path)
        self._damaged(error)

    def _forget(self, lost: Path) -> None:
        self._where = {key: place for key, place in self._where.items() if place[0] != lost}

    def __contains__(self, key: str) -> bool:
        return key in self._where

    def files(self) -> dict[Path, list[str]]:
        """Keys in each file that counts; of a key in several files, in the one that it is read from."""
        found: dict[Path, list[str]] = {}
        for key, (path, _) in self._where.items():
            found.setdefault(path, []).append(key)
        return found

    def check(self) -> list[DamagedShardError]:
        """Read everything, and return what is damaged; the shards that are do not count any more."""
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

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Write a shard with these images."""
        if len(keys) != len(embedding) or not keys:
            raise ValueError(f"{len(keys)} keys for {len(embedding)} embeddings")
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

    def vectors(self, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D) of these images.

        Raises:
            KeyError: for one that is not there.
            DamagedShardError: naming the shard.
        """
        rows: NDArray[np.float32] | None = None
        for at, found in self.blocks(keys):
            if rows is None:
                rows = np.empty((len(keys), found.shape[1]), dtype=np.float32)
            rows[at] = found
        return np.empty((0, 0), dtype=np.float32) if rows is None else rows

    def blocks(self, keys: Sequence[str]) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """The same a shard at a time: places in `keys`, and global features there; errors as in `vectors`."""
        for path, places in self._by_shard(keys).items():
            with _opened(path) as file:
                found = _checked(path, file.metadata() or {}, "cls", file.get_tensor("cls")).float().numpy()
            at, inside = zip(*places, strict=True)
            yield list(at), found[list(inside)]

    def embedding(self, keys: Sequence[str]) -> Embedding:
        """These images, with their patches if those are kept here; memory is that of the images asked for.

        Raises:
            KeyError: for one that is not there.
            ValueError: for none.
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
        """Those of the images that are here and can be read.

        Damaged shards are given to `damaged`, and do not count any more. If another process has removed a shard
        (as `idmetric-score gallery prune` does), the other shards are searched for its images.
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
        """Shard -> places in `keys` and in the shard."""
        found: dict[Path, list[tuple[int, int]]] = {}
        for at, key in enumerate(keys):
            path, inside = self._where[key]
            found.setdefault(path, []).append((at, inside))
        return found


class Writer:
    """Gathers embeddings, and writes a shard whenever there are many, or some have waited for long."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.keys: list[str] = []
        self.parts: list[Embedding] = []
        self.saved = time.monotonic()

    def add(self, keys: Sequence[str], embedding: Embedding) -> None:
        """Take these images' embeddings, on the CPU."""
        self.keys += keys
        self.parts.append(embedding)
        held = sum(t.nbytes for e in self.parts for t in (e.cls, e.patches, e.weights) if isinstance(t, Tensor))
        late = time.monotonic() - self.saved > _SAVE_SECONDS
        if late or len(self.keys) >= _SAVE_IMAGES or held >= _SAVE_BYTES:
            self.save()

    def save(self) -> None:
        """Write what is in no file yet."""
        if self.keys:
            self.shards.add(self.keys, concatenate(self.parts))
        self.drop()

    def drop(self) -> None:
        """Forget what is in no file yet."""
        self.keys, self.parts, self.saved = [], [], time.monotonic()


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
    """The keys of a shard, and whether it has patches."""
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
    """Some images of a shard."""
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
    said = {key: value for key, value in head.items() if key != _HEAD_SUM}
    return f"{zlib.crc32(json.dumps(said, sort_keys=True).encode()):08x}"


def _sums(tensor: Tensor) -> list[str]:
    """CRC-32 of each row."""
    rows = tensor.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
    return [f"{zlib.crc32(row):08x}" for row in rows]


def _checked(
    path: Path, head: Mapping[str, str], name: str, tensor: Tensor, rows: Sequence[int] | None = None
) -> Tensor:
    """The tensor, if it is finite and has its checksum; shards without checksums are trusted."""
    written = head.get(_SUMS + name, "").split()
    if written and _sums(tensor) != (written if rows is None else [written[k] for k in rows if k < len(written)]):
        raise DamagedShardError(path, f"its {name} are not what was written: the disk changed them")
    if not is_finite(tensor):
        raise DamagedShardError(path, f"its {name} hold NaN or infinity")
    return tensor
