"""The bench of the procedural world: distractors by strength, part edits, edit grids."""

from __future__ import annotations

import pytest

pytest.importorskip("vtkmodules", reason="rendering needs VTK: pip install vtk")

from world import protocol
from world.protocol import WorldOptions

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from tests.evaluate.protocols.test_protocols import values


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    pytest.importorskip("vtk")
    options = WorldOptions(world_seed=3, size=48, identities=3, grids=2, strengths=(1.0, 0.3))
    place = tmp_path_factory.mktemp("bench")
    first = protocol.bench(place, options)
    told: list[tuple[int, int]] = []
    again = protocol.bench(place, options, lambda done, total: told.append((done, total)))
    assert again.table.equals(first.table)
    assert told[-1][0] <= told[-1][1]
    return first


def test_the_world_s_bench_has_all_its_rows(rendered: Manifest) -> None:
    results = protocol.run(
        rendered, {"hsv": open_model("hsv"), "pixels": open_model("pixels")}, EvalSettings(bootstrap=20)
    )
    for result in results:
        assert [(row["bench"], row["which"]) for row in result.rows] == [
            ("distractors", "strength 1.00"), ("distractors", "strength 0.30"), ("distractors", "all"),
            ("part edits", "all"), ("sensitivity", "background"), ("sensitivity", "viewpoint"),
            ("sensitivity", "light"),
        ]  # fmt: skip
        assert values(result, which="strength 1.00")["PA"].count == 3 * 6
        assert {"SSR", "PA", "M-O", "M-O-pair"} <= set(values(result, bench="part edits"))
        bootstrapped = {"identity resampled", "identity SD", "context resampled", "context SD"}
        assert set(values(result, which="light")) == {"identity", "context", "R^2", *bootstrapped}
        assert values(result, which="light")["R^2"].count == 2
        assert set(result.items) == {"margins", "parts", "grid"}


def test_edit_grids_are_no_views_of_the_margins(rendered: Manifest) -> None:
    near, parts = protocol._samples(rendered)
    roles, names = rendered.column("role"), rendered.column("id")
    for samples in (near, parts):
        assert all("grid" not in names[row] for row in samples.views.ravel() if row >= 0)
        assert all(roles[row] in ("distractor", "part-edit") for row in samples.made.ravel() if row >= 0)
        for views, made in zip(samples.views, samples.made, strict=True):
            for view, row in zip(views, made, strict=True):
                assert row < 0 or rendered.column("parent")[row] == names[view]
