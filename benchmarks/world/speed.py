"""How fast the procedural world renders, and how hard its distractors are.

    PYTHONPATH=benchmarks python benchmarks/world/speed.py [--identities 100] [--assets DATA/train] [--model tiny]

Prints pictures per second of one process, for rendering and for rendering and writing files. For comparison it times
VTK alone on the same objects, and ray casting by trimesh and Embree if they are installed (pip install trimesh
embreex) with the same meshes and samples, but only nearest hits and texture lookup. Then it prints SSR and PA (NearID,
section 3.4) of a color histogram, of raw pixels and of a model on three views and their distractors of graded strength.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from idmetric.evaluate.protocols.common.baselines import hsv_vector, pixel_vector
from idmetric.evaluate.statistics.margins import directed_margins, margin_rates
from idmetric.metric.models.load import load
from world import World
from world.context import turn
from world.render import FINER, Light, Part, Pose, renderer
from world.structures import Take
from world.write import WorldPlan, write_world

STRENGTHS = (1.0, 0.75, 0.5, 0.3)
SEED = 30  # of the measured world; `tiny` was trained and validated on seeds 0 to 4
POSE, LIGHT = Pose(turn(0.6, 0.3, 0.0), 0.75), Light((0.5, 0.7, 1.0))


def clock(work: Callable[[], int]) -> tuple[float, float]:
    """Pictures per second, by the wall clock and by processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = work()
    return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)


def shade(things: list[list[Part]], size: int) -> int:
    """Draw each object once with VTK."""
    for parts in things:
        renderer(size).draw(parts, POSE, LIGHT)
    return len(things)


def cast(things: list[list[Part]], size: int) -> int:
    """Find nearest hits and texture colors of each object by trimesh's Embree, at the same number of samples."""
    import trimesh

    ticks = (np.arange(size * FINER) + 0.5) / (size * FINER) - 0.5
    x, y = np.meshgrid(ticks, -ticks)
    far = 0.5 / np.tan(np.radians(POSE.angle) / 2)
    directions = np.stack([x.ravel(), y.ravel(), np.full(x.size, -far)], 1)
    for parts in things:
        points = np.concatenate([p.mesh.vertices @ POSE.rotation.T * POSE.scale for p in parts])
        offsets = np.cumsum([0, *(len(p.mesh.vertices) for p in parts[:-1])])
        faces = np.concatenate([p.mesh.faces + o for p, o in zip(parts, offsets, strict=True)])
        owner = np.repeat(np.arange(len(parts)), [len(p.mesh.faces) for p in parts])
        first = np.concatenate([np.arange(len(p.mesh.faces)) for p in parts])
        mesh = trimesh.Trimesh(points, faces, process=False)
        hit = mesh.ray.intersects_first(np.tile([0, 0, far], (len(directions), 1)), directions)
        colors = np.zeros((len(hit), 3), np.uint8)
        for k, part in enumerate(parts):
            mine = np.flatnonzero((hit >= 0) & (owner[hit] == k))
            uv = part.mesh.uv[first[hit[mine]]].mean(1) % 1
            height, width = part.texture.shape[:2]
            colors[mine] = part.texture[
                ((1 - uv[:, 1]) * (height - 1)).astype(int), (uv[:, 0] * (width - 1)).astype(int)
            ]
    return len(things)


def speed(assets: Path | None, count: int, size: int = 224) -> None:
    """Print pictures per second."""
    world = World(1, assets, size)

    def whole(first: int, last: int) -> int:
        done = 0
        for number in range(first, last):
            views = list(world.views(number, 3))
            done += len(views) + sum(len(world.near(views, s)) for s in (1.0, 0.5))
        return done

    whole(10_000, 10_008)  # load files, compile shaders
    print(f"{size} px, one process    wall      cpu  (pictures per second)")
    print("world, rendered     {:7.1f}  {:7.1f}".format(*clock(lambda: whole(0, count))))
    with tempfile.TemporaryDirectory() as folder:
        plan = WorldPlan(seed=1, size=size)
        rates = clock(lambda: len(write_world(Path(folder), plan, count, assets)))
    print("world, and written  {:7.1f}  {:7.1f}".format(*rates))
    things = [world.assets.build(world.identity(n)) for n in range(min(count, 60))]
    print("VTK, object alone   {:7.1f}  {:7.1f}".format(*clock(lambda: shade(things, size))))
    try:
        import embreex  # noqa: F401
        import trimesh  # noqa: F401
    except ImportError:
        print("trimesh and embreex are not installed")
        return
    print("Embree, flat color  {:7.1f}  {:7.1f}".format(*clock(lambda: cast(things, size))))


def hardness(assets: Path | None, count: int, source: str) -> None:
    """Print SSR and PA of simple features and of a model."""
    world = World(SEED, assets, 224)
    model = load(source)

    def embedded(takes: list[Take]) -> np.ndarray:
        rows = model.embed([t.shot.picture for t in takes]).cls.cpu().numpy()
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def of_pictures(vector: Callable[[Image.Image], np.ndarray]) -> Callable[[list[Take]], np.ndarray]:
        return lambda takes: np.stack([vector(Image.fromarray(take.shot.picture)) for take in takes])

    features = {"HSV histogram": of_pictures(hsv_vector), "32x32 pixels": of_pictures(pixel_vector), source: embedded}
    margins: dict[tuple[str, float], list[np.ndarray]] = {(f, s): [] for f in features for s in STRENGTHS}
    for number in range(count):
        views = list(world.views(number, 3))
        for strength in STRENGTHS:
            near = world.near(views, strength)
            for name, feature in features.items():
                both = feature([*views, *near])
                a, b = both[:3], both[3:]
                margins[name, strength].append(directed_margins(a @ a.T, (a * b).sum(1)))
    print(f"\nSSR / PA in percent, {count} objects, three views   " + "   ".join(f"{s:g}" for s in STRENGTHS))
    for name in features:
        rates = [margin_rates(margins[name, s]) for s in STRENGTHS]
        print(f"{name:20s}" + "  ".join(f"{100 * r.ssr:5.1f} / {100 * r.pa:4.1f}" for r in rates))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--identities", type=int, default=100)
    parser.add_argument("--assets", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--hardness", action="store_true", help="SSR and PA alone")
    options = parser.parse_args()
    if not options.hardness:
        speed(options.assets, options.identities)
    hardness(options.assets, options.identities, options.model)
