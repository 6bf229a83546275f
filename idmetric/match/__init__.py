"""Several subjects, regions and time: one table of distances, and the numbers that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.metric.files.lazy import lazy

if TYPE_CHECKING:
    from idmetric.match.matching import match
    from idmetric.match.regions import Cut, Region
    from idmetric.match.result import Match
    from idmetric.metric.scoring.subject import Subject

_LAZY = {
    "Clip": "idmetric.match.clips",
    "Cut": "idmetric.match.regions",
    "Match": "idmetric.match.result",
    "Region": "idmetric.match.regions",
    "Subject": "idmetric.metric.scoring.subject",
    "consistency": "idmetric.match.consistency",
    "match": "idmetric.match.matching",
}
__all__ = ["Clip", "Cut", "Match", "Region", "Subject", "consistency", "match"]

__getattr__, __dir__ = lazy(__name__, _LAZY)
