"""Probabilities from distances: fitting against scikit-learn and SciPy, the file, and what refuses it."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit

from idmetric import IDSim, load
from idmetric.evaluate.statistics.calibration import fitting, quality
from idmetric.metric.calibration import (
    PAIR_RATE,
    Calibration,
    CalibrationError,
    CalibrationWarning,
    Isotonic,
    Model,
    read_calibration,
)
from idmetric.scoring.calibrations import threshold_source
from tests.conftest import random_model


def pairs(seed: int = 0, identities: int = 40, count: int = 1500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, whether of one identity, and the identities: P(same | score) is logistic, with slope 8 and middle 0.4."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-0.2, 1, count).round(6)
    same = rng.random(count) < expit(8 * (scores - 0.4))
    first = rng.integers(identities, size=count)
    return (
        scores,
        same,
        np.stack([first, np.where(same, first, (first + rng.integers(1, identities, count)) % identities)], 1),
    )


@pytest.mark.parametrize("count", [12, 60, 1500])
def test_unequal_distances_get_unequal_probabilities(count: int) -> None:
    """A staircase gives most strangers, and most good images of an RL batch, the very same probability."""
    scores, same, _ = pairs(count=count)
    curve = fitting.fit(scores, same)
    probabilities = curve.probability(np.linspace(-3, 1, 5001))
    assert (np.diff(probabilities) > 0).all()
    assert 0 < probabilities[0] < probabilities[-1] < 1


def test_the_packaged_calibration_ranks_images_as_their_distances_do() -> None:
    calibration = IDSim("tiny", device="cpu").calibration
    assert calibration is not None
    distances = np.linspace(0, 2, 2001, dtype=np.float32)
    probabilities = calibration.probability(distances).astype(np.float32)
    assert (np.diff(probabilities) < 0).all()


def test_isotonic_runs_through_shares_that_a_slow_loop_pools() -> None:
    scores, same, _ = pairs()
    found = fitting.fit(scores, same, limit=0.02)
    assert isinstance(found, Isotonic)

    # pool-adjacent-violators: [sum of scores, pairs of one identity, pairs]
    pools: list[list[float]] = []
    for group in np.array_split(np.argsort(scores), 23):  # 2 * 1500^(1/3)
        pools.append([scores[group].sum(), same[group].sum(), len(group)])
        while len(pools) > 1 and pools[-2][1] / pools[-2][2] >= pools[-1][1] / pools[-1][2]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    while pools[1][1] / pools[1][2] <= 0.02:  # all at the limit are one
        pools[:2] = [[a + b for a, b in zip(*pools[:2], strict=True)]]
    while pools[-2][1] / pools[-2][2] >= 0.98:
        pools[-2:] = [[a + b for a, b in zip(*pools[-2:], strict=True)]]
    shares = np.clip([pool[1] / pool[2] for pool in pools], 0.02, 0.98)

    assert found.scores[1:-1] == pytest.approx([pool[0] / pool[2] for pool in pools])
    assert found.probabilities == pytest.approx([0.01, *shares, 0.99])
    asked = np.linspace(-0.2, 1, 100)
    truth = expit(8 * (asked - 0.4))
    assert found.probability(asked) == pytest.approx(truth, abs=0.08)


def test_isotonic_stays_within_the_limits_that_few_pairs_allow() -> None:
    scores, same, _ = pairs()
    p = fitting.fit(scores, same).probability([-9.0, scores.min(), scores.max(), 9.0])
    least = 1 / (min(same.sum(), (~same).sum()) + 2)
    assert p == pytest.approx([least / 2, least, 1 - least, 1 - least / 2], abs=least / 2)
    assert p[0] == pytest.approx(least / 2)


def test_applying_needs_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys; from idmetric.metric.calibration import Isotonic;"
        "Isotonic((0, 1), (0.1, 0.9)).probability([0.5]); print(sorted({'torch', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_held_out_probabilities_never_saw_the_identities() -> None:
    scores, same, identities = pairs(count=600)
    found = fitting.held_out(scores, same, identities, limit=0.01, folds=4, seed=3)
    fold = np.random.default_rng(3).permutation(40) % 4  # identities are numbered 0..39
    for k in range(0, 600, 37):
        folds = set(fold[identities[k]])
        rest = [not (set(fold[pair]) & folds) for pair in identities]
        assert found[k] == fitting.fit(scores[rest], same[rest], 0.01).probability(scores[k])
    # labels of these pairs changed: their own probabilities do not
    changed = same.copy()
    mine = (identities == 7).any(1)
    changed[mine] = ~changed[mine]
    again = fitting.held_out(scores, changed, identities, limit=0.01, folds=4, seed=3)
    assert (again[mine] == found[mine]).all()
    assert (again != found).any()


def test_held_out_pairs_get_the_share_of_the_others_where_no_curve_rises() -> None:
    """Without identity 0, whose pairs alone are told apart, the scores of the others fall."""
    identities = np.array([(0, 0)] * 4 + [(0, 1)] * 4 + [(i, j) for i in range(1, 8) for j in range(i, 8)])
    same = identities[:, 0] == identities[:, 1]
    scores = np.where(same, -1.0, 1.0)
    scores[:8] = [9.0] * 4 + [-9.0] * 4
    found = fitting.held_out(scores, same, identities, folds=8)
    rest = ~(identities == 0).any(1)
    assert found[:4] == pytest.approx(same[rest].mean())
    with pytest.raises(ValueError, match="do not rise"):
        fitting.fit(scores[rest], same[rest])


def test_the_calibration_error_equals_torchmetrics() -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    _, same, _ = pairs(2)
    p = np.random.default_rng(2).random(len(same)).round(2)
    edges_apart = p[(p * 10) % 1 != 0], same[(p * 10) % 1 != 0]  # torchmetrics puts edges in the lower bin
    theirs = classification.BinaryCalibrationError(n_bins=10, norm="l1")(
        torch.tensor(edges_apart[0]), torch.tensor(edges_apart[1]).long()
    )
    assert quality.expected_calibration_error(*edges_apart, 10) == pytest.approx(theirs.item(), abs=1e-6)


def test_bad_pairs_are_refused() -> None:
    scores, same, identities = pairs(count=200)
    with pytest.raises(ValueError, match="do not rise"):
        fitting.fit(-scores, same)
    with pytest.raises(ValueError, match="pairs of one identity and pairs of two"):
        fitting.fit(scores, np.ones(200, bool))
    with pytest.raises(ValueError, match="scores must be finite"):
        fitting.fit(np.where(scores > 0.5, np.nan, scores), same)
    with pytest.raises(ValueError, match="more identities than 2 are needed"):
        fitting.held_out(scores, same, identities % 2)
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
        quality.expected_calibration_error([1.5, 0.5], [True, False])


# The file and the model


def made_for(metric: IDSim, distance: str = "cls", outside: str = "all") -> Calibration:
    return Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), metric.calibrated_model(), distance, outside, metric.name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    """A model's folder, and three pictures beside it."""
    root = tmp_path_factory.mktemp("calibrated")
    metric.save_pretrained(root / "model")
    rng = np.random.default_rng(0)
    for name in "abc":
        picture = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((64, 64))
        picture.save(root / f"{name}.png")
    return root


def opened(folder: Path) -> IDSim:
    model = load(folder / "model", device="cpu")
    assert isinstance(model, IDSim)
    return model


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    curve = Isotonic((-0.5, 0.2, 0.9), (0.1, 0.4, 0.95))
    made = Calibration(curve, Model("IDSim", "", "abc", None, "64x64"), "cls", "crop", "mine",
                       ({"false_accept_rate": 0.1, "distance": 0.2},), {"ECE": {"value": 0.1}}, {"images": 3},
                       {"idmetric": "1"})  # fmt: skip
    made.write(tmp_path / "new" / "c.json")
    assert read_calibration(tmp_path / "new" / "c.json") == made
    text = json.loads((tmp_path / "new" / "c.json").read_text())
    assert {"kind", "format", "model", "distance", "data", "versions"} <= text.keys()


def test_probability_is_the_curve_at_the_distance() -> None:
    calibration = Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), Model("M", "", "r", None, "1x1"), "cls")
    distances = np.array([[0.1, 0.5], [0.9, 1.4]])
    assert calibration.probability(distances) == pytest.approx(0.01 + 0.98 * (4 - distances) / 4)


def test_the_calibration_beside_the_model_is_found(saved: Path, tmp_path: Path) -> None:
    metric = opened(saved)
    assert metric.calibration is None
    beside = saved / "model" / "calibration.json"
    made_for(metric).write(beside)
    try:
        assert opened(saved).calibration == made_for(metric)
    finally:
        beside.unlink()


def test_a_saved_model_keeps_its_calibration_unless_its_weights_have_changed(saved: Path, tmp_path: Path) -> None:
    metric = opened(saved)
    metric.calibrate_with(made_for(metric)).save_pretrained(tmp_path / "same")
    found = load(tmp_path / "same", device="cpu")
    assert found.calibration == replace(made_for(metric), model=found.calibrated_model())

    with torch.no_grad():
        next(metric.parameters()).add_(1.0)
    metric.save_pretrained(tmp_path / "changed")
    assert load(tmp_path / "changed", device="cpu").calibration is None


def test_the_embedded_model_brings_one_of_photos_and_its_page_has_its_numbers() -> None:
    metric = load("tiny", device="cpu")
    found = metric.calibration
    assert found is not None
    assert found.model.is_same(metric.calibrated_model())
    assert found.basis.startswith("P(same) rests on photos: photos of grocery packages")
    images = Path(__file__).parents[3] / "examples" / "images"
    near, far = found.probability(metric(images / "mug_a.png", [images / "mug_b.png", images / "box_a.png"]))
    assert far < 0.1 < 0.9 < near
    page = (Path(__file__).parents[3] / "benchmarks" / "reports" / "calibration.md").read_text(encoding="utf-8")
    assert f"`{found.model.revision}`" in page
    for name in ("ECE", "log loss", "Brier"):
        value, low, high = (found.held_out[name][k] for k in ("value", "low", "high"))
        assert f"{value:.3f} [{low:.3f}, {high:.3f}]" in page
    for one in found.thresholds:
        row = f"| {one['false_accept_rate']:g} | {one['distance']:.3f} [{one['low']:.3f}, {one['high']:.3f}] |"
        assert f"{row} {100 * one['true_accept']:.0f} % |" in page


def test_a_calibration_is_refused_for_anything_else(saved: Path, small: IDSim, tmp_path: Path) -> None:
    metric = opened(saved)
    other = tmp_path / "other"
    small.save_pretrained(other / "model")
    strange = opened(other)
    equal = strange.calibrated_model() == metric.calibrated_model()  # one of the small models is the saved one
    with nullcontext() if equal else pytest.raises(CalibrationError, match=r"made for .* this model is"):
        strange.calibrate_with(made_for(metric))
    with torch.no_grad():
        changed = opened(saved)
        next(changed.parameters()).add_(1.0)
    changed.save_pretrained(other / "model")
    with pytest.raises(CalibrationError, match="other weights"):
        opened(other).calibrate_with(made_for(metric))
    with pytest.raises(CalibrationError, match="'patch'"):
        made_for(metric, "patch").check_distance("cls")
    with pytest.raises(CalibrationError, match="crop"):
        made_for(metric).check_outside("crop")
    with pytest.raises(CalibrationError, match="crop"):
        made_for(metric, outside="crop").check_outside("all")


def test_a_model_in_memory_has_no_calibration() -> None:
    metric = random_model("dinov3")
    with pytest.raises(CalibrationError, match="made for"):
        metric.calibrate_with(made_for(metric))  # without a revision there is no telling which weights these are


def test_the_same_files_are_the_same_model_whatever_their_revision_is_called() -> None:
    on_hub = Model("IDSim", "", "1" * 40, "abc", "64x64")
    assert on_hub.is_same(Model("IDSim", "", "abc", "abc", "64x64"))
    assert not on_hub.is_same(Model("IDSim", "", "2" * 40, None, "64x64"))
    assert not on_hub.is_same(replace(on_hub, resolution="32x32"))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    kind = '"kind": "idmetric-calibration"'
    broken = {"{": "cannot read", "{}": "not a calibration", f'{{{kind}, "format": 9}}': "format 9",
              f'{{{kind}, "format": 1}}': "damaged"}  # fmt: skip
    for text, says in broken.items():
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(CalibrationError, match=says) as caught:
            read_calibration(tmp_path / "c.json")
        assert "c.json" in str(caught.value)
    with pytest.raises(CalibrationError, match=r"absent\.json"):
        read_calibration(tmp_path / "absent.json")


def test_every_probability_says_which_images_it_rests_on() -> None:
    metric = IDSim("tiny", device="cpu")
    found = metric.calibration
    assert found is not None
    rendered = metric.calibrate_with(replace(found, data={**found.data, "origin": "rendered"}))
    with pytest.warns(CalibrationWarning, match="rests on rendered objects, not on photos"):
        rendered.calibration.warn()
    photos = metric.calibrate_with(replace(found, data={**found.data, "origin": "photos", "about": "my own"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        photos.calibration.warn()
    assert found != photos.calibration
    assert photos.calibration is not None
    assert photos.calibration.basis == "P(same) rests on photos: my own"


@pytest.mark.parametrize(
    ("curve", "values", "says"),
    [
        (Isotonic, ((0.9, 0.5), (0.1, 0.2)), "scores must increase"),
        (Isotonic, ((0.1, 0.5), (0.9, 0.2)), "probabilities must increase"),
        (Isotonic, ((0.1, 0.5), (0.5,)), "as many probabilities"),
    ],
)
def test_a_curve_that_would_turn_scores_round_is_refused(curve: Any, values: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        curve(*values)


def listing(*rates: float) -> Calibration:
    """A calibration with thresholds at these rates; the distance at a rate r is 2 r."""
    thresholds = tuple({"false_accept_rate": rate, "distance": 2 * rate, "low": rate} for rate in rates)
    return Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), Model("IDSim", "", "abc", None, "64x64"), "cls", thresholds=thresholds
    )


@pytest.mark.parametrize(
    ("wanted", "rate", "text"),
    [
        (0.05, 0.05, "5 % of pairs"),
        (0.1, 0.1, "10 % of pairs"),
        (0.3 - 0.2, 0.1, "10 % of pairs"),  # 0.09999999999999998
        (0.07, 0.05, "5 % of pairs, the nearest below 7 %"),
        (0.5, 0.1, "10 % of pairs, the nearest below 50 %"),
        (0.049, 0.001, "0.1 % of pairs, the nearest below 4.9 %"),
    ],
)
def test_the_threshold_at_a_rate_is_that_of_the_nearest_listed_rate_at_or_below(
    wanted: float, rate: float, text: str
) -> None:
    threshold = listing(0.1, 0.001, 0.05).threshold_at(wanted)
    assert (threshold.rate, threshold.wanted) == (rate, wanted)
    assert threshold.distance == 2 * rate
    assert str(threshold) == text
    assert threshold_source("stored", threshold) == f"stored calibration, {text}"
    assert threshold_source(Path("runs") / "own.json", threshold) == f"own.json, {text}"
    assert threshold_source(listing(0.1), threshold) == f"given calibration, {text}"


def test_the_default_rate_is_5_percent_and_higher_rates_are_not_taken() -> None:
    assert listing(0.1, 0.05, 0.01).threshold_at().rate == PAIR_RATE == 0.05
    with pytest.raises(CalibrationError, match=r"rate of 0\.05 or less, only at 0\.1, 0\.2: .*--rates 0\.05"):
        listing(0.2, 0.1).threshold_at()
    with pytest.raises(CalibrationError, match="only at none"):
        listing().threshold_at()
    for rate in (0, 1, 5, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            listing(0.01).threshold_at(rate)


@pytest.mark.parametrize("name", ["distance", "false_accept_rate"])
@pytest.mark.parametrize("value", ["null", "true", '"0,5"', "NaN", "Infinity"])
def test_a_threshold_that_is_not_a_number_is_refused(tmp_path: Path, name: str, value: str) -> None:
    """It would name nobody, or everybody."""
    path = tmp_path / "edited.json"
    thresholds = ({"false_accept_rate": 0.01, "distance": 0.3},)
    model = Model("IDSim", "", "abc", None, "64x64")
    Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), model, "cls", thresholds=thresholds).write(path)
    record = json.loads(path.read_text())
    record["thresholds"][0][name] = "VALUE"
    path.write_text(json.dumps(record).replace('"VALUE"', value))
    with pytest.raises(CalibrationError, match=f"edited.json' is a damaged calibration: .*{name} of a threshold"):
        read_calibration(path)
