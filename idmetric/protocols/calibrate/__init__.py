"""Calibration of a model on labelled pairs."""

from __future__ import annotations

from idmetric.io.lazy import lazy

# what version 0.1, where this was one module, had here
_OLD = dict.fromkeys(
    ("RENDERER", "STORED", "Options", "calibrations", "checked", "command", "run"),
    "idmetric.protocols.calibrate.protocol",
)

__getattr__, __dir__ = lazy(__name__, _OLD)
