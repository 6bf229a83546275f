"""Large contrastive batches in little memory: gradient caching (Gao et al. 2021, Scaling deep contrastive learning).

The batch is embedded chunk by chunk without a graph, the loss of all embeddings gives the gradient of each, and each
chunk is embedded once more, with a graph, to carry that gradient to the weights. Loss and gradients equal those of the
plain large batch; the memory is that of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from idmetric.train.processes import Processes

Chunk = TypeVar("Chunk")
Encoded = Tensor | tuple[Tensor, ...]
Loss = Tensor | Mapping[str, Tensor]


def cached_backward(
    encode: Callable[[Chunk], Encoded], chunks: Sequence[Chunk], loss: Callable[..., Loss], processes: Processes
) -> dict[str, Tensor]:
    """Add the gradients of a large batch's loss to the parameters of `encode` and of `loss`.

    Args:
        encode: maps a chunk to its embeddings, one tensor or a tuple of them (such as query and target), samples on
            axis 0. Called twice for each chunk, under `processes.autocast`, with the same random numbers (dropout).
            Other state, such as BatchNorm's statistics, changes twice.
        chunks: this process's share of the batch, in parts of any sizes.
        loss: called once with each tensor of `encode`, all chunks and processes joined, in float32 or better. It
            returns a scalar, or a dict of scalars, which includes "loss". It must be the same in all processes.

    Returns:
        The loss's scalars, detached.
    """
    if len(chunks) == 1:  # a second pass would save no memory
        return _backward(_encode(encode, chunks[0], processes), loss, processes)
    states, parts = [], []
    with torch.no_grad():
        for chunk in chunks:
            states.append(_random_state(processes.device))
            parts.append(_encode(encode, chunk, processes))
    columns = list(zip(*parts, strict=True))
    leaves = tuple(x.requires_grad_(x.is_floating_point()) for x in map(torch.cat, columns))
    found = _backward(leaves, loss, processes)
    gradients = [
        None if leaf.grad is None else torch.split(leaf.grad, [len(part) for part in column])
        for leaf, column in zip(leaves, columns, strict=True)
    ]

    after = _random_state(processes.device)
    for k, (chunk, state) in enumerate(zip(chunks, states, strict=True)):
        _set_random_state(processes.device, state)
        outputs = _encode(encode, chunk, processes)
        pairs = [(out, g[k]) for out, g in zip(outputs, gradients, strict=True) if out.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward([out for out, _ in pairs], [g for _, g in pairs])
    _set_random_state(processes.device, after)
    return found


def _encode(encode: Callable[[Chunk], Encoded], chunk: Chunk, processes: Processes) -> tuple[Tensor, ...]:
    # weights cast for the pass without graph would lose their gradients in the pass with graph
    torch.clear_autocast_cache()
    with processes.autocast():
        found = encode(chunk)
    tensors = (found,) if isinstance(found, Tensor) else tuple(found)
    return tuple(x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x for x in tensors)


def _backward(tensors: tuple[Tensor, ...], loss: Callable[..., Loss], processes: Processes) -> dict[str, Tensor]:
    found = loss(*(processes.gather(x) for x in tensors))
    values = dict(found) if isinstance(found, Mapping) else {"loss": found}
    processes.backward(values["loss"])
    return {name: value.detach() if isinstance(value, Tensor) else value for name, value in values.items()}


def _random_state(device: torch.device) -> tuple[Tensor, Any]:
    own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()
    return torch.get_rng_state(), own


def _set_random_state(device: torch.device, state: tuple[Tensor, Any]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.get_device_module(device).set_rng_state(state[1])
