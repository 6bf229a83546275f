"""Sharp, well covered frames of videos and folders of frames."""

from __future__ import annotations

from idmetric.io.lazy import lazy

# what version 0.1, where this was one module, had here
_OLD = dict.fromkeys(
    ("REASONS", "SAMPLINGS", "Pick", "Sampling", "Tally", "blur_score", "candidates", "places", "plan"),
    "idmetric.data.frames.choose",
)

__getattr__, __dir__ = lazy(__name__, _OLD)
