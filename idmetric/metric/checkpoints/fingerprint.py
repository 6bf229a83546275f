"""The digest of a model's weights in memory, and a cheap sign that they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

_SAMPLED = 1024  # values of each tensor


def weights_digest(module: nn.Module) -> str:
    """Return `tensors_digest` of a module's parameters and saved buffers in memory, in about 1.5 s per gigabyte."""
    return tensors_digest(module.state_dict().items())


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a hash of named tensors, in order: names, shapes, types and bytes; 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class WeightsName:
    """The revision by which a module's weights are called, and whether they are still the weights so named.

    Weights without a revision ("") are named by 12 digits of their hash.
    """

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self._sample: Sample | None = None  # of the weights when they were named
        self._writes: list[tuple[int, int]] = []  # PyTorch's counters when the sample was last compared
        self._changed = False  # whether it differed then
        self._digest = ""  # of weights without a revision

    def __getstate__(self) -> dict[str, Any]:
        # addresses differ in each process, and `datasets.map` finds earlier work by a hash of this state
        return {**vars(self), "_writes": []}

    def take(self, module: nn.Module, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        saved = _saved(module)
        self.revision, self._sample = revision, Sample(saved) if revision else None
        self._writes, self._changed = _writes(saved), not revision

    def changed(self, module: nn.Module, look: bool = True) -> bool:
        """Whether the weights are others than the named ones.

        Args:
            look: compare values even if PyTorch counted no write since the last time, which waits for the device.
        """
        saved = _saved(module)
        if any(hasattr(tensor, "full_tensor") for tensor in saved):  # shards, which only all processes could compare
            return self._changed

        writes = _writes(saved)
        if look or writes != self._writes:
            self._writes, self._changed = writes, self._sample is None or not self._sample.fits(saved)
        return self._changed

    def exact(self, module: nn.Module, look: bool = True) -> str:
        """The name of the weights in memory: the revision, followed by "+changed" once they differ."""
        changed = self.changed(module, look)
        if self.revision:
            return self.revision + "+changed" * changed
        if changed:
            self._digest, self._sample = f"none+{weights_digest(module)[:12]}", Sample(_saved(module))
            self._changed = False
        return self._digest


class Sample:
    """Up to 1024 values of each tensor of a module, to see whether its weights have changed.

    A change of a few values of a large tensor may be missed; an optimizer's step or a merged adapter is not.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        parts = _sampled(tensors)
        self._values, self._sizes = _joined(parts), [part.numel() for part in parts]

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors have these values, rounded to the types that they have now."""
        parts = _sampled(tensors)
        if [part.numel() for part in parts] != self._sizes:
            return False
        expected = [
            values.to(part.dtype) for values, part in zip(torch.split(self._values, self._sizes), parts, strict=True)
        ]
        return torch.equal(_joined(expected), _joined(parts))


def _sampled(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().flatten()[:: tensor.numel() // _SAMPLED + 1] for tensor in tensors]


def _joined(parts: Iterable[Tensor]) -> Tensor:
    """Return all values as float32 on the CPU, copied once for each device."""
    on_devices = groupby((part.float() for part in parts), key=lambda part: part.device)
    return torch.cat([torch.empty(0), *(torch.cat(list(some)).cpu() for _, some in on_devices)])


def _writes(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return an object and version of each tensor, which differ after every write that PyTorch counts.

    It does not count those through `.data` (as PEFT merges adapters) and NumPy views.
    """
    return [(id(tensor), -1 if tensor.is_inference() else tensor._version) for tensor in tensors]


def _saved(module: nn.Module) -> list[Tensor]:
    """Return the tensors of `state_dict`, without its names and hooks, which take ten times as long."""
    found, left, seen = list[Tensor](), [module], set[int]()
    while left:  # not module.modules(), which takes five times as long
        part = left.pop()
        if id(part) not in seen:
            seen.add(id(part))
            found += [p for p in part._parameters.values() if p is not None]
            saved = part._buffers.keys() - part._non_persistent_buffers_set
            found += [b for k, b in part._buffers.items() if b is not None and k in saved]
            left += [m for m in part._modules.values() if m is not None]
    return found
