from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from idmetric.data.world import Identity, World, render_scene, sample_context
from idmetric.data.world.materials import MATERIALS, shift_hue
from idmetric.data.world.meshes import Mesh, load_obj, make_mesh, simplify
from idmetric.data.world.render import Light, rasterize, render
from idmetric.data.world.scene import Assets, edit_identity
from idmetric.data.world.shapes import SHAPES

FRONT = Light(np.array([0, 0, 1], np.float32), np.ones(3, np.float32), 0.5, 0.0)
SAME = np.eye(3, dtype=np.float32)


def quad() -> Mesh:
    vertices = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    return make_mesh(vertices, np.array([[0, 1, 2], [0, 2, 3]]), np.array([[0, 0], [1, 0], [1, 1], [0, 1]]))


def slow_rasterize(screen: np.ndarray, faces: np.ndarray, size: int) -> np.ndarray:
    out = np.full((size, size), -1)
    depth = np.full((size, size), np.inf)
    for f, (a, b, c) in enumerate(screen[faces].astype(np.float64)):
        m = np.array([[a[0], b[0], c[0]], [a[1], b[1], c[1]], [1, 1, 1]])
        if abs(np.linalg.det(m)) < 1e-9:
            continue
        for row in range(size):
            for column in range(size):
                w = np.linalg.solve(m, [column + 0.5, row + 0.5, 1])
                z = w @ [a[2], b[2], c[2]]
                if (w >= 0).all() and z < depth[row, column]:
                    depth[row, column], out[row, column] = z, f
    return out


@pytest.mark.parametrize("seed", range(3))
def test_rasteriser_agrees_with_a_pixel_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    screen = rng.uniform(-4, 20, (18, 3)).astype(np.float32)
    faces = rng.integers(0, 18, (9, 3))
    index, weights = rasterize(screen, faces, 16, 16)
    assert (index == slow_rasterize(screen, faces, 16)).mean() > 0.99  # pixels on an edge may fall either way
    covered = index >= 0
    assert covered.any()
    points = (screen[faces[index[covered]]][..., :2] * weights[covered][..., None]).sum(1)
    rows, columns = np.nonzero(covered)
    np.testing.assert_allclose(points, np.stack([columns, rows], 1) + 0.5, atol=1e-2)


def test_the_nearer_triangle_hides_the_farther() -> None:
    screen = np.array([[0, 0, 5], [8, 0, 5], [0, 8, 5], [0, 0, 1], [4, 0, 1], [0, 4, 1]], np.float32)
    for faces in ([[0, 1, 2], [3, 4, 5]], [[3, 4, 5], [0, 1, 2]]):
        index, _ = rasterize(screen, np.array(faces), 8, 8)
        assert faces[index[0, 0]] == [3, 4, 5]
        assert faces[index[0, 6]] == [0, 1, 2]


def test_textures_are_upright_and_not_mirrored() -> None:
    texture = np.zeros((64, 64, 3), np.uint8)
    texture[:32, :32] = (255, 0, 0)  # top left red
    texture[32:, 32:] = (0, 0, 255)  # bottom right blue
    colour, alpha = render(quad(), texture, SAME, 0.8, (0.5, 0.5), FRONT, 32, 0.0)
    assert alpha[16, 16] == 1
    assert colour[8, 8].argmax() == 0
    assert colour[8, 8, 0] > 0.5
    assert colour[24, 24].argmax() == 2
    assert colour[8, 24].max() < 0.1


def test_a_red_thing_stays_red_in_white_light() -> None:
    texture = np.full((32, 32, 3), (200, 20, 20), np.uint8)
    colour, alpha = render(quad(), texture, SAME, 0.9, (0.5, 0.5), FRONT, 24)
    mean = colour[alpha == 1].mean(0)
    assert mean[0] > 5 * mean[1]
    assert mean[0] > 5 * mean[2]


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_every_shape_shows_from_every_side(kind: str) -> None:
    mesh = SHAPES[kind](np.random.default_rng(3))
    assert np.abs(mesh.vertices[mesh.faces]).max() <= 0.5 + 1e-5
    assert np.isfinite(mesh.normals).all()
    for angle in (0.3, 2.0, 4.0):
        c, s = np.cos(angle), np.sin(angle)
        turn = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]], np.float32)
        _, alpha = render(mesh, np.full((16, 16, 3), 200, np.uint8), turn, 0.8, (0.5, 0.5), FRONT, 32)
        assert 0.01 < alpha.mean() < 0.9


@pytest.mark.parametrize("name", sorted(MATERIALS))
def test_materials_are_textures_of_many_kinds(name: str) -> None:
    photos = [np.random.default_rng(1).integers(0, 256, (80, 90, 3), dtype=np.uint8)]
    made = [MATERIALS[name](np.random.default_rng(seed), photos) for seed in range(4)]
    assert all(t.dtype == np.uint8 and t.ndim == 3 and t.shape[2] == 3 for t in made)
    assert len({t.tobytes() for t in made}) == 4
    assert made[0].tobytes() == MATERIALS[name](np.random.default_rng(0), photos).tobytes()


def test_a_full_turn_of_hue_changes_nothing_much() -> None:
    red = np.full((4, 4, 3), (200, 10, 10), np.uint8)
    assert np.abs(shift_hue(red, 1.0).astype(int) - red).max() <= 3
    assert shift_hue(red, 1 / 3)[0, 0].argmax() == 1


def test_groups_follow_from_seed_and_number() -> None:
    a = World(3, None, 48).group(5, views=2, distractors=1)
    world = pickle.loads(pickle.dumps(World(3, None, 48)))
    world.group(1)  # what was asked before does not matter
    b = world.group(5, views=2, distractors=1)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not np.array_equal(a[0], World(4, None, 48).group(5, views=2)[0])
    assert [x.shape for x in a] == [(2, 48, 48, 3), (2, 48, 48), (1, 48, 48, 3)]


def test_distractors_differ_in_the_thing_and_share_the_context() -> None:
    world = World(0, None, 64)
    differences, outside = [], []
    for index in range(25):
        identity = world.identity(index)
        context = sample_context(np.random.default_rng(index), identity.kind, world.assets, 64)
        other = edit_identity(identity, np.random.default_rng(index), world.assets)
        (a, mask), (b, other_mask) = render_scene(identity, context, 64), render_scene(other, context, 64)
        either = (mask > 0) | (other_mask > 0)
        if not either.any():
            continue
        change = np.abs(a.astype(int) - b).mean(-1)
        differences.append(change[either].mean())
        if not context.blur and (~either).any():
            outside.append(change[~either].max())
    assert len(differences) > 20
    assert min(differences) > 0.5
    assert np.median(differences) > 10
    assert max(outside) == 0


def test_masks_cover_a_sane_area() -> None:
    world = World(1, None, 48)
    areas = [(world.group(i, views=2, distractors=0)[1] > 127).mean() for i in range(20)]
    assert 0.1 < np.mean(areas) < 0.8
    assert np.mean(np.array(areas) > 0.02) > 0.9


def test_obj_files(tmp_path: Path) -> None:
    text = "v -1 -1 0\nv 1 -1 0\nv 1 1 0\nv -1 1 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"
    variants = {
        "quad": "f 1/1 2/2 3/3 4/4\n",
        "back": "f -4/-4 -3/-3 -2/-2 -1/-1\n",
        "normals": "f 1/1/9 2/2/9 3/3/9\n",
    }
    (tmp_path / "quad.obj").write_text(text + variants["quad"])
    quad_mesh = load_obj(tmp_path / "quad.obj")
    assert quad_mesh is not None
    assert quad_mesh.faces.tolist() == [[0, 1, 2], [0, 2, 3]]
    np.testing.assert_allclose(quad_mesh.uv[1], [[0, 0], [1, 1], [0, 1]])
    (tmp_path / "back.obj").write_text(text + variants["back"])
    back = load_obj(tmp_path / "back.obj")
    assert back is not None
    assert np.array_equal(back.faces, quad_mesh.faces)
    assert np.array_equal(back.uv, quad_mesh.uv)
    (tmp_path / "bare.obj").write_text("v 0 0 0\nv 2 0 0\nv 2 1 0\nf 1 2 3\n")
    bare = load_obj(tmp_path / "bare.obj")
    assert bare is not None
    np.testing.assert_allclose(bare.uv[0], [[0, 0], [1, 0], [1, 1]])
    (tmp_path / "empty.obj").write_text("")
    assert load_obj(tmp_path / "empty.obj") is None


def test_simplified_meshes_look_the_same() -> None:
    rng = np.random.default_rng(0)
    t, p = np.meshgrid(np.linspace(0, np.pi, 90), np.linspace(0, 2 * np.pi, 90), indexing="ij")
    vertices = np.stack([np.sin(t) * np.cos(p), np.cos(t), np.sin(t) * np.sin(p)], -1).reshape(-1, 3)
    cell = (np.arange(89)[:, None] * 90 + np.arange(89)).ravel()
    faces = np.concatenate([np.stack([cell, cell + 1, cell + 91], 1), np.stack([cell, cell + 91, cell + 90], 1)])
    ball = make_mesh(vertices, faces, np.stack([p / 7, t / 4], -1).reshape(-1, 2))
    small = simplify(ball, 24)
    assert len(small.faces) < len(ball.faces) / 2
    texture = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
    pictures = [render(m, texture, SAME, 0.8, (0.5, 0.5), FRONT, 48) for m in (ball, small)]
    assert np.abs(pictures[0][1] - pictures[1][1]).mean() < 0.02
    both = (pictures[0][1] == 1) & (pictures[1][1] == 1)
    assert np.abs(pictures[0][0] - pictures[1][0])[both].mean() < 0.06


def test_given_meshes_and_photos_are_used(photo_root: Path) -> None:
    world = World(0, photo_root / "train", 48)
    assert len(world.assets.meshes) > 20
    assert len(world.assets.shapes) == 10
    assert len(world.assets.photos) > 100
    kinds = {world.identity(i).kind for i in range(80)}
    assert {"mesh", "shape", "garment", "animal"} <= kinds


def test_no_assets_means_procedural_things() -> None:
    world = World(0, None, 32)
    found: list[Identity] = [world.identity(i) for i in range(40)]
    assert {i.kind for i in found} <= set(SHAPES)
    assert Assets(None).photos == []
