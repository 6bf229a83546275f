from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from idmetric import IDSim
from idmetric.metric.embedding import Embedding, concatenate
from idmetric.metric.errors import RequestError
from idmetric.metric.files import BLANK, seal
from tests.fuzz.flips import spread_flips


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


def test_names_follow_their_rows() -> None:
    e = replace(make(3, weights=True), names=("a", "b", "c"))
    assert e[1].names == ("b",)
    assert e[-2:].names == ("b", "c")
    assert e[[2, 0]].names == ("c", "a")
    assert e[torch.tensor([2, 2])].names == ("c", "c")
    assert e[torch.tensor([True, False, True])].names == ("a", "c")
    assert e.to(dtype=torch.float64).without_patches().names == ("a", "b", "c")
    assert concatenate([e[2], e[:2]]).names == ("c", "a", "b")
    assert concatenate([e, make(1)]).names is None
    with pytest.raises(ValueError, match="names"):
        replace(e, names=("a",))


def test_embedding_images_names_them(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    metric = IDSim("tiny", device="cpu")
    assert metric.embed([tmp_path / "a.png", Image.new("L", (5, 4))]).names == (
        str(tmp_path / "a.png"),
        "<Image>",
    )


# Files


@pytest.mark.parametrize("weights", [False, True])
def test_a_saved_one_is_loaded_as_it_was(tmp_path: Path, weights: bool) -> None:
    path = tmp_path / "e.idm"
    named = replace(make(2, weights=weights), names=("a.jpg", "größe.jpg"))
    for e in (named, Embedding(torch.randn(2, 5).bfloat16(), model="m")):
        e.save(path)
        loaded = Embedding.load(path)
        assert equal(loaded, e)
        assert loaded.names == e.names
        assert loaded.cls.dtype == e.cls.dtype


def test_a_saved_one_names_its_model(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="model"):
        make(model="").save(tmp_path / "e.idm")


def test_no_flipped_bit_gives_another_embedding(tmp_path: Path) -> None:
    path = tmp_path / "e.idm"
    make().save(path)
    for damaged in spread_flips(path.read_bytes(), 40):
        path.write_bytes(damaged)
        with pytest.raises(RequestError, match=r"e\.idm"):
            Embedding.load(path)


HEADER = {**BLANK, "format": "idmetric-references/1", "model": "m", "grid": "null", "names": '["a", "b"]'}


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        ({"cls": torch.ones(4)}, {}),
        ({"cls": torch.full((2, 4), torch.nan)}, {}),
        ({"patches": torch.ones(2, 3, 4), "weights": torch.ones(2, 9)}, {}),
        ({"patches": torch.ones(2, 4, 4)}, {"grid": "[3]"}),
        ({}, {"names": "5"}),
        ({}, {"names": '["a"]'}),
        ({}, {"model": ""}),
        ({}, {"format": "another"}),
    ],
    ids=lambda value: json.dumps(value, default=lambda tensor: list(tensor.shape))[:40],
)
def test_hostile_files_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, torch.Tensor], header: dict[str, str]
) -> None:
    path = tmp_path / "e.idm"
    save_file({"cls": torch.ones(2, 4)}, path, HEADER)
    seal(path)
    assert Embedding.load(path).names == ("a", "b")

    save_file({"cls": torch.ones(2, 4)} | tensors, path, HEADER | header)
    seal(path)
    with pytest.raises(RequestError, match=r"e\.idm (?!.*its bytes)"):
        Embedding.load(path)


@pytest.mark.parametrize("content", [None, b"", b"no safetensors"])
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "e.idm"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RequestError, match=r"e\.idm"):
        Embedding.load(path)


# Other devices and types


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
        "Embedding(cls (3, 5), patches (3, 6, 3), weights (3, 6), torch.float32 on cpu, model='m')"
    )
    assert repr(Embedding(torch.zeros(1, 2))) == "Embedding(cls (1, 2), torch.float32 on cpu, model='')"
