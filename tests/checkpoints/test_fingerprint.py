"""The digest of weights in memory changes with every byte, and is computed only when it must be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from idmetric import IDSim, load
from idmetric.checkpoints.fingerprint import Marks, _checksum, weights_digest
from tests.conftest import random_model


@pytest.fixture
def model() -> IDSim:
    """One that may be changed."""
    return random_model("dinov3")


def test_a_digest_covers_names_shapes_types_bytes_and_their_order() -> None:
    def digest(**tensors: torch.Tensor) -> str:
        module = torch.nn.Module()
        for name, tensor in tensors.items():
            module.register_buffer(name, tensor)
        return weights_digest(module)

    x = torch.arange(12.0).view(3, 4)
    other = [digest(a=x.flip(0)), digest(a=x.flip(1)), digest(a=x.view(4, 3)), digest(a=x.double()), digest(b=x),
             digest(a=x, b=x), digest(a=x.view(torch.int32)), digest(a=x[:2], b=x[2:])]  # fmt: skip
    assert len({digest(a=x), *other}) == 1 + len(other)
    assert digest(a=x, b=x + 1) != digest(b=x + 1, a=x)
    assert digest(a=x) == digest(a=x.t().contiguous().t())  # whatever the layout


def test_weights_are_hashed_once_until_they_are_written_to(model: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    monkeypatch.setattr(
        "idmetric.checkpoints.fingerprint.tensors_digest", lambda items: hashed.append(1) or str(len(hashed))
    )
    for _ in range(3):
        model.embed(torch.zeros(3, 64, 64))
        model.about()
    assert len(hashed) == 1
    with torch.no_grad():
        model.mlp_cls.fc2.weight[0, 0] += 1
    model.embed(torch.zeros(3, 64, 64))
    assert len(hashed) == 2


def test_a_loaded_model_is_never_hashed_to_score(model: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save_pretrained(tmp_path / "run")
    metric = load(tmp_path / "run", device="cpu")
    monkeypatch.setattr(
        "idmetric.checkpoints.fingerprint.tensors_digest", lambda items: pytest.fail("weights were hashed")
    )
    metric(torch.zeros(3, 64, 64), torch.ones(3, 64, 64))
    metric(torch.zeros(1, 3, 64, 64, requires_grad=True), torch.ones(1, 3, 64, 64))


def test_the_checksum_of_weights_sees_every_byte_whatever_their_type_and_layout() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    for tensor in (x, x.half(), x.double(), x.bfloat16()[:4097], (x * 50).to(torch.int8), x > 0, x[:3], x[0]):
        sums = {_checksum([tensor])}
        data = tensor.clone().view(-1).view(torch.uint8)
        for at in {0, 1, len(data) // 2, len(data) - 1} & set(range(len(data))):
            data[at] ^= 1
            sums.add(_checksum([data]))
            data[at] ^= 1
        assert len(sums) == 1 + len({0, 1, len(data) // 2, len(data) - 1} & set(range(len(data))))
        assert _checksum([data]) in sums
    swapped = x.clone()
    swapped[[1000, 1001, 2000, 3024]] = x[[1001, 1000, 3024, 2000]]  # within a word, and between rows
    assert _checksum([swapped]) != _checksum([x])
    assert _checksum([x[1:]]) == _checksum([x[1:].clone()])  # whatever the alignment
    assert _checksum([x.view(50, 100).t()]) == _checksum([x.view(50, 100).t().contiguous()])


def test_training_marks_no_embedding_and_hashes_nothing(model: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    model.requires_grad_(True)
    monkeypatch.setattr(
        "idmetric.checkpoints.fingerprint.tensors_digest", lambda items: pytest.fail("weights were hashed")
    )
    assert model(torch.rand(1, 3, 64, 64)).model == ""


def test_marks_see_one_value_changed_in_place(model: IDSim) -> None:
    before = Marks.of(model)
    with torch.no_grad():
        model.mlp_patch.fc2.weight[5, 7] += 1
    assert Marks.of(model) != before
    assert Marks.of(model, values=False).values == b""
