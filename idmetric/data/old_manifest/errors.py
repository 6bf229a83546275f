"""The error for manifests and what they are made from; loads no Arrow."""

from __future__ import annotations


class ManifestError(ValueError):
    """A manifest, or a dataset to make one from, that cannot be used; the message says where, and how to fix it."""
