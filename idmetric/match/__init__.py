"""Several subjects, regions and time: one table of distances, and the numbers that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.metric.files.lazy import lazy

if TYPE_CHECKING:
    from idmetric.match.detect_models import GroundingDino, Owlv2, Sam3
    from idmetric.match.detect_patches import PatchDetector
    from idmetric.match.detected import DetectedRegions
    from idmetric.match.matching import match
    from idmetric.match.regions import Cut, Region
    from idmetric.match.result import Match
    from idmetric.metric.subject import Subject

_LAZY = {
    "Clip": "idmetric.match.clips",
    "Cut": "idmetric.match.regions",
    "DetectedRegions": "idmetric.match.detected",
    "GroundingDino": "idmetric.match.detect_models",
    "Match": "idmetric.match.result",
    "Owlv2": "idmetric.match.detect_models",
    "PatchDetector": "idmetric.match.detect_patches",
    "Region": "idmetric.match.regions",
    "Sam3": "idmetric.match.detect_models",
    "Subject": "idmetric.metric.subject",
    "consistency": "idmetric.match.consistency",
    "match": "idmetric.match.matching",
}
__all__ = [
    "Clip",
    "Cut",
    "DetectedRegions",
    "GroundingDino",
    "Match",
    "Owlv2",
    "PatchDetector",
    "Region",
    "Sam3",
    "Subject",
    "consistency",
    "match",
]

__getattr__, __dir__ = lazy(__name__, _LAZY)
