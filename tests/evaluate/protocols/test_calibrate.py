"""`idmetric eval calibrate`: from a manifest to a calibration that the model and `idmetric score` take."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame
from PIL import Image

from idmetric import IDSim, load
from idmetric.cli import eval as cli
from idmetric.data.manifest import checked, write
from idmetric.data.manifest import read as read_manifest
from idmetric.evaluate.protocols import calibrate
from idmetric.evaluate.protocols.calibrate import CalibrateOptions
from idmetric.evaluate.protocols.common.labeled_pairs import LabeledPairs, draw_pairs, usable
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.scoring.calibration import Calibration
from tests.table_parts import a_row, a_table, where

QUICK = EvalSettings(bootstrap=20)


def test_log_loss_and_brier_score_are_means_over_pairs_of_either_label() -> None:
    """Also where all pairs have one label, as in a sample of few identities."""
    index = np.arange(2)
    settings = EvalSettings(bootstrap=0)
    kinds = np.array(["same", "any"])
    pairs = LabeledPairs(a=index, b=index, same=np.array([True, False]), kind=kinds, family=np.zeros((2, 2), np.int64))
    row = calibrate.quality_row(np.array([0.9, 0.2]), pairs, settings)
    assert row["log loss"].value == pytest.approx(-(math.log(0.9) + math.log(0.8)) / 2)
    assert row["Brier"].value == pytest.approx((0.1**2 + 0.2**2) / 2)

    alone = pairs.take(~pairs.same)
    row = calibrate.quality_row(np.array([0.2]), alone, settings)
    assert row["log loss"].value == pytest.approx(-math.log(0.8))
    assert row["Brier"].value == pytest.approx(0.2**2)


@pytest.fixture(scope="module")
def saved(folder: Path) -> Any:
    return load(folder / "model", device="cpu")


@pytest.fixture(scope="module")
def data(folder: Path) -> DataFrame:
    return usable(read_manifest(folder / "manifest.csv"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    """A saved model, and twelve objects: four pictures of each, and a distractor of two of them."""
    root = tmp_path_factory.mktemp("calibrate")
    metric.save_pretrained(root / "model")
    rng = np.random.default_rng(0)
    rows = []

    def picture(name: str, own: np.ndarray) -> str:
        noisy = (own + rng.normal(0, 25, own.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).resize((32, 32), Image.Resampling.BILINEAR).save(root / name)
        return name

    for thing in range(12):
        own = rng.integers(0, 256, (6, 6, 3)).astype(float)
        twin = own + rng.normal(0, 60, own.shape)
        for view in range(4):
            rows.append(a_row(f"t{thing}", picture(f"{thing}-{view}.png", own), id=f"{thing}/{view}", dataset="d",
                            category=f"c{thing % 3}"))  # fmt: skip
        for view in range(2):
            near = picture(f"{thing}-{view}-near.png", twin)
            rows.append(a_row(f"t{thing}~", near, id=f"{thing}/{view}~", dataset="d",
                            category=f"c{thing % 3}", role="distractor", parent=f"{thing}/{view}"))  # fmt: skip
        rows.append(a_row(f"t{thing}", f"{thing}-0.png", id=f"{thing}/part", role="part-edit", dataset="d"))
    write(a_table(rows, root), root / "manifest.csv")
    return root


def test_half_the_pairs_are_of_one_identity_and_half_of_the_others_hard(data: DataFrame) -> None:
    assert "part-edit" not in data["role"].tolist()
    pairs = draw_pairs(data, 6)
    identity, parent, names = (data[c].to_numpy() for c in ("identity", "parent", "id"))
    category = data["category"].to_numpy()
    assert (pairs.same == (identity[pairs.a] == identity[pairs.b])).all()
    counts = pairs.counts()
    assert counts["same"] == 12 * 6 + 12  # of four pictures, and of two of the twin's
    assert counts["same"] == len(pairs.a) - counts["same"]
    assert counts["context"] + counts["kin"] + counts["category"] == counts["same"] // 2
    assert len({tuple(sorted(p)) for p in zip(pairs.a.tolist(), pairs.b.tolist(), strict=True)}) == len(pairs.a)
    for a, b, kind in zip(pairs.a, pairs.b, pairs.kind, strict=True):
        made = parent[a] == names[b] or parent[b] == names[a]
        if kind == "context":
            assert made
        if kind == "kin":
            assert not made
            assert identity[a].rstrip("~") == identity[b].rstrip("~")
        if kind == "category":
            assert category[a] == category[b]
        if kind in ("category", "any"):
            assert identity[a].rstrip("~") != identity[b].rstrip("~")
    assert (pairs.family[pairs.kind == "kin"][:, 0] == pairs.family[pairs.kind == "kin"][:, 1]).all()
    again = draw_pairs(data, 6)
    assert (again.a == pairs.a).all()
    assert (draw_pairs(data, 6, seed=1).a != pairs.a).any()


def test_the_command_writes_a_calibration_for_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beside = folder / "model" / "calibration.json"
    out = folder / "out"
    status = cli.main(["calibrate", "--data", str(folder / "manifest.csv"), "--model", f"mine={folder / 'model'}",
                       "--device", "cpu", "--out", str(out), "--bootstrap", "20", "--plots",
                       "png", "--rates", "0.2", "--quiet"])  # fmt: skip
    printed = capsys.readouterr().out
    try:
        assert status == 0
        assert "ECE" in printed
        (out / "mine.calibration.json").rename(beside)
        found = Calibration.read(beside)
        assert found.data["about"] == "manifest.csv"
        assert found.data["identities"] == 24
        assert found.data["families"] == 12
        assert found.thresholds[0]["false_accept_rate"] == 0.2
        assert (out / "calibrate.roc.png").stat().st_size > 1000
        metric = load(folder / "model", device="cpu")
        other, same = found.probability(metric(folder / "0-0.png", [folder / "4-0.png", folder / "0-1.png"]))
        assert 0 < other < same < 1
        row = json.loads((out / "calibrate.json").read_text())["results"][0]["rows"][0]
        assert row["metrics"]["ECE"]["value"] == pytest.approx(found.held_out["ECE"]["value"], rel=1e-8)
    finally:
        beside.unlink(missing_ok=True)


def calibrated(
    data: DataFrame, model: IDSim, settings: EvalSettings, options: CalibrateOptions
) -> tuple[Calibration, Result]:
    """The calibration that a run writes, and its measurements."""
    with tempfile.TemporaryDirectory() as folder:
        [result] = calibrate.run(data, {"m": model}, replace(settings, out=Path(folder)), options)
        return Calibration.read(Path(folder) / "m.calibration.json"), result


def test_further_strangers_decide_about_thresholds_alone(saved: IDSim, data: DataFrame) -> None:
    few, many = (
        calibrated(data, saved, EvalSettings(bootstrap=0), CalibrateOptions(strangers=n, rates=(0.05,)))
        for n in (0, 500)
    )
    assert many[0].data["pairs"]["any"] > few[0].data["pairs"]["any"] + 400
    grid = np.linspace(0, 2, 50)
    assert (many[0].probability(grid) == few[0].probability(grid)).all()
    assert many[0].thresholds[0]["distance"] != few[0].thresholds[0]["distance"]
    assert few[1].items["pairs"] == many[1].items["pairs"]


def value(row: dict[str, Any], name: str) -> float:
    found = row[name]
    assert isinstance(found, Value)
    return found.value


def test_models_and_data_that_cannot_be_calibrated_are_refused(saved: IDSim, data: DataFrame, metric: IDSim) -> None:
    for rows, models, options, reason in (
        (data, {"m": metric}, CalibrateOptions(), "have no revision"),
        (data, {"hsv": object()}, CalibrateOptions(), r"only models that idmetric\.load opens can"),
        (data.assign(identity=data["id"]), {"m": saved}, CalibrateOptions(), "no identity has two images"),
        (where(data, identity=("t0", "t1")), {"m": saved}, CalibrateOptions(), "three identities"),
    ):
        with pytest.raises(ValueError, match=reason):
            calibrate.run(rows, models, QUICK, options)
    with pytest.raises(ValueError, match="rates lie between 0 and 1"):  # percent
        CalibrateOptions(rates=(5, 1))


@pytest.mark.parametrize(
    ("engines", "origin"),
    [({None}, "photos"), ({None, "painter"}, "generated"),
     ({"flux"}, "generated")],
)  # fmt: skip
def test_a_calibration_records_where_its_images_come_from(
    saved: IDSim, data: DataFrame, engines: set[str | None], origin: str
) -> None:
    cycle = sorted(engines, key=str)
    data = checked(data.assign(engine=[cycle[k % len(cycle)] for k in range(len(data))]))
    found, _ = calibrated(data, saved, QUICK, CalibrateOptions())
    assert found.data["origin"] == origin
    assert ("not on photos" in found.basis) == (origin != "photos")
