"""The digest of a model's weights in memory, and a cheap sign that they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import groupby

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
        self._writes: list[tuple[int, int]] = []  # when the sample was last compared
        self._changed = False  # whether it differed then
        self._digest = ""  # of weights without a revision

    def take(self, module: nn.Module, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        self.revision, self._sample = revision, Sample(_saved(module)) if revision else None

    def changed(self, module: nn.Module, look: bool = True) -> bool:
        """Whether the weights are others than the named ones.

        Args:
            look: compare values even if PyTorch counted no write since the last time, which waits for the device.
        """
        # an object and version that differ after every write that PyTorch counts, but not after those through `.data`
        # (as PEFT merges adapters) and NumPy views
        saved = _saved(module)
        now = [(id(tensor), -1 if tensor.is_inference() else tensor._version) for tensor in saved]
        if look or now != self._writes:
            self._writes, self._changed = now, self._sample is None or not self._sample.fits(saved)
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
        self._look(tensors)
        self._values, self._sizes = _joined(self._parts), [part.numel() for part in self._parts]

    def _look(self, tensors: Sequence[Tensor]) -> None:
        self._places = [t.data_ptr() for t in tensors]  # memory that stays theirs while the views are kept
        self._views = all(t.is_contiguous() for t in tensors)  # else copies
        self._parts = [t.detach().flatten()[:: t.numel() // _SAMPLED + 1] for t in tensors]

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors have these values, rounded to the types that they have now."""
        if not self._views or [t.data_ptr() for t in tensors] != self._places:
            self._look(tensors)
        if [part.numel() for part in self._parts] != self._sizes:
            return False
        expected = self._values
        if any(part.is_floating_point() and part.dtype.itemsize < 4 for part in self._parts):
            expected = _joined(
                old.to(part.dtype) for old, part in zip(torch.split(expected, self._sizes), self._parts, strict=True)
            )
        return torch.equal(expected, _joined(self._parts))


def _joined(parts: Iterable[Tensor]) -> Tensor:
    """Return all values as float32 on the CPU, copied once for each device."""
    on_devices = groupby((part.float() for part in parts), key=lambda part: part.device)
    return torch.cat([torch.empty(0), *(torch.cat(list(some)).cpu() for _, some in on_devices)])


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
