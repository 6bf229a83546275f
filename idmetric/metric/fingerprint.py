"""Which weights a model has: a hash of them in memory, and PyTorch's counters of writes to them."""

from __future__ import annotations

import hashlib
import io
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

    Other values, as quantized layers have them, count by the bytes of their file.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, value in tensors:
        if isinstance(value, Tensor) and not value.is_quantized:
            header = f"{name} {tuple(value.shape)} {value.dtype}\0"
            digest.update(header.encode())
            values = value.detach().cpu().contiguous().flatten()
            value_bytes = values.view(torch.uint8).numpy()
            digest.update(value_bytes.data)
        else:
            file = io.BytesIO()
            torch.save((name, value), file)
            digest.update(file.getvalue())
    return digest.hexdigest()


def keeps_values(convert: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function for `nn.Module._apply` keeps values: not that of `to_empty`, nor a move to "meta"."""
    bits = [byte % 2 for byte in os.urandom(64)]  # exact in every type, and unlike what freed memory may hold
    tensor = torch.tensor(bits, dtype=torch.float32, device="cpu")
    converted = convert(tensor)
    if converted.device.type == "meta":
        return False
    return converted.tolist() == bits


def write_counts(module: nn.Module) -> list[tuple[int, int]] | None:
    """Return each saved tensor's identity and PyTorch's count of writes to it, without waiting for the device.

    Writes through `.data` (as PEFT merges adapters) and through NumPy views are not counted. None for a model with
    layers that FSDP shards, which puts other tensors in their place at each use.
    """
    if any(hasattr(type(layer), "unshard") for layer in module.modules()):
        return None
    counts = []
    for tensor in module.state_dict(keep_vars=True).values():
        if isinstance(tensor, Tensor):
            count = 0 if tensor.is_inference() else tensor._version
            counts.append((id(tensor), count))
    return counts
