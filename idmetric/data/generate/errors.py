"""Ways in which generation fails: as a whole, or for one picture."""

from __future__ import annotations


class GenerateError(ValueError):
    """Generation that cannot go on; the message says why and what to do."""


class Rejected(ValueError):
    """A generated picture that cannot be used; the message says why. Others may well be."""


class Flat(Rejected):
    """A generated picture of one colour, which is how numbers that are not finite show."""
