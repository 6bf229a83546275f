"""Large contrastive batches in little memory: gradient caching (Gao et al. 2021, Scaling deep contrastive learning).

The batch is embedded chunk by chunk without a graph, the loss of all embeddings gives the gradient of each, and each
chunk is embedded once more, with a graph, to carry that gradient to the weights. Loss and gradients equal those of the
plain large batch; the memory is that of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from idmetric.train.losses.arrays import full
from idmetric.train.processes import Processes

Chunk = TypeVar("Chunk")
Loss = Callable[[Tensor], dict[str, Tensor]]


def cached_backward(
    encode: Callable[[Chunk], Tensor], chunks: Sequence[Chunk], loss: Loss, processes: Processes
) -> dict[str, Tensor]:
    """Add the gradients of a large batch's loss to the parameters of `encode` and of `loss`.

    Args:
        encode: maps a chunk to its embeddings, samples on axis 0. Called twice for each chunk, under
            `processes.autocast`, with the same random numbers (dropout). Other state, such as BatchNorm's statistics,
            changes twice.
        chunks: this process's share of the batch, in parts of any sizes.
        loss: called once with the embeddings of all chunks and processes joined, in float32 or better. It returns a
            dict of scalars, which includes "loss". It must be the same in all processes.

    Returns:
        The loss's scalars, detached.
    """
    if len(chunks) == 1:  # a second pass would save no memory
        return _backward(_encode(encode, chunks[0], processes), loss, processes)
    states = []
    parts = []
    with torch.no_grad():
        for chunk in chunks:
            states.append(_random_state(processes.device))
            parts.append(_encode(encode, chunk, processes))
    joined = torch.cat(parts).requires_grad_()
    values = _backward(joined, loss, processes)
    assert joined.grad is not None
    gradients = torch.split(joined.grad, [len(part) for part in parts])

    after = _random_state(processes.device)
    for chunk, state, gradient in zip(chunks, states, gradients, strict=True):
        _set_random_state(processes.device, state)
        embedded = _encode(encode, chunk, processes)
        if embedded.requires_grad:
            torch.autograd.backward(embedded, gradient)
    _set_random_state(processes.device, after)
    return values


def _encode(encode: Callable[[Chunk], Tensor], chunk: Chunk, processes: Processes) -> Tensor:
    # weights cast for the pass without graph would lose their gradients in the pass with graph
    torch.clear_autocast_cache()
    with processes.autocast():
        embedded = encode(chunk)
    return full(embedded)


def _backward(embedded: Tensor, loss: Loss, processes: Processes) -> dict[str, Tensor]:
    values = loss(processes.gather(embedded))
    processes.backward(values["loss"])
    return {name: value.detach() for name, value in values.items()}


def _random_state(device: torch.device) -> tuple[Tensor, Any]:
    device_state = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()
    return torch.get_rng_state(), device_state


def _set_random_state(device: torch.device, state: tuple[Tensor, Any]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.get_device_module(device).set_rng_state(state[1])
