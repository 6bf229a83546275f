"""Distances between embeddings: cosine of global features, Sinkhorn divergence of patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.distance.cosine import cosine_distance, cosine_matrix
    from idmetric.distance.finite import NonFiniteError
    from idmetric.distance.matrix import DISTANCES, distance, distance_matrix

_LAZY = {
    "DISTANCES": "idmetric.distance.matrix",
    "NonFiniteError": "idmetric.distance.finite",
    "cosine_distance": "idmetric.distance.cosine",
    "cosine_matrix": "idmetric.distance.cosine",
    "distance": "idmetric.distance.matrix",
    "distance_matrix": "idmetric.distance.matrix",
}

__all__ = ["DISTANCES", "NonFiniteError", "cosine_distance", "cosine_matrix", "distance", "distance_matrix"]

__getattr__, __dir__ = lazy(__name__, _LAZY)
