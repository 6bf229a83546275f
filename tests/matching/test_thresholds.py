"""Where the threshold of a subject comes from, and the numbers that need one."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from idmetric import IDSim
from idmetric.matching import Match, match
from idmetric.scoring.calibration import Calibration, CalibrationError, Isotonic
from tests.conftest import SMALL, random_model
from tests.matching.scenes import ANN, REX, STRANGER, references, scene

STORED = 0.363486  # of `tiny`, within which 5 % of pairs of two identities lie


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny")


@pytest.fixture(scope="module")
def by_pairs(metric: IDSim) -> Match:
    """Two subjects with two photos each, which are too few for a threshold of their own."""
    picture, boxes = scene((ANN, None))
    photos = {"ann": references(ANN, 2), "rex": references(REX, 2)}
    return match(metric, photos, picture, regions=boxes)


def test_few_photos_take_the_stored_calibration_at_5_percent(by_pairs: Match) -> None:
    assert by_pairs.thresholds == pytest.approx((STORED, STORED))
    assert by_pairs.threshold_sources == ("stored calibration, 5 % of pairs",) * 2
    assert by_pairs.states == [["matched", "missing"]]


def test_the_threshold_and_its_source_stand_beside_each_state(by_pairs: Match) -> None:
    for row in by_pairs.rows:
        assert row["threshold"] == pytest.approx(STORED)
        assert row["threshold_source"] == "stored calibration, 5 % of pairs"
    table = by_pairs.to_table()
    assert table.splitlines()[0].split()[:5] == ["subject", "state", "distance", "nearest", "threshold"]
    assert "threshold of ann: 0.3635 (stored calibration, 5 % of pairs)" in table
    assert json.loads(by_pairs.to_json())["summary"][0]["threshold_source"] == "stored calibration, 5 % of pairs"
    rows = list(csv.DictReader(io.StringIO(by_pairs.to_csv())))
    assert [row["threshold"] for row in rows] == ["0.3635", "0.3635"]


def test_sources_in_order(metric: IDSim, tmp_path: Path) -> None:
    picture, boxes = scene((ANN, REX))
    photos = {"ann": references(ANN, 6), "rex": references(REX, 2)}
    thresholds = tuple({"false_accept_rate": rate, "distance": 2 * rate} for rate in (0.1, 0.01))
    calibration = Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), metric.calibration_id(), "cls", thresholds=thresholds
    )
    calibration.write(tmp_path / "mine.json")

    found = match(metric, photos, picture, regions=boxes, calibration=tmp_path / "mine.json")
    assert found.threshold_sources == ("own photos", "mine.json, 1 % of pairs")
    assert found.thresholds[1] == 0.02
    own_threshold = found.thresholds[0]
    assert 0.02 < own_threshold < 0.127092
    far = replace(calibration, thresholds=({"false_accept_rate": 0.05, "distance": 0.127092},))
    found = match(metric, photos, picture, regions=boxes, calibration=far)
    # the larger one of own photos and calibration, a given one whatever its size
    assert found.threshold_sources == ("given calibration, 5 % of pairs",) * 2
    assert found.thresholds == pytest.approx((0.127092, 0.127092))
    found = match(metric, photos, picture, regions=boxes, threshold={"ann": 0.3})
    assert found.threshold_sources == ("given", "stored calibration, 5 % of pairs")
    assert found.thresholds == pytest.approx((0.3, STORED))


def test_a_model_that_was_trained_further_has_no_stored_threshold(metric: IDSim) -> None:
    changed = IDSim("tiny")
    with torch.no_grad():
        next(changed.parameters()).mul_(1.01)
    picture, boxes = scene((ANN, REX))
    found = match(changed, {"ann": references(ANN, 2)}, picture, regions=boxes)
    assert np.isnan(found.thresholds).all()
    assert found.threshold_sources == ("",)


def test_a_stored_calibration_without_a_rate_of_5_percent_gives_no_threshold_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metric = IDSim("tiny")
    listed = ({"false_accept_rate": 0.1, "distance": 0.4},)
    found = Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), metric.calibration_id(), "cls", thresholds=listed)
    monkeypatch.setattr("idmetric.matching.thresholds.calibration_of", lambda *_, **__: found)
    picture, boxes = scene((ANN, REX))
    photos = {"ann": references(ANN, 2)}
    assert match(metric, photos, picture, regions=boxes).threshold_sources == ("",)
    with pytest.raises(CalibrationError, match=r"--rates 0\.05"):
        match(metric, photos, picture, regions=boxes, calibration=found)

    # a subject with a threshold needs no calibration, which may be on the Hub
    monkeypatch.setattr(
        "idmetric.matching.thresholds.calibration_of", lambda *_, **__: pytest.fail("the calibration was read")
    )
    assert match(metric, photos, picture, regions=boxes, threshold=0.3).thresholds == (0.3,)


@pytest.mark.parametrize("distance", ["cls", "patch"])
def test_without_a_threshold_there_are_no_states_and_no_numbers_of_them(distance: str) -> None:
    """An image without a cat, and a model without a calibration: "coverage 1.0000" would be success."""
    picture, boxes = scene((STRANGER,))
    photos = {"cat": references(ANN, 2), "dog": references(REX, 2)}
    found = match(random_model(next(iter(SMALL))), photos, picture, regions=boxes, distance=distance)
    assert found.states == [["", ""]]
    assert found.coverage == {"cat": None, "dog": None}
    assert found.worst == {}
    for row in found.summary:
        counts = [row[state] for state in ("matched", "missing", "doubled", "unexpected")]
        assert [row["coverage"], row["mean"], row["worst"], row["worst_image"], *counts] == [None] * 8
        assert row["n"] == 1
    assert np.isnan(found.distances).all()
    assert np.isfinite(found.nearest).all()

    summary = json.loads(found.to_json())["summary"]
    assert [row["coverage"] for row in summary] == [None] * 3
    table = found.to_table().splitlines()
    assert ["cat", "1", "-", "-", "-", "0", "-"] in [line.split() for line in table]
    assert any(re.match("no states of cat, dog.*: give a threshold", line) for line in table)


def test_numbers_are_of_the_subjects_with_a_threshold(metric: IDSim) -> None:
    picture, boxes = scene((ANN, STRANGER))
    photos = {"ann": references(ANN, 2), "rex": references(REX, 2)}
    found = match(metric, photos, picture, regions=boxes, distance="joint", threshold={"ann": 1.0})
    ann, rex, everyone = found.summary
    assert (ann["coverage"], rex["coverage"], everyone["coverage"]) == (1.0, None, 1.0)
    assert everyone["worst"] == pytest.approx(found.nearest[0, 0])
    assert found.worst["subject"] == "ann"
