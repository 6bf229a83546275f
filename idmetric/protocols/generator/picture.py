"""An image file of an evaluation: its role, and its place among methods, subjects, prompts and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GENERATED, REFERENCE, TRAINING = "generated", "reference", "training"
ONLY = "subject"  # the subject of a pattern or table without one
YES, NO = ("yes", "true", "1", "y"), ("no", "false", "0", "n")  # in the column held_out


class OutputsError(ValueError):
    """Images that cannot be read as outputs of generators; the message lists them, and says how to fix it."""


class UnmatchedWarning(UserWarning):
    """Images that do not match the pattern, or cannot be read as their layout demands, are left out."""


@dataclass(frozen=True)
class Picture:
    """An image file with its role and fields."""

    path: Path
    role: str
    fields: Mapping[str, str]
    text: str | None = None  # prompt in words
    mask: Path | None = None
