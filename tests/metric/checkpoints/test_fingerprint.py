"""Weights in memory: their digest changes with every byte, and changed weights do not keep their revision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from idmetric import CheckpointError, IdentityLoss, IDSim, load, score
from idmetric.adapters import IdentitySimilarity
from idmetric.evaluate.protocols.calibrate import check_models
from idmetric.gallery import Gallery
from idmetric.metric.fingerprint import weights_digest
from idmetric.scoring.calibration import Calibration, CalibrationError, Isotonic, calibration_of
from tests.conftest import random_model
from tests.embed_parts import pictures


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_weights_are_hashed_and_cannot_be_saved(named: IDSim, tmp_path: Path) -> None:
    quantized = torch.ao.quantization.quantize_dynamic(named, {torch.nn.Linear})
    assert quantized.revision == f"{named.revision}+changed"
    with pytest.raises(CheckpointError, match="quantized"):
        quantized.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()

    digest = weights_digest(quantized)
    assert digest == weights_digest(copy.deepcopy(quantized))
    with torch.no_grad():
        layer = next(layer for layer in named.modules() if isinstance(layer, torch.nn.Linear))
        layer.weight.neg_()
    assert digest != weights_digest(torch.ao.quantization.quantize_dynamic(named, {torch.nn.Linear}))

    images = torch.rand(2, 3, 64, 64)
    similarity = IdentitySimilarity(quantized)
    similarity.update(images, images)
    assert similarity.compute().item() == pytest.approx(1, abs=1e-5)


def test_new_weights_are_hashed_once_until_they_are_written_to(model: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    monkeypatch.setattr(
        "idmetric.metric.fingerprint.tensors_digest", lambda items: hashed.append(1) or str(len(hashed))
    )
    for _ in range(3):
        model.embed(torch.zeros(3, 64, 64))
    assert len(hashed) == 1
    with torch.no_grad():
        model.mlp_cls.fc2.weight[0, 0] += 1
    model.embed(torch.zeros(3, 64, 64))
    assert len(hashed) == 2


# Named weights


@pytest.fixture
def named(model: IDSim, tmp_path: Path) -> IDSim:
    """A loaded model, with a calibration in its folder."""
    folder = tmp_path / "run"
    model.save_pretrained(folder)
    loaded = load(folder, device="cpu")
    Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), loaded.calibration_id(), "cls").write(folder / "calibration.json")
    found = load(folder, device="cpu")
    assert isinstance(found, IDSim)
    return found


def shake(model: IDSim) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.02)


def step(model: IDSim) -> None:
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(2, 3, 64, 64)).cls[:, 0].sum().backward()
    optimizer.step()
    model.requires_grad_(False)


def replace_weight(model: IDSim) -> None:
    model.mlp_cls.fc2.weight = torch.nn.Parameter(1.1 * model.mlp_cls.fc2.weight.detach(), requires_grad=False)


def load_others(model: IDSim) -> None:
    model.load_state_dict({k: v * 1.1 for k, v in model.state_dict().items()})


@pytest.mark.parametrize("change", [shake, step, replace_weight, load_others])
def test_changed_weights_say_so_wherever_their_revision_is_named(
    named: IDSim, tmp_path: Path, change: Callable[[IDSim], None]
) -> None:
    photos = pictures(tmp_path / "photos", 2)
    own = named.revision
    assert score(named, photos[0], photos[1], calibration="stored").rows[0]["probability"] > 0
    change(named)

    row = score(named, photos[0], photos[1]).rows[0]
    gallery = Gallery(tmp_path / "gallery", named)
    gallery.build(photos[0])
    said = [row["revision"], named.signature()["revision"], IdentityLoss(named, photos[0]).signature()["revision"],
            gallery.query(photos[1])[0]["revision"], named.model_id.partition("@")[2].partition("/")[0],
            named.embed(photos[0]).model.partition("@")[2].partition("/")[0]]  # fmt: skip
    assert set(said) == {f"{own}+changed"}
    assert named.about()["weights"] == weights_digest(named)
    with pytest.raises(CalibrationError, match=rf"was made for .*@{own}/64x64.*this model is .*@{own}\+changed/64x64"):
        score(named, photos[0], photos[1], calibration="stored")
    assert calibration_of(named) is None


def test_embeddings_of_changed_weights_are_compared_with_each_other_but_not_with_those_before(
    named: IDSim,
) -> None:
    a, b = torch.rand(2, 3, 64, 64).unbind()
    before = named.embed(a)
    shake(named)
    assert 0 <= named(named.embed(a), named.embed(b)).item() <= 2
    assert 0 <= named.pairwise(named.embed(a), named.embed(b)).item() <= 2
    with pytest.raises(ValueError, match=r"IDSim:run@(\w+)/64x64.* IDSim:run@\1\+changed/64x64"):
        named(before, b)


def test_a_shallow_copy_has_names_and_settings_of_its_own(named: IDSim) -> None:
    revision = named.revision
    shallow = copy.copy(named)
    shallow.take_revision("other")
    assert named.revision == revision
    assert shallow.revision == "other"
    del shallow
    assert named.revision == revision


def test_saving_names_weights_that_are_new_or_changed(model: IDSim, named: IDSim, tmp_path: Path) -> None:
    own = named.revision
    named.save_pretrained(tmp_path / "copy")
    assert named.revision == own  # not changed
    shake(named)
    named.save_pretrained(tmp_path / "next")
    assert named.revision == load(tmp_path / "next", device="cpu").revision != own
    assert calibration_of(named) is None  # that of the folder before is for other weights
    fresh = random_model("cnn")
    assert fresh.revision == ""
    fresh.save_pretrained(tmp_path / "fresh")
    assert fresh.revision == load(tmp_path / "fresh", device="cpu").revision


def test_a_changed_model_cannot_be_calibrated_before_it_is_saved(named: IDSim) -> None:
    shake(named)
    with pytest.raises(ValueError, match="the weights of run have no revision: save the model first"):
        check_models({"run": named})
