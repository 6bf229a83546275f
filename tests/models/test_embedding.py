from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from idmetric.distance.embedding import Embedding, concatenate


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
    with pytest.raises(IndexError, match="image 4"):
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
def test_saved_and_loaded_is_the_same(tmp_path: Path, weights: bool) -> None:
    e = make(weights=weights)
    e.save(tmp_path / "e.safetensors", {"made_by": "test"})
    assert equal(Embedding.load(tmp_path / "e.safetensors"), e)
    bare = Embedding(torch.randn(2, 5))
    bare.save(tmp_path / "bare.safetensors")
    assert equal(Embedding.load(tmp_path / "bare.safetensors"), bare)


def test_loading_something_else_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no embedding file"):
        Embedding.load(tmp_path / "absent")
    (tmp_path / "junk").write_bytes(b"junk" * 10)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        Embedding.load(tmp_path / "junk")


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
        ((torch.zeros(2, 3), torch.zeros(2, 4, 3), (3, 3)), "grid"),
        ((torch.zeros(2, 3), torch.zeros(2, 4, 3), (2, 2), torch.zeros(2, 3)), "weights"),
        ((torch.zeros(2, 3), None, (2, 2)), "need patches"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedding(*arguments)  # type: ignore[arg-type]


# Names and repr


def named(count: int = 3) -> Embedding:
    return replace(make(count), names=tuple(f"{i}.png" for i in range(count)))


def test_names_follow_their_images() -> None:
    e = named(4)
    assert e[-1].names == ("3.png",)
    assert e[1:3].names == ("1.png", "2.png")
    assert e[[2, 0]].names == ("2.png", "0.png")
    assert e[torch.tensor([True, False, False, True])].names == ("0.png", "3.png")
    assert [x.names for x in e] == [("0.png",), ("1.png",), ("2.png",), ("3.png",)]
    assert e.cpu().detach().names == e.names
    assert concatenate([named(2), make(1), named(1)]).names == ("0.png", "1.png", "", "0.png")
    assert concatenate([make(2), make(1)]).names is None
    with pytest.raises(ValueError, match="2 names for 3 images"):
        replace(e[:3], names=("a", "b"))


def test_names_are_kept_in_files_and_older_files_have_none(tmp_path: Path) -> None:
    file = tmp_path / "e.safetensors"
    names = ("a.png", "ü/\udcff.png", "")  # the second is not UTF-8
    replace(make(3), names=names).save(file)
    assert Embedding.load(file).names == names
    save_file({"cls": torch.zeros(2, 5)}, file, {"format": "idmetric-embedding/1", "grid": "", "model": "m"})
    assert Embedding.load(file).names is None


@pytest.mark.parametrize("names", ["[1, 2]", '{"a": 1}', "[", '["only one"]', "[" * 100_000])
def test_damaged_names_are_refused(tmp_path: Path, names: str) -> None:
    file = tmp_path / "e.safetensors"
    save_file({"cls": torch.zeros(2, 5)}, file, {"format": "idmetric-embedding/1", "names": names})
    with pytest.raises(ValueError, match=r"e\.safetensors.*names"):
        Embedding.load(file)


def test_the_repr_is_one_line() -> None:
    e = replace(named(3), weights=torch.ones(3, 6))
    assert repr(e) == (
        "Embedding(3 images, cls (3, 5), patches (3, 6, 3) weighted, float32 on cpu, model='m', "
        "names=['0.png', '1.png', '2.png'])"
    )
    assert repr(Embedding(torch.zeros(1, 2))) == "Embedding(1 image, cls (1, 2), float32 on cpu, model='')"
    assert len(repr(named(1000))) < 200
