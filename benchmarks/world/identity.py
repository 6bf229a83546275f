"""Identities: the recipe of an object, edits that turn it into another one, and the random streams that draw both."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

# how often each kind of object occurs
ODDS: Mapping[str, float] = {
    "box": 6, "carton": 4, "book": 2, "can": 3, "bottle": 5, "vase": 2, "pouch": 4, "fruit": 4, "bananas": 1, "cup": 2,
    "teapot": 1, "pan": 1, "lamp": 1, "chair": 1.5, "bag": 2, "soap": 1, "animal": 4, "bear": 2, "robot": 1.5, "car": 3,
    "shoe": 2, "hat": 1, "compound": 1, "garment": 8, "mesh": 4, "shape": 2,
}  # fmt: skip
DOMAINS: Mapping[str, str] = {
    **dict.fromkeys(("box", "carton", "book", "can", "bottle", "pouch", "mesh", "shape"), "products"),
    **dict.fromkeys(("vase", "cup", "teapot", "pan", "lamp", "chair", "soap", "compound"), "household"),
    **dict.fromkeys(("fruit", "bananas"), "produce"),
    **dict.fromkeys(("garment", "bag", "shoe", "hat"), "fashion"),
    **dict.fromkeys(("animal", "bear"), "animals"),
    **dict.fromkeys(("robot", "car"), "toys"),
}


@dataclass(frozen=True)
class Edit:
    """A change of identity.

    Attributes:
        what: "color" (other hues or brightness), "print" (some choices of the main material's design are redrawn),
            "shape" (proportions move towards another object's), "part" (one part gets another material; part "label":
            a label is stuck on), "all" (the first three together; at strength 1 every material changes too).
        strength: 0..1; 0 = no change.
        seed: of the replacement.
        part: name of the part, for "part".
    """

    what: str
    strength: float
    seed: int
    part: str = ""


@dataclass(frozen=True)
class Identity:
    """The recipe of an object, from which `Assets.build` builds its parts.

    Attributes:
        kind: a key of `ODDS`.
        seed: of shape and materials.
        edits: applied in order. They keep the kind and the topology of the shape, so the edited object has a
            silhouette of the same family.
    """

    kind: str
    seed: int
    edits: tuple[Edit, ...] = ()

    def edited(self, *edits: Edit) -> Identity:
        """The identity after further edits."""
        return replace(self, edits=(*self.edits, *edits))


def stream(seed: int, *names: str | int) -> Generator:
    """The random generator of a seed and names."""
    return np.random.default_rng([seed, *(zlib.crc32(n.encode()) if isinstance(n, str) else n for n in names)])


@dataclass(frozen=True)
class Dice:
    """The choices of one design, each drawn from a stream named after it.

    An edit (seed, share) redraws a choice if the choice's lot falls within the share. The edit's seed and the choice's
    name fix the lot, so edits of growing share are nested: a larger one repeats every change of a smaller one.

    Attributes:
        seed: of the design.
        edits: (seed, share in 0..1); the last edit that redraws a choice decides its value.
    """

    seed: int
    edits: tuple[tuple[int, float], ...] = ()

    def __call__(self, name: str, weight: float = 0.0) -> Generator:
        """The stream of a choice.

        Args:
            weight: importance of the choice for the look, 0..1: small edits keep choices of large weight. Every edit
                redraws a choice of weight 0.
        """
        seed = self.seed
        for other, share in self.edits:
            lot = stream(other, name, "lot").random() if weight else 0.0
            if share > 0 and lot <= share and weight <= 2 * share:
                seed = other
        return stream(seed, name)


class Blend:
    """A generator that interpolates every real number between the draws of two seeds.

    Discrete choices follow the first seed: a shape keeps its topology while its proportions change.
    """

    def __init__(self, first: int, second: int, amount: float) -> None:
        self._first, self._second = np.random.default_rng(first), np.random.default_rng(second)
        self.amount = amount

    def uniform(self, low: float = 0.0, high: float = 1.0, size: int | None = None) -> Any:
        """A number, or an array of `size` numbers, between the uniform draws of the two seeds."""
        a, b = self._first.uniform(low, high, size), self._second.uniform(low, high, size)
        return (1 - self.amount) * a + self.amount * b

    def random(self) -> float:
        """The first seed's uniform draw in [0, 1), for a decision."""
        self._second.random()
        return float(self._first.random())

    def integers(self, low: int, high: int | None = None) -> int:
        """The first seed's whole number in [low, high), or in [0, low)."""
        self._second.integers(low, high)
        return int(self._first.integers(low, high))

    def choice(self, options: Any) -> Any:
        """The option that the first seed draws."""
        self._second.choice(options)
        return self._first.choice(options)
