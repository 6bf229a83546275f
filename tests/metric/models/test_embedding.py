from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from idmetric.metric.embedding import Embedding, concatenate


def make(count: int = 4, *, weights: bool = False, model: str = "m") -> Embedding:
    generator = torch.Generator().manual_seed(count)
    patches = torch.randn(count, 6, 3, generator=generator)
    return Embedding(
        torch.randn(count, 5, generator=generator), patches, (2, 3), torch.rand(count, 6) if weights else None, model
    )


def equal(a: Embedding, b: Embedding) -> bool:
    pairs = zip((a.cls, a.patches, a.weights), (b.cls, b.patches, b.weights), strict=True)
    same = all((x is None and y is None) or (x is not None and y is not None and x.equal(y)) for x, y in pairs)
    return same and a.grid == b.grid and a.model == b.model


def test_indexing_selects_images() -> None:
    e = make(weights=True)
    assert e.patches is not None
    assert e.weights is not None
    assert len(e) == 4
    one = e[-1]
    assert len(one) == 1
    assert one.cls.equal(e.cls[3:])
    assert one.patches is not None
    assert one.patches.equal(e.patches[3:])
    some = e[[2, 0]]
    assert some.cls.equal(e.cls[[2, 0]])
    assert some.weights is not None
    assert some.weights.equal(e.weights[[2, 0]])
    assert e[torch.tensor([True, False, True, False])].cls.equal(e.cls[::2])
    assert [len(x) for x in e] == [1, 1, 1, 1]
    with pytest.raises(IndexError):
        e[4]


def test_concatenation_undoes_indexing() -> None:
    e = make(weights=True)
    assert equal(concatenate([e[:1], e[1:3], e[3]]), e)


def test_concatenation_gives_uniform_weights_to_those_without() -> None:
    joined = concatenate([make(2), make(3, weights=True)])
    assert joined.weights is not None
    assert joined.weights[:2].equal(torch.ones(2, 6))


def test_concatenation_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="empty"):
        concatenate([])
    with pytest.raises(ValueError, match="differ"):
        concatenate([make(), make(model="other")])
    with pytest.raises(ValueError, match="differ"):
        concatenate([make(), Embedding(torch.zeros(1, 5), model="m")])


@pytest.mark.parametrize("weights", [False, True])
def test_a_saved_one_can_be_made_again(tmp_path: Path, weights: bool) -> None:
    for e in (make(weights=weights), Embedding(torch.randn(2, 5))):
        e.save(tmp_path / "e.safetensors", {"made_by": "test"})
        with safe_open(tmp_path / "e.safetensors", "pt") as file:
            header = file.metadata()
        assert equal(Embedding.of(load_file(tmp_path / "e.safetensors"), header), e)
        assert header["made_by"] == "test"


def test_moving_and_detaching() -> None:
    e = Embedding(torch.ones(1, 2, requires_grad=True), torch.ones(1, 1, 2), (1, 1), torch.ones(1, 1))
    moved = e.to("meta", torch.float64)
    assert moved.patches is not None
    assert moved.weights is not None
    assert {x.device.type for x in (moved.cls, moved.patches, moved.weights)} == {"meta"}
    assert moved.cls.dtype == torch.float64
    assert e.cls.requires_grad
    assert not e.detach().cls.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3),), "cls"),
        ((torch.zeros(2, 3), torch.zeros(1, 4, 3)), "patches"),
        ((torch.zeros(2, 3), torch.zeros(2, 4, 3), (3, 3)), "patches"),
        ((torch.zeros(2, 3), torch.zeros(2, 4, 3), (2, 2), torch.zeros(2, 3)), "weights"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedding(*arguments)  # type: ignore[arg-type]


def test_the_repr_is_one_line() -> None:
    assert repr(replace(make(3), weights=torch.ones(3, 6))) == (
        "Embedding(3 images, cls (3, 5), patches (3, 6, 3) weighted, float32 on cpu, model='m')"
    )
    assert repr(Embedding(torch.zeros(1, 2))) == "Embedding(1 image, cls (1, 2), float32 on cpu, model='')"
