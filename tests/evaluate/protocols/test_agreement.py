"""Models against the labels of people (ID-Sim, appendix D.2; NIGHTS)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pandas import DataFrame
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from idmetric.data.manifest import checked, take
from idmetric.evaluate.protocols.agreement import AgreementOptions, owners, run
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from tests.evaluate.protocols.parts import PLAIN, Scripted, picture, values
from tests.table_parts import a_row, a_table

PEOPLE = [f"{k:016x}" for k in range(1, 12)]
NASTY = "<img src=x onerror=alert(1)>&'\""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Twelve subjects of two categories: three views each, and a distractor of the first."""
    root = tmp_path_factory.mktemp("study")
    rows = []
    for k in range(12):
        about: dict[str, Any] = {"dataset": "d", "category": "cup" if k % 2 else "cat"}
        for view in range(3):
            rows.append(a_row(f"s{k}", picture(root / f"secret-{k}-{view}.png", k, view), id=f"{k}/{view}", **about))
        near = picture(root / f"secret-{k}-near.png", 100 + k)
        rows.append(a_row(f"s{k}~", near, id=f"{k}/near", role="distractor", parent=f"{k}/0", **about))
    return a_table(rows, root)


# Models against people


def labeled(data: DataFrame, shares: list[float | None]) -> DataFrame:
    """Pairs of subject 0's first image with other images, labeled."""
    rows = [row for k in range(len(shares)) for row in (4 * (k % 12), (4 * (k % 12) + 4 * (k % 3) + 1) % 48)]
    label = [x for share in shares for x in (None, share)]
    pairs = take(data, rows).assign(
        id=[f"{k // 2}/{k % 2}" for k in range(len(rows))], group=[str(k // 2) for k in range(len(rows))],
        slot=["anchor", "candidate"] * len(shares), label=label,
    )  # fmt: skip
    return checked(pairs)


SHARES: list[float | None] = [1, 0.8, 0.79, 0.5, 0.2, 0.21, 0, 1, 0.9, 0.1, 0, 0.4]
SCORES = np.random.default_rng(3).permutation(np.r_[np.linspace(0, 1, 11), 0.5])


def judge(data: DataFrame, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([SCORES[int(data["group"][row]) % 12] for row in b])


@pytest.mark.parametrize("undecided", ["drop", "different"])
def test_a_model_is_measured_against_labels_and_shares(data: DataFrame, undecided: Any) -> None:
    [result] = run(labeled(data, SHARES), {"m": Scripted(judge)}, PLAIN, AgreementOptions(undecided=undecided))
    found = {k: (v.value, v.count) for k, v in values(result, task="pairs").items()}
    share = np.array(SHARES, dtype=float)
    kept = np.array([x >= 0.8 or x <= 0.2 or undecided == "different" for x in SHARES if x is not None])
    same = share >= 0.8
    assert kept.sum() == (8 if undecided == "drop" else 12)
    assert found["AP"] == (pytest.approx(average_precision_score(same[kept], SCORES[kept])), kept.sum())
    assert found["AUC"] == (pytest.approx(roc_auc_score(same[kept], SCORES[kept])), kept.sum())
    assert found["Spearman"] == (pytest.approx(stats.spearmanr(SCORES, share).statistic), 12)
    assert found["Kendall"] == (pytest.approx(stats.kendalltau(SCORES, share).statistic), 12)
    [note] = [n for n in result.notes if "4 of 12 pairs" in n]
    assert ("count as different" in note) == (undecided == "different")
    assert len(result.items["pairs"]["score"]) == kept.sum()
    assert result.items["votes"]["share"] == SHARES


def test_2afc_is_the_share_of_agreed_triplets_with_peoples_choice(data: DataFrame) -> None:
    shares = [1.0, 0.0, 0.9, 0.6, 0.1, 0.8]
    rows = [row for k in range(6) for row in (4 * k, 4 * k + 1, 4 * k + 6)]
    triplets = take(data, rows).assign(
        id=[str(k) for k in range(18)], group=[str(k // 3) for k in range(18)],
        slot=["anchor", "left", "right"] * 6, label=[x for p in shares for x in (None, p, 1 - p)],
    )  # fmt: skip
    margin = np.array([0.1, -0.1, -0.1, 0.3, 0.2, 0.0])  # left less right: right, right, wrong, undecided, wrong, a tie

    def scores(data: DataFrame, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        left = np.array([data["slot"][row] == "left" for row in b])
        return np.where(left, margin / 2, -margin / 2)

    triplets = checked(triplets)
    [result] = run(triplets, {"m": Scripted(scores)}, PLAIN)
    value = values(result, task="triplets")["2AFC"]
    assert (value.value, value.count) == (2 / 5, 5)
    nights = checked(triplets.assign(identity=None))  # whose images have no identities
    assert values(run(nights, {"m": Scripted(scores)}, PLAIN)[0], task="triplets")["2AFC"].value == 2 / 5
    assert result.items["triplets"]["margin"] == pytest.approx([0.1, 0.1, -0.1, 0.3, -0.2, 0])


def test_pairs_without_an_answer_are_left_out(data: DataFrame) -> None:
    def silent(data: DataFrame, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found = judge(data, a, b)
        found[:2] = np.nan
        return found

    [result] = run(labeled(data, SHARES), {"m": Scripted(silent)}, PLAIN)
    assert values(result, task="pairs")["Spearman"].count == 10
    assert "pairs: 2 of 12 comparisons have no answer and are left out" in result.notes
    with pytest.raises(ValueError, match="pairs: none of 12 comparisons has an answer"):
        run(labeled(data, SHARES), {"m": Scripted(lambda d, a, b: np.full(len(a), np.nan))}, PLAIN)


def test_intervals_draw_identities(data: DataFrame) -> None:
    [result] = run(labeled(data, SHARES * 3), {"m": Scripted(judge)}, EvalSettings(bootstrap=40))
    found = values(result, task="pairs")
    assert all(v.low is not None and v.high is not None and v.low < v.value < v.high for v in found.values())
    pairs = np.array([[0, 5], [1, 2], [4, 9]])
    assert (owners(data, pairs)[1, 0] == owners(data, pairs)[1, 1]).all()
    assert owners(data, pairs)[0, 1] == owners(data, pairs)[2, 0]
    unknown = checked(data.assign(identity=data["identity"].where(~data.index.isin([0, 5]), None)))
    (a, b), *_ = owners(unknown, pairs)
    assert a == b  # both images are of unknown identity: they count together
    assert owners(unknown, np.array([[0, 1, 9], [4, 5, 9]])).shape == (2,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "no labeled pairs or triplets"),
        ({"slot": "candidate"}, "a second candidate of group '0'"),
        ({"label": 1.5}, "row 2: label 1.5 is not a share of votes"),
    ],
)
def test_data_without_labels_is_refused(data: DataFrame, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(checked(labeled(data, [1, 0]).assign(**change)), {"m": Scripted(judge)}, PLAIN)
