"""Queries: the nearest images, ranked again by patches, recognized or unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric import IDSim, ImageReadError
from idmetric.data.nearest import nearest, unit
from idmetric.gallery import Gallery, GalleryError
from idmetric.gallery.files import Vectors
from idmetric.gallery.search import shortlists
from idmetric.scoring.calibration import Calibration, CalibrationError, Isotonic
from tests.gallery.parts import files, flat, flip_a_byte, parts


def test_the_answer_is_that_of_measuring_all_distances(metric: IDSim, photos: Path, gallery: Gallery) -> None:
    queries = [flat(20), flat(21), photos / "a" / "3.png"]
    hits = gallery.query(queries, k=4).to_records()
    distances = metric.pairwise(queries, files(photos)).double()
    for number in range(3):
        order = distances[number].argsort()[:4]
        own = hits[4 * number : 4 * number + 4]
        assert [row["path"] for row in own] == [str(files(photos)[row]) for row in order]
        assert [row["rank"] for row in own] == [1, 2, 3, 4]
        np.testing.assert_allclose([row["distance"] for row in own], distances[number][order], atol=1e-6)
    assert hits[8]["path"] == hits[8]["query"]
    assert hits[8]["distance"] < 1e-6
    assert hits[8]["identity"] == "a"
    signature = {**metric.signature("cls"), "distance_name": "cls"}
    assert {name: hits[0][name] for name in ("model", "revision", "distance_name", "resolution")} == {
        name: signature[name] for name in ("model", "revision", "distance_name", "resolution")
    }


@pytest.mark.parametrize("rows", [1, 7, 500])
def test_nearest_rows_are_those_of_a_sort_of_all_cosines(rows: int) -> None:
    """Vectors of any length in several parts, in an order of their own, with ties."""
    rng = np.random.default_rng(rows)
    table = np.repeat(rng.normal(1, 1, size=(rows // 5 + 1, 16)), 5, 0)[:rows].astype(np.float32)
    queries = unit(np.concatenate([rng.normal(size=(20, 16)), table[:3], -table[:3]]))
    part = rng.integers(0, 3, rows)
    row = np.zeros(rows, int)
    arrays = []
    for number in range(3):
        here = rng.permutation(np.flatnonzero(part == number))
        row[here] = np.arange(len(here))
        arrays.append(table[here])
    vectors = Vectors(arrays, [], part, row, np.linalg.norm(table, axis=1).astype(np.float32))
    lists = shortlists(vectors, queries, 6, lambda query, row: row % 4 != 3, None)

    cosines = queries.astype(float) @ unit(table).astype(float).T
    wanted = np.flatnonzero(np.arange(rows) % 4 != 3)
    for query, hits in enumerate(lists):
        slow = sorted(wanted, key=lambda row: (-cosines[query, row].round(9), row))[:6]
        assert [row for row, _ in hits] == slow
        np.testing.assert_allclose([distance for _, distance in hits], 1 - cosines[query, slow], atol=1e-7)
    rows_found, _ = nearest(queries, unit(table), 1)
    assert rows_found[:, 0].tolist() == np.argsort(-cosines.round(9), axis=1, kind="stable")[:, 0].tolist()


@pytest.mark.parametrize("distance", ["patch", "joint"])
@pytest.mark.parametrize("kept", [False, True], ids=["embedded again", "kept"])
def test_a_rerank_sorts_the_shortlist_by_the_patch_distance(
    metric: IDSim, photos: Path, index: Path, distance: str, kept: bool
) -> None:
    gallery = Gallery(index, metric, patches=kept)
    gallery.build(photos)
    hits = gallery.query(flat(20), k=3, distance=distance, rerank=5).to_records()
    shortlist = metric.pairwise(flat(20), files(photos))[0].argsort()[:5]
    distances = metric.pairwise(flat(20), [files(photos)[row] for row in shortlist], distance)[0]
    order = distances.argsort()[:3]
    assert [row["path"] for row in hits] == [str(files(photos)[shortlist[row]]) for row in order]
    np.testing.assert_allclose([row["distance"] for row in hits], distances[order], atol=1e-5)
    assert hits[0]["distance_name"] == distance


def test_a_query_can_leave_itself_out(photos: Path, gallery: Gallery) -> None:
    own = files(photos)[2]
    hits = gallery.query(own, k=9, exclude_same=True)
    assert {row["path"] for row in hits} == set(map(str, files(photos))) - {str(own)}


def test_arguments_that_do_not_fit_are_refused(gallery: Gallery, metric: IDSim, index: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"distance": "joint"}, "rerank"), ({"distance": "joint", "rerank": 3}, "k=10"), ({"rerank": 30}, "distance"),
        ({"k": 0}, "k must"),
    ]  # fmt: skip
    for options, name in wrong:
        with pytest.raises(ValueError, match=name):
            gallery.query(flat(1), **options)
    with pytest.raises(ImageReadError, match="nowhere"):
        gallery.query("nowhere.png")
    with pytest.raises(ValueError, match="index"):
        Gallery(index, metric, index="annoy")


# Recognized or unknown


def calibration_for(metric: IDSim, *thresholds: tuple[float, float], **facts: Any) -> Calibration:
    listed = tuple({"false_accept_rate": rate, "distance": distance} for rate, distance in thresholds)
    curve = Isotonic((-3.0, 1.0), (0.01, 0.99))
    return Calibration(curve, metric.calibration_id(), "cls", thresholds=listed, **facts)


def test_strangers_are_unknown_by_the_calibration(metric: IDSim, photos: Path, gallery: Gallery) -> None:
    own, stranger = files(photos)[2], flat(40)
    far = gallery.query(stranger, k=1)[0]["distance"]
    calibration = calibration_for(metric, (0.01, far / 2), (0.1, 2 * far), data={"origin": "photos", "about": "lamps"})
    judged = Gallery(gallery.folder, metric, calibration=calibration)
    answer = judged.query([own, stranger], k=1)
    assert [row["answer"] for row in answer] == ["a", "unknown"]
    assert [row["probability"] for row in answer] == pytest.approx(
        [float(calibration.probability(row["distance"])) for row in answer]
    )
    assert {(row["threshold"], row["threshold_source"]) for row in answer} == {
        (far / 2, "given calibration, 1 % of pairs")
    }
    assert "lamps" in " ".join(answer.notes)  # what it was measured on
    with pytest.raises(CalibrationError):  # no threshold at 1 % or less
        Gallery(gallery.folder, metric, calibration=calibration_for(metric, (0.1, far))).query(own)
    with pytest.raises(CalibrationError):
        gallery.identities()
    without = gallery.query(stranger, k=1)
    assert "answer" not in without.columns
    assert any("calibrate" in note for note in without.notes)


def test_a_threshold_decides_instead_and_includes_its_distance(photos: Path, gallery: Gallery) -> None:
    far = gallery.query(flat(40), k=1)[0]
    for threshold, answer in ((far["distance"], far["identity"]), (far["distance"] / 2, "unknown")):
        [row] = gallery.query(flat(40), k=1, threshold=threshold)
        assert (row["answer"], row["threshold"], row["threshold_source"]) == (answer, threshold, "given")
    gallery.build(photos / "a" / "0.png")  # without identities
    assert gallery.query(flat(0), k=1, threshold=0.1)[0]["answer"] == "same"


# Damage and indexes


def test_a_hit_whose_vector_has_changed_is_no_hit(metric: IDSim, photos: Path, index: Path, gallery: Gallery) -> None:
    [part] = parts(index)
    flip_a_byte(part)  # of the last image's vector
    fresh = Gallery(index, metric)
    assert len(fresh.query(files(photos)[0], k=1)) == 1
    with pytest.raises(GalleryError, match=part.name):
        fresh.query(files(photos)[-1], k=1)


def test_an_index_finds_what_the_exact_search_finds(metric: IDSim, photos: Path, index: Path, gallery: Gallery) -> None:
    pytest.importorskip("faiss")
    for number in range(100, 160):
        flat(number).save(photos / f"{number}.png")
    gallery.build(photos)
    approximate = Gallery(index, metric, index="faiss")
    queries = files(photos)[:20]
    exact = gallery.query(queries, k=3).to_pandas()
    found = approximate.query(queries, k=3).to_pandas()
    shared = set(zip(exact["query"], exact["path"], strict=True)) & set(zip(found["query"], found["path"], strict=True))
    assert len(shared) >= 57
    [kept] = index.rglob("*.faiss")
    Gallery(index, metric, index="faiss").query(queries[0])
    assert [*index.rglob("*.faiss")] == [kept]
    approximate.build(photos / "a")
    assert len(approximate.query(queries[0], k=20)) == 5
    assert [*index.rglob("*.faiss")] != [kept]
