"""Several subjects, regions and time: one table of distances, and the numbers that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.metric.lazy import lazy

if TYPE_CHECKING:
    from idmetric.matching.detect_models import GroundingDino, Owlv2, Sam3
    from idmetric.matching.detect_patches import PatchDetector
    from idmetric.matching.detected import DetectedRegions
    from idmetric.matching.matching import match
    from idmetric.matching.regions import Cut, Region
    from idmetric.matching.result import Match

_LAZY = {
    "Clip": "idmetric.matching.clips",
    "Cut": "idmetric.matching.regions",
    "DetectedRegions": "idmetric.matching.detected",
    "GroundingDino": "idmetric.matching.detect_models",
    "Match": "idmetric.matching.result",
    "Owlv2": "idmetric.matching.detect_models",
    "PatchDetector": "idmetric.matching.detect_patches",
    "Region": "idmetric.matching.regions",
    "Sam3": "idmetric.matching.detect_models",
    "match": "idmetric.matching.matching",
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
    "match",
]

__getattr__, __dir__ = lazy(__name__, _LAZY)
