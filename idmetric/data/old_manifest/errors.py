"""The error for manifests and what they are made from; loads no Arrow."""

from __future__ import annotations

from idmetric.data.manifest import ManifestError as ManifestError
