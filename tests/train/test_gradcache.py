from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.train.gradcache import cached_backward
from idmetric.train.processes import Processes


class Encoder(nn.Module):
    """A query, its target and two hard negatives for each sample, by one small network with dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 5)).double()

    def forward(self, chunk: Tensor) -> Tensor:
        return self.net(chunk)


class Loss(nn.Module):
    """InfoNCE of queries among all targets and hard negatives, with a learnable temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(-1.5, dtype=torch.float64))

    def forward(self, embedded: Tensor) -> dict[str, Tensor]:
        query, target = embedded[:, 0], embedded[:, 1:].flatten(0, 1)
        logits = F.normalize(query, dim=1) @ F.normalize(target, dim=1).T / self.log.exp()
        loss = F.cross_entropy(logits, 3 * torch.arange(len(query)))
        return {"loss": loss, "temperature": self.log.exp()}


def chunks(sizes: Sequence[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(sum(sizes), 4, 6, dtype=torch.float64, generator=generator).split(list(sizes)))


def gradients(*modules: nn.Module) -> list[Tensor]:
    found = [p.grad for module in modules for p in module.parameters()]
    assert all(g is not None and g.abs().max() > 1e-6 for g in found)
    return [g for g in found if g is not None]


def plain(encoder: nn.Module, loss: nn.Module, parts: list[Any]) -> dict[str, Tensor]:
    """The whole batch in one graph, embedded in the same chunks so that dropout draws the same numbers."""
    found: dict[str, Tensor] = loss(torch.cat([encoder(part) for part in parts]))
    found["loss"].backward()
    return found


@pytest.fixture
def alone() -> Processes:
    return Processes(cpu=True)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("sizes", [[8], [4, 4], [3, 3, 2], [5, 3], [1] * 8])
def test_loss_and_every_gradient_equal_the_large_batch(alone: Processes, sizes: list[int], dropout: float) -> None:
    a, b = (Encoder(dropout), Loss()), (Encoder(dropout), Loss())
    torch.manual_seed(7)
    expected = plain(*a, chunks(sizes))
    after = torch.rand(())
    torch.manual_seed(7)
    found = cached_backward(b[0], chunks(sizes), b[1], alone)
    assert torch.rand(()) == after  # the generator goes on as if each chunk had been seen once
    assert not found["loss"].requires_grad
    for name in expected:
        torch.testing.assert_close(found[name], expected[name].detach(), rtol=1e-12, atol=0)
    for x, y in zip(gradients(*a), gradients(*b), strict=True):
        torch.testing.assert_close(y, x, rtol=1e-10, atol=1e-14)


def test_dropout_is_replayed_and_not_drawn_again(alone: Processes) -> None:
    encoder, seen = Encoder(0.5), []
    encoder.net[2].register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    cached_backward(encoder, chunks([3, 2]), Loss(), alone)
    assert len(seen) == 4  # two chunks, twice
    assert all(x.equal(y) for x, y in zip(seen[:2], seen[2:], strict=True))
    assert not seen[0][:2].ne(0).equal(seen[1].ne(0))


def test_gradients_add_up_as_backward_does(alone: Processes) -> None:
    encoder, loss = Encoder(), Loss()
    cached_backward(encoder, chunks([2, 2]), loss, alone)
    once = [g.clone() for g in gradients(encoder, loss)]
    cached_backward(encoder, chunks([2, 2]), loss, alone)
    for x, y in zip(once, gradients(encoder, loss), strict=True):
        torch.testing.assert_close(2 * x, y)


def test_only_the_second_pass_builds_a_graph_of_one_chunk(alone: Processes) -> None:
    encoder, modes = Encoder(), []

    def watched(chunk: Any) -> Any:
        modes.append(torch.is_grad_enabled())
        return encoder(chunk)

    cached_backward(watched, chunks([2, 2, 1]), Loss(), alone)
    assert modes == [False] * 3 + [True] * 3
    modes.clear()
    cached_backward(watched, chunks([5]), Loss(), alone)
    assert modes == [True]  # one chunk: nothing to save


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("outer", [False, True])
def test_mixed_precision_keeps_the_gradients(precision: Any, outer: bool) -> None:
    processes = Processes(precision, cpu=True)
    processes.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=precision == "fp16")
    whole, parts = [chunks([8])[0]], chunks([3, 3, 2])
    found = []
    for batch in (whole, parts):
        encoder, loss = Encoder().float(), Loss()
        batch = [part.float() for part in batch]
        if outer:  # weights cast without graph must not be used again
            with processes.autocast():
                values = cached_backward(encoder, batch, loss, processes)
        else:
            values = cached_backward(encoder, batch, loss, processes)
        found.append((values["loss"], gradients(encoder, loss)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-2, atol=0)
    scale = processes.scaler.get_scale()
    assert (scale > 1) == (precision == "fp16")
    reference = Encoder(), Loss()
    plain(*reference, whole)
    for x, y, z in zip(found[0][1], found[1][1], gradients(*reference), strict=True):
        torch.testing.assert_close(x, y, rtol=0.02, atol=0.02 * x.abs().max().item())
        torch.testing.assert_close(x.double() / scale, z, rtol=0.05, atol=0.05 * z.abs().max().item())


def test_a_frozen_encoder_trains_the_loss_alone(alone: Processes) -> None:
    encoder, loss = Encoder().requires_grad_(False), Loss()
    cached_backward(encoder, chunks([2, 1]), loss, alone)
    assert loss.log.grad is not None
    assert all(p.grad is None for p in encoder.parameters())
