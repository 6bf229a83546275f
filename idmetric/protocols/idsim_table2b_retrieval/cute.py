"""CUTE's triplets (ID-Sim, appendix D.1, after DiffSim): which of two images shows the anchor's object?

For each object ten times: a positive (the same object) and a negative (another object of its category) from one scene,
which is drawn at random. Easy: the anchor is another image of that scene. Hard: the anchor is from another scene of the
object, whenever it has one.

DiffSim's released code is the easy mode: 180 objects x 10 = 1,800 triplets. ID-Sim describes the hard mode in that
sentence alone. The draws are not published; here a triplet follows from (seed, object, number).
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.random import Generator

from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.arrays import Ints

Mode = Literal["easy", "hard"]
MODES: tuple[Mode, ...] = ("easy", "hard")
Scenes = dict[str, list[int]]  # scene -> rows
T = TypeVar("T")


def draw(data: Manifest, rows: Ints, mode: Mode, *, per_object: int = 10, seed: int = 0) -> tuple[Ints, list[str]]:
    """Triplets (T, 3) of rows (anchor, positive, negative), and the objects that allow none.

    Args:
        data: with the columns identity, category and background (the scene), as `idmetric data import cute` writes it.
        rows: the rows of CUTE.
    """
    objects, category = _objects(data, rows)
    friends: dict[str | None, list[str]] = defaultdict(list)
    for name in objects:
        friends[category[name]].append(name)
    found: list[tuple[int, int, int]] = []
    without = []

    for name in objects:
        others = [objects[other] for other in friends[category[name]] if other != name]
        shared = _shared(objects[name], others, mode)
        if not shared:
            without.append(name)
        for k in range(per_object if shared else 0):
            rng = np.random.default_rng([seed, zlib.crc32(name.encode()), MODES.index(mode), k])
            found.append(_triplet(rng, objects[name], others, shared, mode))

    return np.array(found, dtype=np.int64).reshape(-1, 3), without


def _objects(data: Manifest, rows: Ints) -> tuple[dict[str, Scenes], dict[str, str | None]]:
    """Object -> scene -> rows, each image once, all sorted; and each object's category."""
    identity, scene, kind = (data.column(name) for name in ("identity", "background", "category"))
    keys, names, seen = image_keys(data), data.column("id"), set()
    objects: dict[str, Scenes] = {}
    category: dict[str, str | None] = {}

    for row in sorted(rows.tolist(), key=lambda r: names[r]):
        if identity[row] is None or scene[row] is None or (identity[row], keys[row]) in seen:
            continue
        seen.add((identity[row], keys[row]))
        objects.setdefault(identity[row], {}).setdefault(scene[row], []).append(row)
        category[identity[row]] = kind[row]

    return {name: dict(sorted(objects[name].items())) for name in sorted(objects)}, category


def _shared(own: Scenes, others: Sequence[Scenes], mode: Mode) -> list[str]:
    """Scenes that a positive and a negative can be drawn from, so that there is an anchor too."""
    elsewhere = mode == "hard" and len(own) > 1
    return [s for s, rows in own.items() if (elsewhere or len(rows) > 1) and any(s in o for o in others)]


def _triplet(
    rng: Generator, own: Scenes, others: Sequence[Scenes], shared: Sequence[str], mode: Mode
) -> tuple[int, int, int]:
    scene = _one(rng, shared)
    if mode == "hard" and len(own) > 1:
        positive = _one(rng, own[scene])
        anchor = _one(rng, own[_one(rng, [s for s in own if s != scene])])
    else:
        anchor, positive = (own[scene][int(k)] for k in rng.choice(len(own[scene]), 2, replace=False))
    other = _one(rng, [o for o in others if scene in o])
    return anchor, positive, _one(rng, other[scene])


def _one(rng: Generator, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]
