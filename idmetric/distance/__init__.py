"""Distances between embeddings: cosine of global features, Sinkhorn divergence of patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.distance.cosine import cosine_distance, cosine_matrix
    from idmetric.distance.finite import NonFiniteError
    from idmetric.distance.matrix import (
        DISTANCES,
        DistanceName,
        check_name,
        distance,
        distance_matrix,
        needs_patches,
        self_terms,
    )

_LAZY = {
    "DISTANCES": "idmetric.distance.matrix",
    "DistanceName": "idmetric.distance.matrix",
    "NonFiniteError": "idmetric.distance.finite",
    "check_name": "idmetric.distance.matrix",
    "cosine_distance": "idmetric.distance.cosine",
    "cosine_matrix": "idmetric.distance.cosine",
    "distance": "idmetric.distance.matrix",
    "distance_matrix": "idmetric.distance.matrix",
    "needs_patches": "idmetric.distance.matrix",
    "self_terms": "idmetric.distance.matrix",
}

__all__ = [
    "DISTANCES",
    "DistanceName",
    "NonFiniteError",
    "check_name",
    "cosine_distance",
    "cosine_matrix",
    "distance",
    "distance_matrix",
    "needs_patches",
    "self_terms",
]

__getattr__, __dir__ = lazy(__name__, _LAZY)
