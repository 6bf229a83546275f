"""Several subjects, regions and time: one table of distances, and the numbers that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.metric.lazy import lazy

if TYPE_CHECKING:
    from idmetric.matching.detect import WordDetector
    from idmetric.matching.matching import match
    from idmetric.matching.regions import Region
    from idmetric.matching.result import Match

_LAZY = {
    "Match": "idmetric.matching.result",
    "Region": "idmetric.matching.regions",
    "WordDetector": "idmetric.matching.detect",
    "match": "idmetric.matching.matching",
}
__all__ = ["Match", "Region", "WordDetector", "match"]

__getattr__, __dir__ = lazy(__name__, _LAZY)
