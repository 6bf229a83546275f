"""The digest of a model's weights in memory, and cheap signs that they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_SAMPLED = 3  # intervals between the values sampled from each tensor
_ROW, _ROWS = 512, 2**14  # of a checksum: words summed into one, rows multiplied at once


def weights_digest(module: nn.Module) -> str:
    """Return a hash of a module's weights as they are in memory: 32 hex digits.

    It covers names, shapes, types and bytes of all parameters and saved buffers, in order, and takes about 1.5 s per
    gigabyte. It is kept until any byte changes, however it is written; to check that takes 0.1 s per gigabyte.
    """
    marks = (Marks.of(module, values=False), _checksum(_saved(module)))
    known = _digests.get(module)
    if known is None or known[0] != marks:
        known = _digests[module] = (marks, tensors_digest(module.state_dict().items()))
    return known[1]


_digests: WeakKeyDictionary[nn.Module, tuple[tuple[Marks, bytes], str]] = WeakKeyDictionary()


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a hash of named tensors, in order: names, shapes, types and bytes; 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Marks:
    """Signs of a write to a module's weights, a thousand times cheaper than their hash, to be read with each batch.

    Attributes:
        written: address and version of each tensor. PyTorch counts all writes in place, except through `.data` (as PEFT
            merges adapters) and through NumPy views.
        values: four values of each tensor, which reveal most of the other writes; empty if they were not read.
            `weights_digest`, which names stored embeddings, misses no write.
    """

    written: tuple[tuple[int, int], ...]
    values: bytes = b""

    @classmethod
    def of(cls, module: nn.Module, values: bool = True) -> Marks:
        """Take the marks; reading values waits for the device."""
        tensors = _saved(module)
        written = tuple((t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors)
        return cls(written, _sample(tensors) if values else b"")


def _saved(module: nn.Module) -> list[Tensor]:
    """Return the tensors of `state_dict`, without its names and hooks, which take ten times as long."""
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
    """Return the weights of a row's words; any will do, as checksums are compared within one process only."""
    return torch.randint(-(2**62), 2**62, (_ROW,), generator=torch.Generator().manual_seed(0)) | 1


def _checksum(tensors: Iterable[Tensor]) -> bytes:
    """Hash weighted sums over all bytes of tensors, ten times as fast as the bytes themselves.

    Each sum covers 4 KiB, as 64-bit words modulo 2^64. The weights are odd, so a change of one word always changes the
    sum; changes of several words cancel with a chance of about 2^-60.
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
