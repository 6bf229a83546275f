"""What holds for every loss: gradients, order of samples, precision, and batches in which nothing counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from idmetric.train.losses.ilgen_objectives import contrastive, softmax_margin
from idmetric.train.losses.info_nce import info_nce, label_info_nce, query_target_info_nce
from idmetric.train.losses.near_id import Tuples, near_id
from idmetric.train.losses.near_id_objectives import circle_ranked, oracle_info_nce, sigmoid_ranked, symmetric_info_nce
from idmetric.train.losses.recall_at_k import batch_recall_at_k

ROWS, SLOTS, CHANNELS = 6, 5, 4
Loss = Callable[[Tensor, Tensor], Tensor]  # embeddings (B, 5, D) and a mask of all but the first (B, 4) -> scalar


def tuples(x: Tensor, valid: Tensor) -> Tuples:
    return Tuples(x[:, 0], x[:, 1:3], x[:, 3:], valid[:, :2], valid[:, 2:])


def oracle(x: Tensor) -> Tensor:
    return x[:, 3:].detach().sum(-1)  # goes with the sample when samples change places


def of_similarities(loss: Callable[..., Tensor]) -> Loss:
    def run(x: Tensor, valid: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(x, dim=-1)
        s = (unit[:, :1] * unit[:, 1:]).sum(-1)
        return loss(s[:, 0], s[:, 1:], valid=valid[:, 1:])

    return run


def of_labels(loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Each sample is a class; a masked image is a class of its own."""

    def run(x: Tensor, valid: Tensor) -> Tensor:
        count = len(x)
        label = torch.arange(count)[:, None].expand(count, SLOTS).clone()
        own = count + torch.arange(count * SLOTS).view(count, SLOTS)
        label[:, 1:] = torch.where(valid, label[:, 1:], own[:, 1:])
        return loss(x.flatten(0, 1), label.flatten())

    return run


def visme(x: Tensor, valid: Tensor) -> Tensor:
    return query_target_info_nce(
        x[:, 0], x[:, 1], x[:, 2:].flatten(0, 1), negative_valid=valid[:, 1:].flatten(), temperature=0.1
    )


def classes(x: Tensor, valid: Tensor) -> Tensor:
    prototypes = torch.eye(CHANNELS, dtype=x.dtype)
    return softmax_margin(x[:, 0], prototypes, x[:, 0].detach().argmax(1), margin=0.1)


LOSSES: dict[str, Loss] = {
    "info_nce": of_similarities(info_nce),
    "contrastive": of_similarities(lambda positive, negative, valid: contrastive(positive, negative)),
    "query_target_info_nce": visme,
    "label_info_nce": of_labels(label_info_nce),
    "recall_at_k": of_labels(batch_recall_at_k),
    "softmax_margin": classes,
    "near_id": lambda x, v: near_id(tuples(x, v), beta=0.1),
    "symmetric_info_nce": lambda x, v: symmetric_info_nce(tuples(x, v)),
    "symmetric_info_nce_distractors": lambda x, v: symmetric_info_nce(tuples(x, v), distractors=True),
    "oracle_info_nce": lambda x, v: oracle_info_nce(tuples(x, v), oracle(x)),
    "sigmoid_ranked": lambda x, v: sigmoid_ranked(tuples(x, v)),
    "circle_ranked": lambda x, v: circle_ranked(tuples(x, v)),
}
# Losses that a batch without valid views leaves nothing of; the others keep terms of unmasked images.
EMPTIED = (
    "info_nce", "label_info_nce", "recall_at_k", "near_id", "symmetric_info_nce",
    "symmetric_info_nce_distractors", "oracle_info_nce", "sigmoid_ranked", "circle_ranked",
)  # fmt: skip
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def batch(seed: int = 0, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, CHANNELS, generator=g, dtype=torch.float64)
    x = x + 0.6 * torch.randn(rows, SLOTS, CHANNELS, generator=g, dtype=torch.float64)
    return x, torch.rand(rows, SLOTS - 1, generator=g) < 0.8


@pytest.mark.parametrize("name", [n for n in LOSSES if "circle" not in n])
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_match_finite_differences(name: str, seed: int) -> None:
    x, valid = batch(seed, rows=4)
    assert torch.autograd.gradcheck(lambda e: LOSSES[name](e, valid), x.requires_grad_())


def test_circle_moves_against_its_gradient() -> None:
    # its weights carry no gradient, so that finite differences do not apply
    (x, valid), loss = batch(), LOSSES["circle_ranked"]
    before = loss(x.requires_grad_(), valid)
    (grad,) = torch.autograd.grad(before, x)
    assert loss(x - 1e-3 * grad / grad.norm(), valid) < before


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(2, 7))
def test_the_order_of_samples_does_not_matter(name: str, seed: int, rows: int) -> None:
    x, valid = batch(seed, rows)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    x.requires_grad_()
    loss, moved = LOSSES[name](x, valid), LOSSES[name](x[order], valid[order])
    torch.testing.assert_close(moved, loss, rtol=1e-10, atol=1e-12)
    (grad,), (grad_moved,) = (torch.autograd.grad(value, x) for value in (loss, moved))
    torch.testing.assert_close(grad_moved, grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_where_nothing_counts_the_gradient_is_finite_or_zero(name: str) -> None:
    x, valid = batch()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        value = LOSSES[name](x.requires_grad_(), torch.zeros_like(valid))
        (grad,) = torch.autograd.grad(value, x)
    assert value.isfinite()
    assert grad.isfinite().all()
    if name in EMPTIED:
        assert value.item() == 0
        assert (grad == 0).all()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(loss: Loss, dtype: torch.dtype) -> None:
    x, valid = batch()
    low = x.to(dtype)
    # the similarities handed to a loss are the caller's: only then do they carry the caller's rounding
    given = loss in [LOSSES[n] for n in ("info_nce", "contrastive")]
    value = loss(low.requires_grad_(), valid)
    assert value.dtype == torch.float32
    expected = loss(low.detach().double(), valid).item()
    assert value.item() == pytest.approx(expected, rel=0.1 if given else 1e-3, abs=1e-4)
    (grad,) = torch.autograd.grad(value, low)
    assert grad.isfinite().all()


@every_loss
def test_autocast_changes_nothing(loss: Loss) -> None:
    x, valid = batch()
    plain = loss(x.float(), valid).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(x.float(), valid)
    assert inside.item() == pytest.approx(plain, rel=1e-5)
    assert inside.dtype == torch.float32


@every_loss
def test_lengths_of_embeddings_do_not_matter(loss: Loss) -> None:
    x, valid = batch()
    assert loss(x * 7, valid).item() == pytest.approx(loss(x, valid).item(), rel=1e-9)
