"""A hash of a model's weights in memory, and PyTorch's counters of writes to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def weights_digest(module: nn.Module) -> str:
    """Return `tensors_digest` of a module's parameters and saved buffers in memory, in about 1.5 s per gigabyte."""
    return tensors_digest(module.state_dict().items())


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a hash of named tensors, in order: names, shapes, types and bytes; 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        header = f"{name} {tuple(tensor.shape)} {tensor.dtype}\0"
        values = tensor.detach().cpu().contiguous().flatten()
        digest.update(header.encode())
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_counts(module: nn.Module) -> list[tuple[int, int]] | None:
    """Return each saved tensor's identity and PyTorch's count of writes to it, without waiting for the device.

    Writes through `.data` (as PEFT merges adapters) and through NumPy views are not counted. None for a model with
    layers that FSDP shards, which puts other tensors in their place at each use.
    """
    counts = []
    for layer in module.modules():
        if hasattr(type(layer), "unshard"):
            return None
        # not layer.state_dict(), for which quantized layers make new tensors at each call
        saved: list[Tensor | None] = [*layer._parameters.values()]
        saved += [buffer for name, buffer in layer._buffers.items() if name not in layer._non_persistent_buffers_set]
        for tensor in saved:
            if tensor is not None:
                version = 0 if tensor.is_inference() else tensor._version
                counts.append((id(tensor), version))
    return counts
