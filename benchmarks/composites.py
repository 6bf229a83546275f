"""Composites of photos that show two or three subjects, and the state that each subject has in them.

    for_choosing, for_reporting = halves(identities(DATA), rng)
    for composite in composites(for_choosing, 600, rng):
        picture, boxes = draw(composite, backgrounds, rng)

A composite is a landscape with photos in quarters of it. The first of its subjects is

- right, look-alikes: there once, as all others are
- replaced: a stranger is there instead
- missing: not there
- twice: in two photos; in half of the composites one of them takes the place of the second subject

The first two subjects look alike in half of the composites, in those of the kind "look-alikes" always; so do the
replaced subject and the stranger in half of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageOps

from idmetric.data.manifest import read, take
from idmetric.matching.assignment import State

KINDS = ("right", "look-alikes", "replaced", "missing", "twice")
SIDE = 640  # pixels of a composite
PHOTO_SIDE = (0.7, 0.95)  # the longer side of a photo, as a part of its quarter
JITTER = 0.05  # each edge of a box lies off by up to this part of the box's side
MOST_REFERENCES = 5
FEWEST_PHOTOS = 4  # of a subject
Box = tuple[int, int, int, int]

DATASETS = ("subjects", "concepts", "products", "places", "grocery", "eth80")
# look-alikes among the everyday subjects; of packages they are those of a brand, of toys those of a category
LOOKS = {
    "dog": ("dog", "dog3", "concepts_weimaraner"),
    "cat": ("cat", "concepts_kitten"),
    "soft toy": ("bear_plushie", "monster_toy"),
    "toy vehicle": ("rc_car", "scenes_kitchen"),
    "vessel": ("vase", "concepts_pot"),
    "statue": ("concepts_sculpture", "scenes_statue"),
    "tower": ("concepts_castle", "concepts_lighthouse"),
}
NOT_PERSONALIZED = ("koe", "scenes_british", "eth80_1", "eth80_7", "eth80_8")  # rooms, a museum, fruit, tomatoes


@dataclass(frozen=True)
class Photo:
    """A photo, or what is in the box of its mask."""

    path: Path
    mask: Path | None = None
    is_mirrored: bool = False

    def open(self) -> tuple[Image.Image, Image.Image]:
        """Pixels and mask; without a mask, all of the photo is white in it."""
        pixels = Image.open(self.path).convert("RGB")
        mask = Image.new("L", pixels.size, 255)
        if self.mask is not None:
            mask = Image.open(self.mask).convert("L").point(lambda value: 255 * (value > 127))
            box = mask.getbbox()
            pixels, mask = pixels.crop(box), mask.crop(box)
        if self.is_mirrored:
            pixels, mask = ImageOps.mirror(pixels), ImageOps.mirror(mask)
        return pixels, mask


@dataclass(frozen=True)
class Identity:
    """A subject or a stranger; identities of one look are look-alikes."""

    name: str
    look: str
    photos: tuple[Photo, ...]


@dataclass(frozen=True)
class Composite:
    """The plan of a composite.

    Attributes:
        kind: one of `KINDS`. has_look_alikes: whether the first two subjects look alike.
        subjects: names. references: the photos of each.
        regions: the photo in each region. states: of each subject.
    """

    kind: str
    has_look_alikes: bool
    subjects: tuple[str, ...]
    references: tuple[tuple[Photo, ...], ...]
    regions: tuple[Photo, ...]
    states: tuple[State, ...]


# Subjects


def identities(data: Path) -> list[Identity]:
    """The subjects with photos enough, of kinds that people personalize; `tiny` was trained on none of them."""
    table = read(data / "manifest.csv")
    photos: dict[str, list[Photo]] = {}
    for dataset in DATASETS:
        for row in take(table, table["dataset"] == dataset).itertuples():
            mask = Path(row.mask) if row.mask else None
            photos.setdefault(row.identity, []).append(Photo(Path(row.path), mask))
    pool = []
    for name, photos_of_name in photos.items():
        if len(photos_of_name) >= FEWEST_PHOTOS and not name.startswith(NOT_PERSONALIZED):
            pool.append(Identity(name, look_of(name), tuple(photos_of_name)))
    return pool


def look_of(name: str) -> str:
    """What an identity shares with its look-alikes; its own name if it has none."""
    for look, names in LOOKS.items():
        if name in names:
            return look
    if name.startswith("grocery"):
        return name.split("-")[0]  # grocery_Arla-Sour-Milk
    if name.startswith("eth80"):
        return name.rsplit("_", 1)[0]  # eth80_2_9
    return name


def halves(pool: Sequence[Identity], rng: Generator) -> tuple[list[Identity], list[Identity]]:
    """Two disjoint halves; look-alikes go in twos, so that both halves have some."""
    by_look: dict[str, list[Identity]] = {}
    for identity in pool:
        by_look.setdefault(identity.look, []).append(identity)
    parts: tuple[list[Identity], list[Identity]] = ([], [])
    for look_alikes in by_look.values():
        order = rng.permutation(len(look_alikes))
        for start in range(0, len(order), 2):
            smaller = parts[len(parts[0]) > len(parts[1])]
            smaller += [look_alikes[number] for number in order[start : start + 2]]
    return parts


# Plans


def composites(pool: Sequence[Identity], count: int, rng: Generator) -> Iterator[Composite]:
    """Plan composites, of each kind and with two and three subjects equally many."""
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        variant = number // len(KINDS)
        has_look_alikes = kind == "look-alikes" or variant // 2 % 2 == 1
        yield _composite(
            pool,
            rng,
            kind=kind,
            size=2 + variant % 2,
            has_look_alikes=has_look_alikes,
            is_second_form=variant // 4 % 2 == 1,
        )


def _composite(
    pool: Sequence[Identity], rng: Generator, *, kind: str, size: int, has_look_alikes: bool, is_second_form: bool
) -> Composite:
    """Plan a composite of `size` subjects.

    Args:
        is_second_form: of "replaced", by a look-alike; of "twice", in place of the second subject.
    """
    stranger_is_alike = kind == "replaced" and is_second_form
    first = _drawn_first(pool, rng, fewest_alike=1 + has_look_alikes + stranger_is_alike)
    cast = [first]
    cast.append(_drawn(pool, cast, rng, is_alike=has_look_alikes))
    while len(cast) < size:
        cast.append(_drawn(pool, cast, rng, is_alike=False))

    drawn_photos = [_drawn_photos(identity, rng) for identity in cast]
    references = [references for references, _ in drawn_photos]
    regions = [shown[0] for _, shown in drawn_photos]
    states: list[State] = ["matched"] * size
    if kind == "replaced":
        stranger = _drawn(pool, cast, rng, is_alike=stranger_is_alike)
        regions[0] = stranger.photos[rng.integers(len(stranger.photos))]
        states[0] = "missing"
    elif kind == "missing":
        del regions[0]
        states[0] = "missing"
    elif kind == "twice":
        states[0] = "twice"
        again = drawn_photos[0][1][1]
        if is_second_form:
            regions[1] = again
            states[1] = "missing"
        else:
            regions.append(again)
    names = tuple(identity.name for identity in cast)
    return Composite(kind, has_look_alikes, names, tuple(references), tuple(regions), tuple(states))


def _drawn_first(pool: Sequence[Identity], rng: Generator, fewest_alike: int) -> Identity:
    """Draw an identity whose look at least so many have, itself included."""
    counts = Counter(identity.look for identity in pool)
    choices = [identity for identity in pool if counts[identity.look] >= fewest_alike]
    return choices[rng.integers(len(choices))]


def _drawn(pool: Sequence[Identity], cast: Sequence[Identity], rng: Generator, *, is_alike: bool) -> Identity:
    """Draw an identity outside of a cast: with the look of its first member, or with a look that nobody in it has."""
    looks = {identity.look for identity in cast}
    choices = []
    for identity in pool:
        fits = identity.look == cast[0].look if is_alike else identity.look not in looks
        if fits and identity not in cast:
            choices.append(identity)
    return choices[rng.integers(len(choices))]


def _drawn_photos(identity: Identity, rng: Generator) -> tuple[tuple[Photo, ...], tuple[Photo, Photo]]:
    """Draw references, and two other photos to show; of a single one, the second is the mirror image."""
    order = rng.permutation(len(identity.photos))
    photos = [identity.photos[number] for number in order]
    count = min(MOST_REFERENCES, len(photos) - 1)
    shown = photos[count:]
    if len(shown) == 1:
        shown.append(replace(shown[0], is_mirrored=True))
    return tuple(photos[:count]), (shown[0], shown[1])


# Pictures


def draw(composite: Composite, backgrounds: Sequence[Path], rng: Generator) -> tuple[Image.Image, list[Box]]:
    """Draw a composite: the picture, and the boxes of its regions."""
    picture = _background(backgrounds[rng.integers(len(backgrounds))], rng)
    quarters = rng.permutation(4)
    boxes = []
    for photo, quarter in zip(composite.regions, quarters, strict=False):
        box = _paste(picture, photo, int(quarter), rng)
        boxes.append(_moved(box, rng))
    return picture, boxes


def _background(path: Path, rng: Generator) -> Image.Image:
    """A random square of a landscape."""
    photo = Image.open(path).convert("RGB")
    side = min(photo.size)
    left = int(rng.integers(photo.width - side + 1))
    top = int(rng.integers(photo.height - side + 1))
    return photo.resize((SIDE, SIDE), box=(left, top, left + side, top + side))


def _paste(picture: Image.Image, photo: Photo, quarter: int, rng: Generator) -> Box:
    """Paste a photo into a quarter; return its box."""
    half = SIDE // 2
    pixels, mask = photo.open()
    scale = half * rng.uniform(*PHOTO_SIDE) / max(pixels.size)
    width = max(1, round(pixels.width * scale))
    height = max(1, round(pixels.height * scale))
    left = quarter % 2 * half + int(rng.integers(half - width + 1))
    top = quarter // 2 * half + int(rng.integers(half - height + 1))
    picture.paste(pixels.resize((width, height)), (left, top), mask.resize((width, height)))
    return left, top, left + width, top + height


def _moved(box: Box, rng: Generator) -> Box:
    """A box with each edge moved a little, inside the picture."""
    left, top, right, bottom = box
    sides = np.array([right - left, bottom - top] * 2)
    edges = np.array(box) + JITTER * sides * rng.uniform(-1, 1, 4)
    left, top, right, bottom = edges.round().clip(0, SIDE).astype(int).tolist()
    return left, top, right, bottom
