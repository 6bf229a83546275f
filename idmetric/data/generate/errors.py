"""Errors of generation, as a whole or for one picture."""

from __future__ import annotations


class GenerateError(ValueError):
    """Generation cannot continue; the message says why and what to do."""


class Rejected(ValueError):
    """A generated picture that cannot be used; the message says why. Other pictures are not affected."""


class Flat(Rejected):
    """A generated picture of one color, usually caused by numbers that are not finite."""
