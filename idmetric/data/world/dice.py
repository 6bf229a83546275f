"""Random numbers with names, so that an edit can redraw some choices of a design and leave all others."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator


def stream(seed: int, *names: str | int) -> Generator:
    """A generator of its own for a seed and names."""
    return np.random.default_rng([seed, *(zlib.crc32(n.encode()) if isinstance(n, str) else n for n in names)])


@dataclass(frozen=True)
class Dice:
    """The choices of one design, each drawn from a stream named after it.

    An edit (seed, share) redraws the names whose lot falls within its share. Lots are fixed by edit and name, so edits
    of growing share are nested: what a small one redraws, a larger one redraws to the same value.

    Attributes:
        seed: of the design. edits: (seed, share in 0..1), the last that redraws a name decides.
    """

    seed: int
    edits: tuple[tuple[int, float], ...] = ()

    def __call__(self, name: str, weight: float = 0.0) -> Generator:
        """The stream of a choice.

        Args:
            weight: 0..1, how much of the look hangs on it: small edits leave the heavy choices. 0 = always redrawn.
        """
        seed = self.seed
        for other, share in self.edits:
            lot = stream(other, name, "lot").random() if weight else 0.0
            if share > 0 and lot <= share and weight <= 2 * share:
                seed = other
        return stream(seed, name)


class Blend:
    """Draws like a Generator, every real number part of the way from one seed's value to another's.

    Discrete choices stay the first seed's, so that a shape keeps its topology while its proportions move.
    """

    def __init__(self, first: int, second: int, amount: float) -> None:
        self._first, self._second = np.random.default_rng(first), np.random.default_rng(second)
        self.amount = amount

    def uniform(self, low: float = 0.0, high: float = 1.0, size: int | None = None) -> Any:
        """Between two uniform draws."""
        a, b = self._first.uniform(low, high, size), self._second.uniform(low, high, size)
        return (1 - self.amount) * a + self.amount * b

    def random(self) -> float:
        """A uniform draw in [0, 1) for a decision: the first seed's."""
        self._second.random()
        return float(self._first.random())

    def integers(self, low: int, high: int | None = None) -> int:
        """A whole number: the first seed's."""
        self._second.integers(low, high)
        return int(self._first.integers(low, high))

    def choice(self, options: Any) -> Any:
        """One of several: the first seed's."""
        self._second.choice(options)
        return self._first.choice(options)
