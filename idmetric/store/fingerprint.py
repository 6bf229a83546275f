"""The identity of a model and of an image: the digests under which embeddings are kept.

A stored embedding may be used again only for the same image, by the same weights, seen in the same way. So its key is
the hash of the image's bytes (`content_key`), and its folder or file is named by everything that the model's embeddings
depend on (`Embedder.about`), the weights in memory included (`weights_digest`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

MASK_RULES = 2  # version of the rules for masks: a masked image embedded by older rules is embedded again
MASKED = f"-m{MASK_RULES}"
_SAMPLED = 3  # of a tensor, that many intervals between the values looked at
_ROW, _ROWS = 512, 2**14  # of a checksum: words summed into one, rows multiplied at once


# Weights


def weights_digest(module: nn.Module) -> str:
    """Hash of a module's weights as they are in memory: 32 hex digits.

    It covers names, shapes, types and bytes of all parameters and saved buffers, in order: about 1.5 s for each
    gigabyte. It is computed again only where their bytes have changed, however they were written to; to see that takes
    0.1 s for each gigabyte.
    """
    marks = (Marks.of(module, values=False), _checksum(_saved(module)))
    known = _digests.get(module)
    if known is None or known[0] != marks:
        known = _digests[module] = (marks, tensors_digest(module.state_dict().items()))
    return known[1]


_digests: WeakKeyDictionary[nn.Module, tuple[tuple[Marks, bytes], str]] = WeakKeyDictionary()


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Hash of named tensors, in order: names, shapes, types and bytes; 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Marks:
    """Signs of a write to a module's weights, a thousand times cheaper than their hash: for each batch of images.

    Attributes:
        written: address and version of each tensor. PyTorch counts all writes in place, except those through `.data`
            (as PEFT merges adapters) and through NumPy views; those are seen by
        values: four values of each tensor; empty where they were not read. A write that misses them is not seen here;
            it is by `weights_digest`, which names stored embeddings.
    """

    written: tuple[tuple[int, int], ...]
    values: bytes = b""

    @classmethod
    def of(cls, module: nn.Module, values: bool = True) -> Marks:
        """The marks now; reading values waits for the device."""
        tensors = _saved(module)
        written = tuple((t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors)
        return cls(written, _sample(tensors) if values else b"")


def _saved(module: nn.Module) -> list[Tensor]:
    """The tensors of `state_dict`, without the names and hooks that make it ten times as slow."""
    found: list[Tensor] = []
    for part in module.modules():
        found += [p for p in part._parameters.values() if p is not None]
        found += [b for k, b in part._buffers.items() if b is not None and k not in part._non_persistent_buffers_set]
    return found


def _sample(tensors: Iterable[Tensor]) -> bytes:
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_contiguous() and tensor.numel() and not tensor.is_meta:
            step = max(1, (tensor.numel() - 1) // _SAMPLED)
            by_device.setdefault(tensor.device, []).append(tensor.detach().view(-1)[::step])
    return b"".join(torch.cat(some).float().cpu().numpy().tobytes() for some in by_device.values())


@cache
def _odd() -> Tensor:
    """Weights of the words of a row. Checksums are compared within a process alone, so any version of torch will do."""
    return torch.randint(-(2**62), 2**62, (_ROW,), generator=torch.Generator().manual_seed(0)) | 1


def _checksum(tensors: Iterable[Tensor]) -> bytes:
    """Hash of weighted sums over all bytes of tensors, ten times as fast as the hash of the bytes themselves.

    Each sum is of 4 KiB, as 64-bit words modulo 2^64. The weights are odd, so a change of one word always changes it;
    changes of several words cancel with a chance of about 2^-60.
    """
    by_device: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}
    for tensor in tensors:
        if not tensor.numel() or tensor.is_meta:
            continue
        data = tensor.detach().contiguous().view(-1).view(torch.uint8)
        whole = len(data) // (8 * _ROW) * 8 * _ROW
        words = data[:whole].clone() if data.storage_offset() % 8 else data[:whole]
        rows, weights = words.view(torch.int64).view(-1, _ROW), _odd().to(data.device)
        sums, ends = by_device.setdefault(data.device, ([], []))
        if data.device.type == "cpu":
            sums.append(rows @ weights)
        else:  # integers have no matrix products there
            sums += [(rows[k : k + _ROWS] * weights).sum(1) for k in range(0, len(rows), _ROWS)]
        ends.append(data[whole:])
    digest = hashlib.blake2b(digest_size=16)
    for sums, ends in by_device.values():
        for found in (torch.cat(sums), torch.cat(ends)):
            digest.update(found.cpu().numpy().tobytes())
    return digest.digest()


# Models


def folder_name(facts: dict[str, str]) -> str:
    """The name of a folder of embeddings with these facts (`Embedder.about`): the model's name and a hash."""
    name = re.sub("[^A-Za-z0-9._-]+", "-", facts["model"]).strip("-.")[-60:].lstrip("-.")
    return f"{name}.{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}"


def folder_in(parent: Path, facts: dict[str, str], spelled: str) -> Path:
    """The folder in `parent` for embeddings with these facts.

    Args:
        spelled: the model's label with its path as the user spelled it, by which idmetric 0.1 named the folder: a
            folder of that name is used where there is one.
    """
    own, old = parent / folder_name(facts), parent / folder_name({**facts, "model": spelled})
    return old if not own.exists() and old.exists() else own


def short_name(name: str, local: bool) -> str:
    """A model's name, however its path is spelled: for a folder its own name, with links resolved."""
    return Path(name).resolve().name or name if local and os.path.isdir(name) else name


# Images


def content_key(image: bytes, mask: bytes | None = None) -> str:
    """The name of exactly this content: 32 hex digits, followed by `MASKED` for a masked image."""
    digest = hashlib.blake2b(image, digest_size=16)
    if mask is None:
        return digest.hexdigest()
    digest.update(b"\0" + hashlib.blake2b(mask, digest_size=16).digest())
    return digest.hexdigest() + MASKED


def key_of(image: str | bytes | os.PathLike[str], mask: str | bytes | os.PathLike[str] | None = None) -> str:
    """`content_key` of an image and its mask, given by their files or bytes.

    Raises:
        OSError: if a file cannot be read.
    """
    data = (x if x is None or isinstance(x, bytes) else Path(x).read_bytes() for x in (image, mask))
    return content_key(*data)  # type: ignore[arg-type]  # the image is not None


def settings_digest(facts: dict[str, Any]) -> str:
    """16 hex digits of a JSON object."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
