"""benchmarks/states.py: the states of its composites are those of ideal distances, and its halves are disjoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import idmetric
from benchmarks import composites as planning
from benchmarks import states as benchmark
from benchmarks.composites import KINDS, Composite, Identity, Photo
from idmetric.metric.idsim import IDSim
from idmetric.scoring.calibration import calibration_of


def pool_of(looks: int, identities: int, photos: int) -> list[Identity]:
    """Identities with photos that do not exist."""
    pool = []
    for look in range(looks):
        for number in range(identities):
            name = f"{look}.{number}"
            files = tuple(Photo(Path(f"{name}/{photo}.jpg")) for photo in range(photos))
            pool.append(Identity(name, str(look), files))
    return pool


def ideal_distances(composite: Composite) -> np.ndarray:
    """.1 from a subject to the photos that show it, and .9 to all others."""
    distances = np.full((len(composite.subjects), len(composite.regions)), 0.9)
    for subject, name in enumerate(composite.subjects):
        for region, photo in enumerate(composite.regions):
            if name == photo.path.parent.name:
                distances[subject, region] = 0.1
    return distances


@pytest.mark.parametrize("photos", [4, 6, 8])
def test_the_states_are_those_of_ideal_distances(photos: int) -> None:
    plans = list(planning.composites(pool_of(4, 3, photos), 240, np.random.default_rng(0)))
    assert {plan.kind for plan in plans} == set(KINDS)
    for plan in plans:
        named = benchmark.assigned(ideal_distances(plan), [0.3] * len(plan.subjects)).states
        assert named == plan.states, plan


def test_no_composite_shows_a_reference() -> None:
    for plan in planning.composites(pool_of(4, 3, 8), 240, np.random.default_rng(1)):
        shown = {photo.path for photo in plan.regions}
        for references in plan.references:
            assert len(references) == 5
            assert shown.isdisjoint({photo.path for photo in references})


def test_halves_are_disjoint_and_both_have_look_alikes() -> None:
    first, second = planning.halves(pool_of(3, 4, 4), np.random.default_rng(2))
    assert len(first) == len(second) == 6
    names = {identity.name for identity in first}
    assert names.isdisjoint({identity.name for identity in second})
    for half in (first, second):
        assert sorted(identity.look for identity in half) == ["0", "0", "1", "1", "2", "2"]


def test_shares() -> None:
    """Two images: one all right, one with one of two states right."""
    plan = Composite("right", False, ("ann", "rex"), (), (), ("matched", "missing"))
    again = Composite("right", False, ("ben", "tom"), (), (), ("twice", "missing"))
    results = [
        benchmark.Verdict(plan, "ann", "matched", "matched"),
        benchmark.Verdict(plan, "rex", "missing", "missing"),
        benchmark.Verdict(again, "ben", "twice", "matched"),
        benchmark.Verdict(again, "tom", "missing", "missing"),
    ]
    assert benchmark.right_states(results).value == 0.75
    assert benchmark.right_images(results).value == 0.5


def test_distances_and_own_thresholds_are_those_of_match(photo_root: Path) -> None:
    tiny = IDSim("tiny")
    pool = planning.halves(planning.identities(photo_root), np.random.default_rng(0))[0]
    part = list(benchmark.measure(tiny, pool, photo_root, 3, seed=5))

    # the same composites, drawn again
    rng = np.random.default_rng(5)
    backgrounds = sorted((photo_root / "train" / "backgrounds").glob("*.jpg"))
    plans = list(planning.composites(pool, 3, rng))
    lowest = tuple(entry for entry in calibration_of(tiny).thresholds if entry["false_accept_rate"] == 0.001)
    near = replace(calibration_of(tiny), thresholds=lowest)  # own thresholds are larger
    for plan, measured in zip(plans, part, strict=True):
        picture, boxes = planning.draw(plan, backgrounds, rng)
        subjects = {}
        for name, references in zip(plan.subjects, plan.references, strict=True):
            subjects[name] = [photo.open()[0] for photo in references]
        result = idmetric.match(tiny, subjects, picture, boxes, threshold=near)
        nearest = result.distances.nan_to_num(9).amin(2)
        np.testing.assert_allclose(measured.distances, nearest[0].numpy(), atol=1e-5)
        for subject, limit in enumerate(result.limits.values()):
            assert limit is not None
            if limit.source == "own photos":
                assert measured.own_thresholds[subject] == pytest.approx(limit.distance, abs=1e-5)
            else:  # of fewer than five
                assert len(plan.references[subject]) < 5
                assert np.isnan(measured.own_thresholds[subject])
