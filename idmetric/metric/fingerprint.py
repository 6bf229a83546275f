"""Which weights a model has: a hash of them in memory, and PyTorch's counters of writes to them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def weights_digest(module: nn.Module) -> str:
    """Return `tensors_digest` of a module's parameters and saved buffers in memory, in about 1.5 s per gigabyte."""
    return tensors_digest(module.state_dict().items())


def tensors_digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """Return a hash of named tensors, in order: names, shapes, types and bytes; 32 hex digits.

    Quantized layers have other state too: pairs of tensors count one by one, all else by its text.
    """
    digest = hashlib.blake2b(digest_size=16)
    waiting = list(tensors)[::-1]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, tuple | list):
            waiting += [(f"{name}.{number}", part) for number, part in enumerate(value)][::-1]
        elif isinstance(value, Tensor):
            header = f"{name} {tuple(value.shape)} {value.dtype}\0"
            plain = value.dequantize() if value.is_quantized else value
            values = plain.detach().cpu().contiguous().flatten()
            digest.update(header.encode())
            digest.update(values.view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value}\0".encode())
    return digest.hexdigest()


def keeps_values(convert: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function for `nn.Module._apply` keeps values: not that of `to_empty`, nor a move to "meta"."""
    bits = [byte % 2 for byte in os.urandom(64)]  # exact in every type, and unlike what freed memory may hold
    converted = convert(torch.tensor(bits, dtype=torch.float32, device="cpu"))
    return converted.device.type != "meta" and converted.tolist() == bits


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
