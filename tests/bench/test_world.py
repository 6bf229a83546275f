"""The procedural world: shapes, materials, rendering, identities and contexts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("vtkmodules", reason="rendering needs VTK: pip install vtk")

from world import Assets, Edit, Identity, World, render_scene
from world.assets import shared_assets
from world.context import Background, Context, Occluder, turn
from world.identity import ODDS, Blend, Dice
from world.materials import MATERIALS
from world.meshes import Mesh, ball, fit, load_obj, make_mesh
from world.render import Light, Part, Pose, renderer
from world.scene import names
from world.shapes import SHAPES

from idmetric.metric.images.read import ImageReadError

FRONT = Light((0, 0, 1), ambient=0.5)
SAME = np.eye(3, dtype=np.float32)
NONE = Assets(None)
PLAIN = Context(Background("studio", 1), 0.3, 0.2, 0.0, 0.7, (0.5, 0.5), 20.0, FRONT)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def assets(photo_root: Path) -> Assets:
    return shared_assets(photo_root / "train")


def quad() -> Mesh:
    vertices = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    return make_mesh(vertices, np.array([[0, 1, 2], [0, 2, 3]]), np.array([[0, 0], [1, 0], [1, 1], [0, 1]]))


def flat(*color: int) -> np.ndarray:
    return np.full((8, 8, 3), color, np.uint8)


# ---- rendering


def test_a_square_falls_where_the_pose_says() -> None:
    for scale, center in ((0.5, (0.5, 0.5)), (0.5, (0.25, 0.75)), (0.25, (0.75, 0.5))):
        pose = Pose(SAME, scale, center, 20.0)
        color, alpha = renderer(32).draw([Part("square", quad(), flat(200, 20, 20))], pose, FRONT)
        expected = np.zeros((32, 32))
        rows, columns = ((np.arange(32) + 0.5) / 32 - c for c in (center[1], center[0]))
        expected[np.ix_(np.abs(rows) < scale / 2, np.abs(columns) < scale / 2)] = 1
        np.testing.assert_allclose(alpha, expected, atol=0.01)
        assert color[alpha == 1].mean(0).argmax() == 0
        assert (color[alpha == 1][:, 0] > 2 * color[alpha == 1][:, 1]).all()


def test_a_ball_covers_what_a_pinhole_camera_sees_of_it() -> None:
    # half the angle of a ball of radius r at distance d: asin(r / d); its outline on the plane through its center
    for angle in (10.0, 40.0):
        distance = 0.5 / np.tan(np.radians(angle) / 2)
        radius = 0.4
        outline = distance * np.tan(np.arcsin(radius / distance))
        pose = Pose(SAME, 0.8, angle=angle)
        _, alpha = renderer(96).draw([Part("ball", ball(40, 60), flat(200, 200, 200))], pose, FRONT)
        assert alpha.sum() / 96**2 == pytest.approx(np.pi * outline**2, rel=0.01)


def test_textures_are_upright_and_not_mirrored() -> None:
    texture = np.zeros((64, 64, 3), np.uint8)
    texture[:32, :32] = (255, 0, 0)  # top left red
    texture[32:, 32:] = (0, 0, 255)  # bottom right blue
    color, alpha = renderer(32).draw([Part("square", quad(), texture)], Pose(SAME, 0.8), FRONT)
    assert alpha[16, 16] == 1
    assert color[8, 8].argmax() == 0
    assert color[8, 8, 0] > 0.5
    assert color[24, 24].argmax() == 2
    assert color[8, 24].max() < 0.5 * color[8, 8, 0]


def test_light_comes_from_where_it_says() -> None:
    for side in (-1, 1):
        color, alpha = renderer(48).draw(
            [Part("ball", ball(20, 30), flat(180, 180, 180), 0.9)],
            Pose(SAME, 0.8),
            Light((side * 2, 0, 1), ambient=0.2),
        )
        lit = color.mean(2) * alpha
        left, right = lit[:, :24].sum(), lit[:, 24:].sum()
        assert (right - left) * side > 0.2 * (left + right)


def test_part_masks_split_the_visible_object() -> None:
    parts = NONE.build(Identity("car", 3))
    pose = Pose(turn(0.7, 0.3, 0), 0.8)
    drawn = renderer(64)
    _, alpha = drawn.draw(parts, pose, FRONT)
    pieces = [drawn.regions(parts, pose, [name]) for name in names(parts)]
    np.testing.assert_allclose(np.sum(pieces, 0), alpha, atol=0.01)
    np.testing.assert_allclose(drawn.regions(parts, pose, names(parts)), alpha, atol=1e-6)
    assert sum(p.sum() > 5 for p in pieces) >= 3


def test_a_label_is_masked_as_it_is_drawn() -> None:
    region = np.zeros((64, 64), bool)
    region[16:32, 16:48] = True
    texture = np.where(region[..., None], np.uint8(255), np.uint8(0)) * np.ones(3, np.uint8)
    part = Part("square", quad(), texture, region=region)
    pose = Pose(turn(0.4, 0.2, 0.1), 0.8)
    mask = renderer(96).regions([part], pose, ["label"])
    color, alpha = renderer(96).draw([part], pose, FRONT)
    white = (color.mean(2) > 0.3) & (alpha > 0.5)
    assert ((mask > 0.5) == white).mean() > 0.99
    assert mask.sum() / alpha.sum() == pytest.approx(region.mean(), rel=0.1)
    assert renderer(96).regions([part], pose, ["square"]).sum() == pytest.approx(alpha.sum(), rel=1e-3)


# ---- things


@pytest.mark.parametrize("kind", sorted(k for k in ODDS if k not in ("mesh", "shape")))
def test_every_kind_shows_from_every_side(kind: str) -> None:
    for seed in range(2):
        parts = NONE.build(Identity(kind, seed))
        points = np.concatenate([p.mesh.vertices[p.mesh.faces.ravel()] for p in parts])
        assert np.abs(points).max() == pytest.approx(0.5, abs=1e-5)
        assert all(np.isfinite(p.mesh.normals).all() for p in parts)
        for yaw in (0.3, 2.0, 4.0):
            _, alpha = renderer(32).draw(parts, Pose(turn(yaw, 0.2, 0), 0.8), FRONT)
            assert 0.01 < alpha.mean() < 0.9


@pytest.mark.parametrize("name", sorted(MATERIALS))
def test_materials_are_textures_of_many_kinds(name: str) -> None:
    photos = [np.random.default_rng(1).integers(0, 256, (80, 90, 3), dtype=np.uint8)]
    made = [MATERIALS[name](Dice(seed), photos) for seed in range(4)]
    assert all(t.dtype == np.uint8 and t.ndim == 3 and t.shape[2] == 3 for t in made)
    assert len({t.tobytes() for t in made}) == 4
    assert made[0].tobytes() == MATERIALS[name](Dice(0), photos).tobytes()


def test_edits_of_a_design_are_nested() -> None:
    names_ = [f"choice {k}" for k in range(40)]
    weights = np.linspace(0, 1, 40)

    def redrawn(share: float) -> dict[str, float]:
        plain, edited = Dice(1), Dice(1, ((2, share),))
        values = {n: edited(n, w).random() for n, w in zip(names_, weights, strict=True)}
        return {n: v for n, v in values.items() if v != plain(n).random()}

    small, large, all_ = redrawn(0.3), redrawn(0.7), redrawn(1.0)
    assert set(small) < set(large) < set(all_) == set(names_)
    assert all(large[n] == v for n, v in small.items())
    assert redrawn(0.0) == {}
    assert names_[0] in small  # weight 0: always redrawn


def test_blended_shapes_move_between_two() -> None:
    a, b = (Blend(1, 2, amount).uniform(0, 1, 5) for amount in (0.0, 1.0))
    assert np.array_equal(a, np.random.default_rng(1).uniform(0, 1, 5))
    assert np.array_equal(b, np.random.default_rng(2).uniform(0, 1, 5))
    np.testing.assert_allclose(Blend(1, 2, 0.25).uniform(0, 1, 5), 0.75 * a + 0.25 * b)
    first = fit([s.mesh for s in SHAPES["teapot"](Blend(1, 2, 0.0))])
    half = fit([s.mesh for s in SHAPES["teapot"](Blend(1, 2, 0.5))])
    assert [len(m.faces) for m in first] == [len(m.faces) for m in half]  # the same topology


@pytest.mark.parametrize("what", ["color", "print", "shape", "all"])
def test_stronger_edits_change_more(what: str) -> None:
    changes = []
    for seed in range(8):
        thing = Identity(("box", "cup", "bottle", "bear", "garment", "bag", "fruit", "animal")[seed], seed)
        before = render_scene(thing, PLAIN, NONE, 48)
        row = []
        for strength in (0.0, 0.3, 1.0):
            after = render_scene(thing.edited(Edit(what, strength, 77)), PLAIN, NONE, 48)
            row.append(np.abs(after.picture.astype(int) - before.picture).mean())
        changes.append(row)
    mean = np.mean(changes, 0)
    assert mean[0] == 0
    assert mean[2] > 1.3 * mean[1] > 0.5


def test_a_part_edit_changes_that_part_alone() -> None:
    changed = 0
    for kind, part in (("cup", "handle"), ("bear", "head"), ("car", "wheels"), ("box", "label"), ("garment", "label")):
        for seed in range(4):
            thing = Identity(kind, seed)
            edited = thing.edited(Edit("part", 1.0, 9, part))
            context = replace(PLAIN, noise=0.0, blur=0.0)
            before, after = (render_scene(t, context, NONE, 96, part) for t in (thing, edited))
            assert after.part_mask is not None
            assert np.array_equal(before.mask, after.mask)
            difference = np.abs(before.picture.astype(int) - after.picture).max(2)
            grown = np.zeros_like(after.part_mask, bool)
            for rows in (-1, 0, 1):
                for columns in (-1, 0, 1):  # a mask is sharp, its edge in the picture is smoothed
                    grown |= np.roll(after.part_mask, (rows, columns), (0, 1)) > 0
            assert difference[~grown].max() <= 20  # seen at a slant, a texture is filtered over more than its label
            assert difference[~grown].mean() < 0.1
            changed += difference[after.part_mask > 0].mean() > 5 if (after.part_mask > 0).any() else 0
            assert after.oracle == 1 - (after.part_mask > 0).sum() / (after.mask > 0).sum()
    assert changed >= 12


def test_a_worn_garment_is_masked_without_its_figure() -> None:
    thing = Identity("garment", 4)
    worn = replace(PLAIN, figure=7, noise=0.0)
    shot = render_scene(thing, worn, NONE, 64)
    _, everything = renderer(64).draw(NONE.build(thing, 7), worn.pose, worn.light)
    assert 0.1 < (shot.mask > 0).sum() / (everything > 0.5).sum() < 0.9
    assert {p.name for p in NONE.build(thing, 7)} == {"cloth", "figure"}
    assert {p.name for p in NONE.build(thing)} == {"cloth"}


# ---- contexts


def test_an_occluder_hides_and_is_not_masked() -> None:
    cover = Occluder(0.0, 0.0, 0.5, 1.0, False, 5)
    open_, hidden = (render_scene(Identity("soap", 2), replace(PLAIN, occluders=o), NONE, 64) for o in ((), (cover,)))
    assert (open_.mask[:, :32] > 0).any()
    assert not (hidden.mask[:, :32] > 0).any()
    assert np.array_equal(hidden.mask[:, 32:], open_.mask[:, 32:])
    assert np.array_equal(hidden.picture[:, 32:], open_.picture[:, 32:])


def test_copies_on_a_shelf_count_as_the_thing() -> None:
    alone = render_scene(Identity("can", 1), replace(PLAIN, scale=0.4, yaw=0.0), NONE, 96, "rim")
    shelf = render_scene(Identity("can", 1), replace(PLAIN, scale=0.4, yaw=0.0, repeat=0.35), NONE, 96, "rim")
    assert shelf.coverage > 2 * alone.coverage
    assert alone.part_mask is not None
    assert shelf.part_mask is not None
    assert shelf.oracle == pytest.approx(alone.oracle, abs=0.05)  # the copies' parts count as well
    assert ((shelf.mask > 0) >= (shelf.part_mask > 0)).all()


# ---- assets


def test_assets_are_read_as_other_images_are(tmp_path: Path) -> None:
    (tmp_path / "backgrounds").mkdir()
    turned = Image.new("RGB", (40, 30), (9, 99, 200))
    exif = turned.getexif()
    exif[0x0112] = 6  # to be shown a quarter turned
    turned.save(tmp_path / "backgrounds" / "a.jpg", exif=exif)
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(tmp_path / "backgrounds" / "b.png")
    Image.fromarray(np.full((8, 8), 65535, np.uint16)).save(tmp_path / "backgrounds" / "c.png")
    (tmp_path / "backgrounds" / "d.png").write_bytes(b"no image")
    photos = Assets(tmp_path).photos
    assert photos[0].shape == (40, 30, 3)
    assert photos[1].min() == 255  # white shows through
    assert photos[2].min() == 255
    with pytest.raises(ImageReadError, match=r"d\.png"):
        photos[3]


# ---- meshes


def test_obj_files(tmp_path: Path) -> None:
    text = "v -1 -1 0\nv 1 -1 0\nv 1 1 0\nv -1 1 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"
    for name, faces in (
        ("quad", "f 1/1 2/2 3/3 4/4\n"),
        ("from the end", "f -4/-4 -3/-3 -2/-2 -1/-1\n"),
        ("with normals", "vn 0 0 1\nf 1/1/1 2/2/1 3/3/1 4/4/1\n"),
    ):
        (tmp_path / f"{name}.obj").write_text(text + faces)
        mesh = load_obj(tmp_path / f"{name}.obj")
        assert mesh is not None
        assert mesh.faces.shape == (2, 3)
        corners = mesh.vertices[mesh.faces]
        np.testing.assert_allclose(
            mesh.uv, corners[..., :2] + 0.5, atol=1e-6
        )  # the unit square shows the whole texture
        edges = corners[:, 1:, :2] - corners[:, :1, :2]
        np.testing.assert_allclose(np.linalg.det(edges), [1, 1], atol=1e-6)  # two halves, the same way round
        np.testing.assert_allclose(mesh.normals, np.broadcast_to([0, 0, 1], (2, 3, 3)), atol=1e-6)
    (tmp_path / "bare.obj").write_text("v 0 0 0\nv 2 0 0\nv 2 1 0\nf 1 2 3\n")
    bare = load_obj(tmp_path / "bare.obj")
    assert bare is not None
    np.testing.assert_allclose(bare.uv[0], [[0, 0], [1, 0], [1, 1]])
    (tmp_path / "empty.obj").write_text("")
    assert load_obj(tmp_path / "empty.obj") is None


def test_shading_is_smooth_across_a_seam_of_the_texture(tmp_path: Path) -> None:
    # two halves of a gently bent sheet; the middle points have other texture coordinates on either side
    text = "v -1 0 -0.1\nv 0 0 0\nv 1 0 -0.1\nv -1 1 -0.1\nv 0 1 0\nv 1 1 -0.1\n"
    text += "vt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"
    (tmp_path / "sheet.obj").write_text(text + "f 1/1 2/2 5/3 4/4\nf 2/1 3/2 6/3 5/4\n")
    mesh = load_obj(tmp_path / "sheet.obj")
    assert mesh is not None
    middle = np.abs(mesh.vertices[mesh.faces][..., 0]) < 1e-6
    assert middle.sum() == 6
    np.testing.assert_allclose(mesh.normals[middle], np.broadcast_to([0, 0, 1], (6, 3)), atol=0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="concerns Linux")
def test_rendering_without_opengl_says_what_to_install() -> None:
    code = (
        "import ctypes.util, os\n"
        "ctypes.util.find_library = lambda name: None\n"
        "for name in ('DISPLAY', 'VTK_DEFAULT_OPENGL_WINDOW'): os.environ.pop(name, None)\n"
        "from world import World\n"
        "next(World(0, None, 32).views(0, 1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=BENCHMARKS)
    assert done.returncode == 1
    assert "RuntimeError: no OpenGL to render with off screen: install Debian's libegl1" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="concerns Linux")
def test_a_forked_process_renders_the_same(tmp_path: Path) -> None:
    first = next(World(3, None, 32).views(4, 1)).shot.picture
    child = os.fork()
    if child == 0:
        try:
            np.save(tmp_path / "child.npy", next(World(3, None, 32).views(4, 1)).shot.picture)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert np.array_equal(np.load(tmp_path / "child.npy"), first)
