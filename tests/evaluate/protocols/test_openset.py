"""The protocol `openset` against a slow computation, and the galleries and queries that it makes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame

from idmetric import IDSim
from idmetric.data.manifest import checked, merge, take
from idmetric.evaluate.protocols import openset
from idmetric.evaluate.protocols.common import ranked, scorers
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.openset import OpenSetOptions, run
from idmetric.scoring.calibration import CalibrationError, calibration_of
from tests.evaluate.protocols.parts import PLAIN, Drawn, Images, values
from tests.table_parts import a_row, a_table

SIZES = (6, 3, 2, 5, 1, 4, 7, 2)


@pytest.fixture
def split(draw: Images, tmp_path: Path) -> DataFrame:
    """A gallery of identities 0 to 4, and queries of identities 2 to 7; identity 4 is in the gallery alone."""
    rows = []
    for who, size in enumerate(SIZES):
        for number in range(size):
            part = "query" if who > 4 or (who in (2, 3) and number % 2) else "database"
            rows.append(a_row(f"i{who}", draw(who, number), split=part, dataset="herd"))
    rows.append(a_row("i3", draw(3, 0), id="leak", split="query", dataset="herd"))  # an image of the gallery
    rows.append(a_row("i1", draw(1, 0), split="query", id="same", dataset="herd"))
    rows = [row for row in rows if row["identity"] != "i1" or row["path"] == "1-0-0.png"]  # one image, in both
    rows.append(a_row(None, draw(99, 0), split="query", dataset="herd"))
    return a_table(rows, tmp_path)


def slow(result: Result, data: DataFrame, threshold: float) -> tuple[float, float, float]:
    """BAKS, BAUS and their geometric mean, by loops over all images."""
    x = Drawn(spread=1.6).of(data)
    rows = list(data.itertuples())
    gallery = [k for k, row in enumerate(rows) if row.split in openset.GALLERY and row.identity]
    shares: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    for q, row in enumerate(rows):
        if row.split not in openset.QUERY or row.identity is None:
            continue
        others = [g for g in gallery if rows[g].path != row.path]
        best = max(others, key=lambda g: x[q] @ x[g])
        known = any(rows[g].identity == row.identity for g in others)
        if not known and any(rows[g].identity == row.identity for g in gallery):
            continue
        named = round(float(x[q] @ x[best]), 6) >= threshold
        good = named and rows[best].identity == row.identity if known else not named
        shares[known].setdefault(row.identity, []).append(float(good))
    baks, baus = (float(np.mean([np.mean(v) for v in shares[known].values()])) for known in (True, False))
    return baks, baus, math.sqrt(baks * baus)


@pytest.mark.parametrize("cells", [2**24, 20])
def test_numbers_are_those_of_loops(split: DataFrame, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "_CELLS", cells)
    monkeypatch.setattr(ranked, "_FEWEST", 1)
    taus = (0.2, 0.5)
    settings = EvalSettings(bootstrap=60, workers=1)
    [result] = run(split, {"m": Drawn(spread=1.6)}, settings, OpenSetOptions(threshold=taus))
    for tau in taus:
        found = values(result, threshold=f"given {tau:g}")
        assert [found[k].value for k in ("BAKS", "BAUS", "score")] == pytest.approx(slow(result, split, tau))
        assert (found["tau"].value, found["BAKS"].count, found["BAUS"].count, found["score"].count) == (tau, 2, 3, 5)
    every = values(result, threshold="every")
    assert every["closed"].value == pytest.approx(slow(result, split, -9)[0])
    assert every["OSCR"].value <= every["closed"].value
    for row in (every, values(result, threshold="given 0.5")):
        for name in row.keys() - {"tau", "closed", "BAKS"}:
            assert 0 <= row[name].low <= row[name].value <= row[name].high <= 1  # type: ignore[operator]
        for name in row.keys() & {"closed", "BAKS"}:  # of two identities
            assert (row[name].low, row[name].high) == (None, None)

    oracle = values(result, threshold="oracle")
    assert oracle["score"].value == pytest.approx(slow(result, split, oracle["tau"].value)[2])
    assert oracle["score"].value >= max(values(result, threshold=f"given {t:g}")["score"].value for t in taus)
    assert all(v.low is None for v in oracle.values())  # not a result
    gallery, queries = "gallery of herd: 12 images of 5 identities", "queries: 4 images of 2 identities known"
    assert f"{gallery}; {queries}, 13 images of 3 identities unknown" in result.notes
    assert "1 queries of herd are the gallery's only image of their identity: left out" in result.notes
    assert "1 images of unstated identity are left out" in result.notes


def test_images_without_an_answer_are_not_the_nearest() -> None:
    class Judge:
        def matrix(self, rows: object, others: object) -> np.ndarray:
            return np.array([[0.2, np.nan, 0.9, 0.3], [np.nan, 0.1, np.nan, 0.8]])

    at = np.arange(6)
    search = ranked.Search(queries=at[:2], gallery=at[2:], identity=np.array([0, 1, 0, 1, 2, 3]), image=at)
    rows, scores = openset.nearest(Judge(), search)
    assert rows.tolist() == [4, 5]
    assert scores.tolist() == [0.9, 0.8]


# Galleries that are made


@pytest.fixture
def animals(draw: Images, tmp_path: Path) -> DataFrame:
    rows = [
        a_row(f"{name}{who}", draw(10 * k + who, number), dataset=name)
        for k, name in enumerate(("cats", "dogs")) for who, size in enumerate(SIZES) for number in range(size)
    ]  # fmt: skip
    rows.append(a_row("cats0", draw(0, 0), id="again", dataset="cats"))
    return a_table(rows, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_known_identities_are_halved_and_unknown_ones_are_queries(animals: DataFrame, seed: int) -> None:
    searches, notes = openset._searches(animals, OpenSetOptions(unknown=0.25), seed)
    identity, path = np.array(animals["identity"].tolist()), np.array(animals["path"].tolist())
    for name, search in searches.items():
        own = [k for k, one in enumerate(identity) if one.startswith(name)]
        assert sorted([*search.gallery, *search.queries]) == own
        assert not set(path[search.gallery]) & set(path[search.queries])
        unknown = set(identity[search.queries]) - set(identity[search.gallery])
        assert len(unknown) == 2
        for one in set(identity[own]) - unknown:
            images = set(path[identity == one])
            in_gallery = set(path[search.gallery][identity[search.gallery] == one])
            assert len(in_gallery) == (len(images) + 1) // 2
        alone = [k for k in own if (identity == identity[k]).sum() == 1 and identity[k] not in unknown]
        assert [f"1 known identities of {name} have a single image" in note for note in notes].count(True) == len(alone)
    again = openset._searches(animals, OpenSetOptions(unknown=0.25), seed)[0]
    assert all((again[name].gallery == search.gallery).all() for name, search in searches.items())


def test_datasets_are_averaged_as_the_challenge_does(animals: DataFrame) -> None:
    [result] = run(animals, {"m": Drawn(spread=1.6)}, PLAIN, OpenSetOptions(0.5, (0.5,)))
    for threshold, metric in (("given 0.5", "score"), ("every", "OSCR"), ("oracle", "score")):
        own = [values(result, dataset=d, threshold=threshold)[metric].value for d in ("cats", "dogs")]
        mean = values(result, dataset="mean", threshold=threshold)
        assert mean[metric].value == pytest.approx(np.mean(own))
        assert ("tau" in mean) == (threshold == "given 0.5")


def test_a_closed_set_has_no_unknown_numbers(animals: DataFrame) -> None:
    [result] = run(animals, {"m": Drawn()}, PLAIN, OpenSetOptions(0, (0.5,)))
    assert {str(row["threshold"]) for row in result.rows} == {"every", "given 0.5"}
    assert set(values(result, dataset="cats", threshold="every")) == {"closed"}
    assert set(values(result, dataset="cats", threshold="given 0.5")) == {"tau", "BAKS"}
    assert "no unknown identities of cats: a closed set, without AUC, OSCR, BAUS, score and oracle" in result.notes


def test_a_gallery_that_knows_no_query_is_an_error(split: DataFrame) -> None:
    strangers = take(split, (split["split"] == "gallery") | split["identity"].isin(("i5", "i6", None)))
    with pytest.raises(ValueError, match=r"no query shows an identity of the gallery.*--unknown 0\.5"):
        run(strangers, {"m": Drawn()}, PLAIN)
    with pytest.raises(ValueError, match="below 1"):
        OpenSetOptions(1.0)
    with pytest.raises(ValueError, match="--threshold nan"):
        run(split, {"m": Drawn()}, PLAIN, OpenSetOptions(threshold=(0.5, math.nan)))


def test_a_dataset_without_known_queries_is_left_out(split: DataFrame, draw: Images) -> None:
    lone = a_table([a_row("x", draw(50, 0), split="train", dataset="lone")], draw.folder)
    whole = merge([split, lone])
    [result] = run(whole, {"m": Drawn()}, PLAIN)
    assert {row["dataset"] for row in result.rows} == {"herd"}
    assert "no query of lone shows an identity of the gallery: left out" in result.notes


# Thresholds


def test_thresholds_come_from_the_calibration(split: DataFrame, tmp_path: Path) -> None:
    tiny = IDSim("tiny", device="cpu")
    own = calibration_of(tiny)
    assert own is not None
    distance = {t["false_accept_rate"]: t["distance"] for t in own.thresholds}
    few = take(split, range(8))
    [result] = run(few, {"m": tiny}, PLAIN, OpenSetOptions(unknown=0.3))
    assert values(result, threshold="0.01 of pairs")["tau"].value == pytest.approx(1 - distance[0.01])
    labels = {row["threshold"] for row in result.rows if "tau" in row}
    assert labels == {"0.01 of pairs", "oracle"}
    note = f"threshold 0.01 of pairs: similarity {1 - distance[0.01]:.3f} (stored calibration, 1 % of pairs"
    assert note + ")" in result.notes

    replace(own, thresholds=({"false_accept_rate": 0.2, "distance": 0.6},)).write(tmp_path / "c.json")
    threshold = scorers.calibrated(tiny, PLAIN, tmp_path / "c.json", 0.2)
    assert threshold is not None
    assert threshold.distance == 0.6
    with pytest.raises(CalibrationError, match=r"--rates 0\.01"):
        run(few, {"m": tiny}, PLAIN, OpenSetOptions(0.3, calibration=tmp_path / "c.json"))
    with pytest.raises(CalibrationError, match="made for the distance 'cls'"):
        scorers.calibrated(tiny, replace(PLAIN, distance="patch"), tmp_path / "c.json", 0.2)
    assert scorers.calibrated(tiny, replace(PLAIN, distance="patch")) is None
    assert scorers.calibrated(Drawn(), PLAIN, tmp_path / "c.json") is None


def test_capitals_of_splits_are_no_reason_to_draw_one(split: DataFrame) -> None:
    """Splits Query and Database give the numbers of query and gallery; other names are drawn from with a note."""
    words = ["Query" if name == "query" else "DATABASE" for name in split["split"].tolist()]
    [expected] = run(split, {"m": Drawn()}, PLAIN)
    [result] = run(checked(split.assign(split=words)), {"m": Drawn()}, PLAIN)
    assert result.rows == expected.rows
    assert not any("drawn" in note for note in result.notes)

    [drawn] = run(checked(split.assign(split="fold 1")), {"m": Drawn()}, PLAIN)
    assert "the splits 'fold 1' are not a gallery and its queries, which were drawn by chance" in drawn.notes
    words = ["Query" if name == "query" else "Galerie" for name in split["split"].tolist()]
    with pytest.raises(ValueError, match=r"'Galerie', 'query' are not a gallery \(gallery, train\)"):
        run(checked(split.assign(split=words)), {"m": Drawn()}, PLAIN)
