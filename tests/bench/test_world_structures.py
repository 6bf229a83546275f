"""What the world is made of for training and testing: views, distractors, edits, grids, and their files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vtkmodules", reason="rendering needs VTK: pip install vtk")

from world import FACTORS, LEVELS, STRENGTHS, World
from world.__main__ import main
from world.write import WorldPlan, takes, write_world

from idmetric.data.manifest.lineage import blocks
from idmetric.data.manifest.table import read

SIZE = 64


@pytest.fixture(scope="module")
def world() -> World:
    return World(5, None, SIZE)


def test_views_show_one_thing_in_different_contexts(world: World) -> None:
    for number in range(6):
        views = list(world.views(number, 3))
        assert len({v.key for v in views}) == 1
        assert len({v.identity for v in views}) == 1
        assert len({v.context.background for v in views}) == 3
        assert all(v.role == "real" and v.shot.coverage >= 0.02 for v in views)
    assert world.key(0) != world.key(1)


def test_pictures_follow_from_seed_and_number_alone(world: World) -> None:
    def drawn(of: World) -> list[np.ndarray]:
        views = list(of.views(5, 2))
        return [take.shot.picture for take in (*views, *of.near(views[:1], 0.5))]

    a = drawn(world)
    other = World(5, None, SIZE)
    list(other.views(1, 2))  # what was asked before does not matter
    assert all(np.array_equal(x, y) for x, y in zip(a, drawn(other), strict=True))
    assert not np.array_equal(a[0], drawn(World(6, None, SIZE))[0])
    views = list(world.views(3, 3))  # a distractor is one thing in all of them
    near = world.near(views, 0.5)
    assert len({n.identity for n in near}) == len({n.key for n in near}) == 1
    assert world.near(views, 0.5, copy=1)[0].identity != near[0].identity


def test_distractors_differ_in_the_thing_and_share_the_context(world: World) -> None:
    changes = []
    for number in range(12):
        view = next(world.views(number, 1))
        for strength in (1.0, 0.3):
            [near] = world.near([view], strength)
            assert near.context == view.context
            assert near.key != view.key
            assert near.parent == view.name
            assert near.role == "distractor"
            either = (view.shot.mask > 0) | (near.shot.mask > 0)
            change = np.abs(view.shot.picture.astype(int) - near.shot.picture).mean(2)
            changes.append((change[either].mean(), change[~either].mean()))
            assert near.change == pytest.approx(change[either].mean(), abs=1e-6)
    inside, outside = np.median(changes, 0)
    assert inside > 10
    assert outside < 0.1 * inside  # the shadow follows the silhouette


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.3, 0.5, 0.75, 1.0])
def test_a_distractor_shows_in_each_of_its_views(world: World, strength: float) -> None:
    """At least a tenth of the thing's pixels change by 16 of 255 or more: else no metric could tell it apart."""
    for number in range(20):
        views = list(world.views(number, 3))
        assert all(0.02 <= v.shot.coverage <= 0.85 for v in views)
        others = [*world.near(views, strength), world.identity_edit(views[0], strength)]
        for view, other in zip([*views, views[0]], others, strict=True):
            either = (view.shot.mask > 0) | (other.shot.mask > 0)
            moved = np.abs(view.shot.picture.astype(int) - other.shot.picture).max(2)[either]
            assert (moved >= 16).mean() >= 0.1, (number, view.name, other.name)


def test_part_edits_have_the_oracle_of_their_masks(world: World) -> None:
    found = 0
    for number in range(12):
        views = list(world.views(number, 2))
        for take in world.part_edit(views):
            found += 1
            assert take.shot.part_mask is not None
            part, whole = take.shot.part_mask > 0, take.shot.mask > 0
            assert (part <= whole).all()
            assert take.oracle == 1 - part.sum() / whole.sum()
            assert 0.3 <= take.oracle < 1
            view = next(v for v in views if v.name == take.parent)
            difference = np.abs(view.shot.picture.astype(int) - take.shot.picture).mean(2)
            assert difference[part].mean() > 5 * difference[~part].mean()
            assert take.role == "part-edit"
            assert take.key != view.key
    assert found >= 12


def test_a_context_edit_keeps_the_thing_and_its_pose(world: World) -> None:
    for number in range(5):
        view = next(world.views(number, 1))
        edit = world.context_edit(view)
        assert edit.identity == view.identity
        assert edit.key == view.key
        assert edit.context.background != view.context.background
        assert edit.context.light != view.context.light
        assert edit.context.pose.rotation.tolist() == view.context.pose.rotation.tolist()
        assert (edit.context.scale, edit.context.center) == (view.context.scale, view.context.center)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_grid_crosses_identity_with_one_factor(world: World, factor: str) -> None:
    takes = list(world.grid(2, [factor]))
    assert [t.about["factor"] for t in takes] == ["none"] * 6 + [factor] * 24
    cells = [(t.about["factor_change"], t.about["identity_change"]) for t in takes]
    assert cells == [(level, strength) for level in LEVELS for strength in STRENGTHS]
    assert [t.parent for t in takes] == [None, *[takes[0].name] * (len(takes) - 1)]
    assert len({t.key for t in takes}) == len(STRENGTHS)
    same = [t for t in takes if t.about["identity_change"] == 0]
    assert {t.key for t in same} == {world.key(2)}
    across = [np.abs(t.shot.picture.astype(int) - same[0].shot.picture).mean() for t in same]
    assert across[0] == 0
    assert min(across[1:]) > 0.3
    contexts = {level: [t.context for t in takes if t.about["factor_change"] == level] for level in LEVELS}
    assert all(len(set(c)) == 1 for c in contexts.values())
    plain = contexts[0.0][0]
    for level in LEVELS[1:]:
        differs = [n for n in ("background", "yaw", "light") if getattr(contexts[level][0], n) != getattr(plain, n)]
        assert differs == [{"background": "background", "viewpoint": "yaw", "light": "light"}[factor]]


@pytest.mark.slow
def test_one_name_means_one_thing_in_all_structures(world: World) -> None:
    plan = WorldPlan(seed=5, size=SIZE, views=2, parts=1, context_edits=1, identity_edits=2, grids=FACTORS)
    for number in range(2):
        things: dict[str, set[object]] = {}
        for take in takes(world, number, plan):
            things.setdefault(take.key, set()).add(take.identity)
        assert all(len(found) == 1 for found in things.values())


# ---- files

PLAN = WorldPlan(
    seed=2, size=32, views=2, strengths=(1.0, 0.5), parts=1, context_edits=1, identity_edits=1, grids=("light",)
)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, PLAN, 4)
    return folder


def test_the_manifest_tells_all_about_each_image(written: Path) -> None:
    manifest = read(written / "manifest.parquet")
    world = World(2, None, 32)
    rows = {r.id: r for r in manifest}
    assert {r.role for r in manifest} == {"real", "distractor", "part-edit", "context-edit", "identity-edit"}
    view = rows["world-2-000001/view-0"]
    assert view.identity == "world-2-000001"
    assert (view.category, view.domain) == (world.identity(1).kind, world.domain(1))
    assert view.background == world.context(1, 0).background.id
    near = rows["world-2-000001/view-0-near-0.50"]
    assert near.parent == view.id
    assert near.background == view.background
    assert near.parameters is not None
    assert near.parameters["strength"] == 0.5
    assert near.parameters["thing"]["edits"][0]["strength"] == 0.5
    assert near.parameters["change"] > 0
    for k, row in enumerate(manifest):
        picture = np.asarray(manifest.image(k))
        assert picture.shape == (32, 32, 3)
        mask = manifest.mask(k)
        assert mask is not None
        assert mask.shape == (32, 32)
        assert (row.part_mask is not None) == (row.role == "part-edit") == (row.oracle is not None)
        assert row.parent is None or row.parent in rows
    assert len(set(blocks(manifest))) == 4  # all that was made from a thing stays with it in a split
    grid = [r for r in manifest if r.group == "world-2-000003/grid"]
    assert len(grid) == len(LEVELS) * len(STRENGTHS)
    assert [r.slot for r in grid].count("anchor") == 1


def test_the_files_are_the_same_for_any_number_of_processes(written: Path, tmp_path: Path) -> None:
    write_world(tmp_path / "two", PLAN, 4, workers=2)
    one, two = contents(written), contents(tmp_path / "two")
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []


def test_more_identities_are_added_to_a_folder(written: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    write_world(tmp_path, PLAN, 2)
    manifest = write_world(tmp_path, PLAN, 4, done=seen.append)
    assert contents(tmp_path) == contents(written)
    assert sum(seen) == len(manifest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strengths": (0.0,)}, r"strengths \(0.0,\)"),
        ({"size": 4}, "16 pixels"),
        ({"grids": ("light", "light")}, "at most once"),
        ({"strengths": (0.5, 0.501)}, "differ by 0.01"),
    ],
)
def test_plans_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorldPlan(**change)  # type: ignore[arg-type]


def test_the_command_renders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    options = ["--out", str(folder), "-n", "2", "--size", "32", "--views", "2", "--quality", "100", "--quiet"]
    main(options)
    assert "12 images of 6 identities" in capsys.readouterr().out
    assert len(list(folder.glob("*/*/*.png"))) == 24  # images and masks, without loss
    assert json.loads((folder / "world.json").read_text())["plan"]["quality"] == 100
    with pytest.raises(ValueError, match="is not a folder"):
        main(["--out", str(folder), "--assets", str(tmp_path / "none")])
