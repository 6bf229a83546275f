"""Draw the pictures of docs/limits.md and print its numbers: where `tiny` recognizes an object, and where it fails.

    PYTHONPATH=benchmarks python benchmarks/world/draw_limits.py [docs/images]

A strip shows a reference, the same object under the change of that case, and an impostor: another object of its kind in
the reference's own context. A case fails for an object if the impostor is nearer than the object's image. All pictures
are rendered by VTK.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import pi
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric import IDSim
from idmetric.evaluate.protocols.common.baselines import hsv_vector
from world import Context, Take, World
from world.context import Occluder

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIDE, SEED, OBJECTS = 192, 41, 48
Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Scene:
    """A rendered object with its reference picture."""

    world: World
    number: int
    reference: Take

    def seen(self, **changes: object) -> Picture:
        """The object in the reference's context with changes."""
        context: Context = replace(self.reference.context, **changes)  # type: ignore[arg-type]  # names are checked by replace
        return self.world.render(self.reference.identity, context).picture

    def elsewhere(self) -> Context:
        """The context with another background and light."""
        return self.world.context_edit(self.reference).context

    def away(self, **changes: object) -> Picture:
        """The object in front of another background in another light, with changes."""
        there = self.elsewhere()
        return self.seen(background=there.background, light=there.light, **changes)

    def impostor(self, strength: float = 1.0) -> Take:
        """Another object of its kind in the reference's context; more similar below strength 1."""
        return self.world.near([self.reference], strength)[0]


def scene(number: int) -> Scene:
    """The object with this number, unoccluded and centered."""
    world = World(SEED, None, SIDE)
    [view] = world.views(number, 1)
    context = replace(
        view.context, occluders=(), repeat=0.0, scale=0.75, center=(0.5, 0.5), yaw=0.3, pitch=0.2, roll=0.0, angle=30.0,
        figure=None, blur=0.0, noise=0.0,
    )  # fmt: skip
    return Scene(world, number, replace(view, context=context, shot=world.render(view.identity, context)))


def hidden(one: Scene) -> Picture:
    """The object with its left half occluded."""
    return one.seen(occluders=(Occluder(0.0, 0.0, 0.5, 1.0, False, one.number),))


def together(one: Scene, other: Take) -> Picture:
    """The object on the left and the other one on the right."""
    left, right = (
        one.world.render(identity, replace(one.reference.context, scale=0.42, center=(x, 0.5))).picture
        for identity, x in ((one.reference.identity, 0.27), (other.identity, 0.73))
    )
    return np.concatenate([left[:, : SIDE // 2], right[:, SIDE // 2 :]], 1)


# case -> the image of the same object
CASES: dict[str, Callable[[Scene], Picture]] = {
    "background": lambda one: one.away(),
    "dusk": lambda one: one.seen(light=replace(one.reference.context.light, strength=0.25, color=(1.0, 0.75, 0.5))),
    "side": lambda one: one.seen(yaw=0.3 + pi / 2),
    "behind": lambda one: one.seen(yaw=0.3 + pi),
    "above": lambda one: one.seen(pitch=1.4),
    "turned": lambda one: one.seen(roll=pi),
    "mirrored": lambda one: one.reference.shot.picture[:, ::-1],
    "hidden": hidden,
    "part": lambda one: one.seen(scale=2.6),
    "small": lambda one: one.away(scale=0.14),
}


def strips(number: int) -> dict[str, list[Picture]]:
    """Pictures of each case: reference, the same object, impostor."""
    one = scene(number)
    reference, other = one.reference.shot.picture, one.impostor()
    made = {case: [reference, make(one), other.shot.picture] for case, make in CASES.items()}
    made["twin"] = [reference, made["background"][1], one.impostor(0.3).shot.picture]
    made["two"] = [reference, together(one, other), other.shot.picture]
    return made


def tiles(strip: Image.Image) -> list[Image.Image]:
    """Split a strip into its pictures."""
    side = strip.height
    return [strip.crop((x, 0, x + side, side)) for x in range(0, strip.width, side)]


def distances(metric: IDSim, pictures: list[Picture] | list[Image.Image]) -> dict[str, list[float]]:
    """Distances of the second and third picture from the first, by `tiny`'s two features and by a histogram."""
    images = [Image.fromarray(p) if isinstance(p, np.ndarray) else p for p in pictures]
    embedding = metric.embed(images)
    found = {name: metric(embedding[:1], embedding[1:], name).tolist() for name in ("cls", "patch")}
    first, *others = map(hsv_vector, images)
    return found | {"hsv": [float(1 - first @ other) for other in others]}


def save(pictures: list[Picture], path: Path) -> Image.Image:
    """Write a strip; returns the picture read from the written file."""
    Image.fromarray(np.concatenate(pictures, 1)).save(path, quality=88, method=6)
    with Image.open(path) as strip:
        return strip.convert("RGB")


def subject(metric: IDSim, strip: Image.Image) -> float:
    """Distance of the left half of a strip's second picture, selected by a mask."""
    reference, both, _ = tiles(strip)
    mask = Image.new("L", both.size)
    mask.paste(255, (0, 0, both.width // 2, both.height))
    return metric(reference, both, mask_b=mask, outside="crop").item()


def measure(metric: IDSim, folder: Path, objects: int) -> Iterator[str]:
    """Lines of both tables. A strip shows the first object for which the case fails, else the one of least margin."""
    found: dict[str, list[dict[str, list[float]]]] = {}
    chosen: dict[str, tuple[float, int, list[Picture]]] = {}
    for number in range(objects):
        for case, pictures in strips(number).items():
            scores = distances(metric, pictures)
            found.setdefault(case, []).append(scores)
            margin = max(scores["cls"][1] - scores["cls"][0], 0.0)  # the first failure stays
            if case not in chosen or margin < chosen[case][0]:
                chosen[case] = (margin, number, pictures)
    yield "| case | same object | impostor | impostor nearer: `cls` | `patch` | histogram |\n|---|---|---|---|---|---|"
    for case, rows in found.items():
        same, other = (np.mean([r["cls"][i] for r in rows]) for i in (0, 1))
        wrong = (100 * np.mean([r[name][1] < r[name][0] for r in rows]) for name in ("cls", "patch", "hsv"))
        yield f"| {case} | {same:.2f} | {other:.2f} | " + " | ".join(f"{x:.0f} %" for x in wrong) + " |"
    yield "\n| strip | object | the same | impostor |\n|---|---|---|---|"
    for case, (_, number, pictures) in chosen.items():
        strip = save(pictures, folder / f"limits-{case}.webp")
        same, other = distances(metric, tiles(strip))["cls"]
        yield f"| {case} | {number} | {same:.3f} | {other:.3f} |"
        if case == "two":
            yield f"| two, by a mask | {number} | {subject(metric, strip):.3f} | |"


def main(folder: Path = IMAGES, objects: int = OBJECTS) -> None:
    """Draw the strips and print the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    metric = IDSim("tiny", device="cpu")
    for line in measure(metric, folder, objects):
        print(line)


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]))
