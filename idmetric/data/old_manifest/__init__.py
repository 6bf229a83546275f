"""Manifests: tables of images with identities, roles and splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.metric.lazy import lazy

if TYPE_CHECKING:
    from idmetric.data.old_manifest.table import Manifest, merge, read

_LAZY = dict.fromkeys(("Manifest", "merge", "read"), "idmetric.data.old_manifest.table")

__all__ = ["Manifest", "merge", "read"]

__getattr__, __dir__ = lazy(__name__, _LAZY)
