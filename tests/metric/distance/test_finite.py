"""NaN and infinity in weights, embeddings and distances: refused with their names, never ranked or printed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from idmetric import IDSim, NonFiniteError, load
from idmetric.cli import score
from idmetric.data.embed import embed_rows
from idmetric.data.manifest import ManifestError, checked
from idmetric.evaluate.protocols.common.scorers import EvalSettings, bind
from idmetric.gallery import Gallery
from idmetric.metric.embedding import Embedding, is_finite
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import json_text
from idmetric.scoring.calibration import Calibration, Isotonic
from idmetric.scoring.scores import Records
from tests.embed_parts import pictures

NAN, INF = float("nan"), float("inf")


def saved(folder: Path, change: dict[str, float], of: IDSim) -> Path:
    """A model folder in which the first value of some tensors is another."""
    of.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    for name, value in change.items():
        state[name].view(-1)[0] = value
    save_file(state, folder / "model.safetensors")
    return folder


@pytest.fixture
def overflowing(metric: IDSim, tmp_path: Path) -> Path:
    """A model whose features are finite in float32 and bfloat16, and overflow in float16."""
    metric.save_pretrained(tmp_path / "large")
    state = load_file(tmp_path / "large" / "model.safetensors")
    for name in ("mlp_cls.fc1.weight", "mlp_cls.fc2.weight"):
        state[name] *= 3e3
    save_file(state, tmp_path / "large" / "model.safetensors")
    return tmp_path / "large"


# Weights


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["mlp_cls.fc1.weight", "backbone.blocks.1.norm1.bias"])
def test_weights_that_are_not_finite_are_refused_with_file_and_tensor(
    metric: IDSim, tmp_path: Path, name: str, value: float
) -> None:
    folder = saved(tmp_path / "run", {name: value}, metric)
    with pytest.raises(CheckpointError, match=rf"run/model\.safetensors.* {name}"):
        load(folder, device="cpu")


def test_weights_beyond_float16_are_refused_in_float16_alone(metric: IDSim, tmp_path: Path) -> None:
    folder = saved(tmp_path / "run", {"mlp_cls.fc1.weight": 1e6}, metric)
    load(folder, device="cpu", dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"mlp_cls\.fc1\.weight"):
        load(folder, device="cpu", dtype=torch.float16)


def test_large_finite_numbers_are_finite() -> None:
    large = torch.full((4, 8), 3e38)  # their sum is infinite
    assert is_finite(large)
    assert is_finite(torch.full((1000,), 6e4, dtype=torch.float16))
    assert is_finite(torch.empty(0))
    assert not is_finite(torch.tensor([INF, -INF]))
    large[2, 3] = NAN
    assert Embedding(large).finite().tolist() == [True, True, False, True]


# Embeddings


def test_images_that_overflow_in_float16_are_named_with_the_fix(overflowing: Path, tmp_path: Path) -> None:
    paths = pictures(tmp_path / "photos", 5)
    for dtype in (torch.float32, torch.bfloat16):
        assert load(overflowing, device="cpu", dtype=dtype).embed(paths).finite().all()
    half = load(overflowing, device="cpu", dtype=torch.float16)
    for use in (
        lambda: half.embed(paths, batch_size=2),
        lambda: half(paths[0], paths[1:]),
        lambda: half.pairwise(paths),
    ):
        with pytest.raises(NonFiniteError, match=r"0000\.png.*in float16 is not finite.*--dtype float32") as caught:
            use()
    assert caught.value.rows == [0, 1, 2, 3, 4]


def test_an_embedding_that_is_not_finite_is_refused_wherever_it_comes_from(metric: IDSim, tmp_path: Path) -> None:
    good = metric.embed(pictures(tmp_path / "photos", 3))
    bad = Embedding(good.cls.clone(), good.patches, good.grid, model=good.model)
    bad.cls[1, 2] = NAN
    with pytest.raises(NonFiniteError, match="distances of 1 are not finite"):
        metric(good[0], bad)
    with pytest.raises(NonFiniteError, match="distances of 1 are not finite"):
        metric.pairwise(bad, good)


def test_a_graph_is_neither_checked_nor_cut(metric: IDSim) -> None:
    pixels = torch.rand(2, 3, 64, 64, requires_grad=True)
    twin = Embedding(torch.full((1, 48), NAN))
    found = metric(pixels, twin)
    assert found.requires_grad
    assert found.isnan().all()
    compiled = torch.compile(lambda x: metric(x).cls, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(pixels), metric(pixels).cls)


def test_a_distance_that_is_not_finite_has_no_probability() -> None:
    model = load("tiny", device="cpu").calibration_id()
    calibration = Calibration(Isotonic((-3.0, 1.0), (0.1, 0.9)), model, "cls")
    assert calibration.probability([2.0]).tolist() == [0.5]
    with pytest.raises(NonFiniteError, match="has no probability"):
        calibration.probability([0.1, NAN])


# Stores


def test_no_store_takes_what_is_not_finite(overflowing: Path, tmp_path: Path) -> None:
    half, paths = load(overflowing, device="cpu", dtype=torch.float16), pictures(tmp_path / "photos", 2)
    table = checked(pd.DataFrame({"path": paths}))
    _, problems = embed_rows(table, half, store=tmp_path / "mine")
    assert all("in float16 is not finite" in reason for reason in problems.values())
    assert list((tmp_path / "mine").rglob("*.safetensors")) == []
    assert all(
        "--dtype float32" in reason
        for reason in Gallery(tmp_path / "g", half).build(tmp_path / "photos").unreadable.values()
    )
    with pytest.raises(ManifestError, match="in float16 is not finite"):
        bind(table, {"large": half}, EvalSettings())


# Commands


def test_score_prints_no_row_of_an_image_that_overflows(
    overflowing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures(tmp_path / "photos", 4)
    words = [str(tmp_path / "photos" / "0000.png"), str(tmp_path / "photos"), "--model", str(overflowing), "--quiet",
             "--format", "json"]  # fmt: skip
    assert score.main([*words, "--dtype", "float16"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "0000.png" in err
    assert "float16 is not finite" in err
    assert "--dtype float32" in err
    assert score.main([*words, "--dtype", "float16", "--on-error", "skip"]) == 1  # none is left
    assert "no image could be scored" in capsys.readouterr().err
    assert score.main([*words, "--dtype", "float32"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 3


def test_undefined_statistics_are_null_in_json_and_empty_in_tables() -> None:
    value = {"a": NAN, "b": [1.5, INF, {"c": -INF}], "d": (np.float64("nan"), 2), "e": "nan"}
    assert json.loads(json_text(value)) == {"a": None, "b": [1.5, None, {"c": None}], "d": [None, 2], "e": "nan"}
    records = Records([{"x": NAN, "y": 0.25}], ("x", "y"))
    assert records.to_csv() == "x,y\n,0.2500\n"
    assert json.loads(records.to_json()) == json.loads(f"[{records.to_jsonl()}]") == [{"x": None, "y": 0.25}]
