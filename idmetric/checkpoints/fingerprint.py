"""The digest of a model's weights in memory, and the name by which they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def weights_digest(module: nn.Module) -> str:
    """Return a hash of a module's weights as they are in memory: 32 hex digits.

    It covers names, shapes, types and bytes of all parameters and saved buffers, in order, and takes about 1.5 s per
    gigabyte.
    """
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

    Other parameters are noticed, and writes that PyTorch counts: a step of an optimizer, `load_state_dict`, operations
    in place; writes through `.data` are not. Weights without a revision ("") are named by 12 digits of their hash.
    """

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self._writes: list[tuple[int, int]] = []  # when the weights were named
        self._digest = ""  # of weights without a revision

    def take(self, module: nn.Module, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        self.revision, self._writes = revision, _writes(module) if revision else []

    def changed(self, module: nn.Module) -> bool:
        """Whether the weights are others than the named ones."""
        return self._writes != _writes(module)

    def exact(self, module: nn.Module) -> str:
        """The name of the weights in memory: the revision, followed by "+changed" once they differ."""
        if self.revision:
            return self.revision + "+changed" * self.changed(module)
        if self.changed(module):
            self._digest, self._writes = f"none+{weights_digest(module)[:12]}", _writes(module)
        return self._digest


def _writes(module: nn.Module) -> list[tuple[int, int]]:
    """Each parameter, and how often it was written to."""
    return [(id(p), -1 if p.is_inference() else p._version) for p in module.parameters()]
