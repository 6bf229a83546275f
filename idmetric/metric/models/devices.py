"""Where and in which precision models run, and how they are opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def auto_device() -> torch.device:
    """CUDA where there is one, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def at_least_float32(x: Tensor) -> Tensor:
    """16-bit floats as float32; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@contextmanager
def opening() -> Iterator[None]:
    """Decorates a model's constructor: its weights can be part of a graph, and are made on the CPU before they move.

    Otherwise torch's inference mode and default device, such as "meta", would hold for them.
    """
    with torch.inference_mode(False), torch.device("cpu"):
        yield
