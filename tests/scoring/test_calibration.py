"""Probabilities from distances: fitting against scikit-learn and SciPy, the file, and what refuses it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit

from idmetric import IDSim, load
from idmetric.evaluate.statistics.calibration import fitting, quality
from idmetric.scoring.calibration import PAIR_RATE, Calibration, CalibrationError, Isotonic, calibration_of
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
    calibration = calibration_of(IDSim("tiny", device="cpu"))
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
        "import sys; from idmetric.scoring.calibration import Isotonic;"
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

CURVE = Isotonic((-3.0, 1.0), (0.01, 0.99))
TINY = "IDSim@abc/64x64"


def made_for(metric: IDSim, **facts: Any) -> Calibration:
    return Calibration(CURVE, metric.calibration_id(), "cls", **facts)


@pytest.fixture
def run(metric: IDSim, tmp_path: Path) -> Path:
    """A model's folder with a calibration."""
    metric.save_pretrained(tmp_path / "run")
    made_for(opened(tmp_path / "run")).write(tmp_path / "run" / "calibration.json")
    return tmp_path / "run"


def opened(folder: Path, **options: Any) -> IDSim:
    model = load(folder, device="cpu", **options)
    assert isinstance(model, IDSim)
    return model


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    curve = Isotonic((-0.5, 0.2, 0.9), (0.1, 0.4, 0.95))
    made = Calibration(curve, TINY, "cls", "crop", "mine", ({"false_accept_rate": 0.1, "distance": 0.2},),
                       {"ECE": {"value": 0.1}}, {"images": 3}, {"idmetric": "1"})  # fmt: skip
    made.write(tmp_path / "new" / "c.json")
    found = Calibration.read(tmp_path / "new" / "c.json")
    assert found == made
    assert found.threshold_at(0.1).source == "c.json, 10 % of pairs"


def test_probabilities_are_the_curve_at_the_distance_and_answers_their_words() -> None:
    calibration = Calibration(CURVE, TINY, "cls")
    distances = np.array([[0.1, 0.5], [0.9, 1.4]])
    assert calibration.probability(distances) == pytest.approx(0.01 + 0.98 * (4 - distances) / 4)
    steep = Calibration(Isotonic((0.0, 1.0), (0.05, 0.95)), TINY, "cls")
    assert [steep.answer(distance) for distance in (0.0, 0.05, 0.06, 0.94, 0.95, 1.0)] == [
        "same", "same", "unsure", "unsure", "different", "different"
    ]  # fmt: skip


def test_the_calibration_in_the_folder_is_found_whatever_the_folder_is_called(run: Path, metric: IDSim) -> None:
    assert calibration_of(opened(run)) == made_for(opened(run))
    moved = run.rename(run.with_name("moved"))
    assert calibration_of(opened(moved), "stored") == Calibration.read(moved / "calibration.json")
    assert calibration_of(metric) is None  # in memory
    with pytest.raises(CalibrationError, match="eval calibrate"):
        calibration_of(metric, "stored")


def test_one_that_does_not_hold_is_passed_over_or_refused_if_it_was_given(run: Path) -> None:
    metric, path = opened(run), run / "calibration.json"
    made = Calibration.read(path)
    for facts, named in (({"distance": "patch"}, "'patch'"), ({"outside": "crop"}, "'crop'")):
        assert calibration_of(metric, **facts) is None
        with pytest.raises(CalibrationError, match=named):
            calibration_of(metric, path, **facts)
    other_settings = opened(run, preprocessing="release")
    shaken = opened(run)
    with torch.no_grad():
        next(shaken.parameters()).add_(1.0)
    for other in (other_settings, shaken, random_model("dinov3")):
        assert calibration_of(other) is None
        with pytest.raises(CalibrationError, match=f"made for .*{metric.revision}"):
            calibration_of(other, made)


def test_a_saved_model_keeps_its_calibration_unless_its_weights_have_changed(run: Path, tmp_path: Path) -> None:
    metric = opened(run)
    metric.save_pretrained(tmp_path / "same")
    same = opened(tmp_path / "same")
    assert calibration_of(same) == replace(made_for(metric), model=same.calibration_id())

    other_settings = opened(run, preprocessing="release")
    other_settings.save_pretrained(tmp_path / "release")
    assert calibration_of(opened(tmp_path / "release")) is None

    with torch.no_grad():
        next(metric.parameters()).add_(1.0)
    metric.save_pretrained(run)  # where the calibration of the weights before lies
    assert calibration_of(opened(run)) is None
    assert not (run / "calibration.json").exists()


def test_a_folder_and_its_copy_in_the_cache_of_the_hub_are_one_model(run: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--model" / "snapshots" / ("1" * 40)
    shutil.copytree(run, snapshot)
    assert opened(snapshot).revision == "1" * 40
    assert calibration_of(opened(snapshot)) == calibration_of(opened(run)) is not None


def test_the_packaged_calibration_rests_on_photos_and_its_page_has_its_numbers() -> None:
    metric = load("tiny", device="cpu")
    found = calibration_of(metric)
    assert found is not None
    assert "photos of grocery packages" in found.basis
    images = Path(__file__).parents[2] / "examples" / "images"
    near, far = found.probability(metric(images / "mug_a.png", [images / "mug_b.png", images / "box_a.png"]))
    assert far < 0.1 < 0.9 < near
    page = (Path(__file__).parents[2] / "benchmarks" / "reports" / "calibration.md").read_text(encoding="utf-8")
    assert f"`{metric.revision}`" in page
    for name in ("ECE", "log loss", "Brier"):
        value, low, high = (found.held_out[name][k] for k in ("value", "low", "high"))
        assert f"{value:.3f} [{low:.3f}, {high:.3f}]" in page
    for one in found.thresholds:
        row = f"| {one['false_accept_rate']:g} | {one['distance']:.3f} [{one['low']:.3f}, {one['high']:.3f}] |"
        assert f"{row} {100 * one['true_accept']:.0f} % |" in page
    for origin in ("rendered", "generated", ""):
        assert "not on photos" in replace(found, data={"origin": origin}).basis


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"kind": "idmetric-calibration"}', '{"kind": "idmetric-calibration", "curve": 3}']
)
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CalibrationError, match=r"c\.json"):
        Calibration.read(tmp_path / "c.json")
    with pytest.raises(CalibrationError, match=r"absent\.json"):
        Calibration.read(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("scores", "probabilities"),
    [((0.9, 0.5), (0.1, 0.2)), ((0.1, 0.5), (0.9, 0.2)), ((0.1, 0.5), (0.5,)), ((), ()), ((0.1,), (float("nan"),))],
)
def test_a_curve_that_would_turn_scores_round_is_refused(scores: Any, probabilities: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # NumPy's own for lists of two lengths
        Isotonic(scores, probabilities)


@pytest.mark.parametrize(
    ("wanted", "rate"),
    [(0.05, 0.05), (0.1, 0.1), (0.3 - 0.2, 0.1), (0.07, 0.05), (0.5, 0.1), (0.049, 0.001)],  # 0.3 - 0.2 < 0.1
)
def test_the_threshold_at_a_rate_is_that_of_the_nearest_listed_rate_at_or_below(wanted: float, rate: float) -> None:
    limit = listing(0.1, 0.001, 0.05).threshold_at(wanted)
    assert (limit.distance, limit.rate) == (2 * rate, rate)
    assert limit.source == f"given calibration, {100 * rate:g} % of pairs"


@pytest.mark.parametrize("rate", [5, 1, 0, float("nan")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ValueError, match="a share of pairs"):
        listing(0.05).threshold_at(rate)


def listing(*rates: float) -> Calibration:
    """A calibration with thresholds at these rates; the distance at a rate r is 2 r."""
    thresholds = tuple({"false_accept_rate": rate, "distance": 2 * rate, "low": rate} for rate in rates)
    return Calibration(CURVE, TINY, "cls", thresholds=thresholds)


def test_the_default_rate_is_5_percent_and_higher_rates_are_not_taken() -> None:
    assert listing(0.1, 0.05, 0.01).threshold_at().rate == PAIR_RATE == 0.05
    for calibration in (listing(0.2, 0.1), listing()):
        with pytest.raises(CalibrationError, match=r"--rates 0\.05"):
            calibration.threshold_at()


@pytest.mark.parametrize("name", ["distance", "false_accept_rate"])
@pytest.mark.parametrize("value", ["null", "true", '"0,5"', "NaN", "Infinity"])
def test_a_threshold_that_is_not_a_number_is_refused(tmp_path: Path, name: str, value: str) -> None:
    """It would name nobody, or everybody."""
    path = tmp_path / "edited.json"
    listing(0.01).write(path)
    record = json.loads(path.read_text())
    record["thresholds"][0][name] = "VALUE"
    path.write_text(json.dumps(record).replace('"VALUE"', value))
    with pytest.raises(CalibrationError, match=f"edited.json.*{name} of a threshold"):
        Calibration.read(path)
