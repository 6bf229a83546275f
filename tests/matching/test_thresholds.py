"""Where the threshold of a subject comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from idmetric import IDSim
from idmetric.matching import Match, match
from idmetric.metric.errors import RequestError
from idmetric.scoring.calibration import Calibration, CalibrationError, Isotonic
from tests.conftest import random_model
from tests.matching.scenes import ANN, REX, references, scene

STORED = 0.363486  # of `tiny`, within which 5 % of pairs of two identities lie


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny", device="cpu")


def found(metric: Any, photos: dict[str, Any], threshold: Any = None, **options: Any) -> Match:
    picture, boxes = scene((ANN, REX))
    return match(metric, photos, picture, boxes, threshold=threshold, **options)


def limits(matched: Match) -> dict[str, tuple[float, str]]:
    return {name: (limit.distance, limit.source) for name, limit in matched.limits.items() if limit is not None}


def test_few_photos_take_the_stored_calibration_at_5_percent(metric: IDSim) -> None:
    by_pairs = found(metric, {"ann": references(ANN, 2)})
    assert limits(by_pairs) == {"ann": (pytest.approx(STORED), "stored calibration, 5 % of pairs")}
    assert {row["threshold_source"] for row in by_pairs if row["subject"]} == {"stored calibration, 5 % of pairs"}


def test_the_larger_of_own_photos_and_calibration_counts_and_a_given_one_always(metric: IDSim) -> None:
    photos = {"ann": references(ANN, 6), "rex": references(REX, 2)}
    own = metric.pairwise(photos["ann"], photos["ann"]).double().numpy() + 9 * np.eye(6)
    own_limit = own.min(1).max()
    near = ({"false_accept_rate": 0.1, "distance": 0.2}, {"false_accept_rate": 0.01, "distance": 0.02})
    calibration = Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), metric.calibration_id(), "cls", thresholds=near)
    first = limits(found(metric, photos, calibration))
    assert first["ann"] == (pytest.approx(own_limit, abs=1e-6), "own photos")
    assert first["rex"] == (0.02, "given calibration, 1 % of pairs")

    far = replace(calibration, thresholds=({"false_accept_rate": 0.05, "distance": own_limit + 0.01},))
    assert limits(found(metric, photos, far))["ann"][1] == "given calibration, 5 % of pairs"
    assert limits(found(metric, photos, {"ann": 0.3}))["ann"] == (0.3, "given")
    with pytest.raises(CalibrationError, match="patch"):
        found(metric, photos, calibration, distance="patch")


def test_copies_of_a_photo_count_once(metric: IDSim) -> None:
    photos = references(ANN, 4)
    by_copies = limits(found(metric, {"ann": [*photos, photos[0], photos[0].resize((90, 90))]}))
    assert by_copies["ann"][1] == "stored calibration, 5 % of pairs"  # four different photos are too few


def test_without_a_threshold_there_is_no_state(metric: IDSim) -> None:
    changed = IDSim("tiny", device="cpu")
    with torch.no_grad():
        next(changed.parameters()).mul_(1.01)  # the stored calibration is not of these weights
    for model in (changed, random_model("cnn")):
        matched = found(model, {"ann": references(ANN, 2), "rex": references(REX, 2)}, {"rex": 2.0})
        assert matched.limits["ann"] is None
        assert matched.states[0][0] == ""
        assert [assignment.unknown for assignment in matched.assignments] == [()]
        ann, rex = matched.summary.to_dict("records")
        assert np.isnan([ann["found"], ann["mean"]]).all()
        assert rex["found"] == 1
        assert np.isfinite(ann["worst"])


@pytest.mark.parametrize("threshold", [-0.1, float("nan"), {"ann": -1.0}, {"anne": 0.2}], ids=str)
def test_thresholds_that_are_no_distances_are_refused(metric: IDSim, threshold: Any) -> None:
    with pytest.raises(RequestError, match="threshold"):
        found(metric, {"ann": references(ANN, 2)}, threshold)
