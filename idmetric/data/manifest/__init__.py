"""Manifests: tables of images with identities, roles and splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest, merge, read

_LAZY = {
    "Manifest": "idmetric.data.manifest.table",
    "merge": "idmetric.data.manifest.table",
    "read": "idmetric.data.manifest.table",
    # what version 0.1, where this was one module, had here too
    **dict.fromkeys(("COLUMNS", "FORMATS", "PATHS", "ROLES", "SCHEMA", "SLOTS", "ManifestError", "Row"),
                    "idmetric.data.manifest.table"),
}  # fmt: skip

__all__ = ["Manifest", "merge", "read"]

__getattr__, __dir__ = lazy(__name__, _LAZY)
