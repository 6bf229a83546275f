"""Do two images show the same visual identity? Identity similarity metrics in the style of LPIPS.

Importing this package loads neither torch nor timm: the names below are resolved on first use.

>>> import idmetric
>>> metric = idmetric.IDSim("tiny")  # doctest: +SKIP
>>> metric("a.jpg", "b.jpg")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy
from idmetric.version import __version__ as __version__

if TYPE_CHECKING:
    from idmetric.checkpoints.errors import CheckpointError
    from idmetric.distance.embedding import Embedding
    from idmetric.distance.finite import NonFiniteError
    from idmetric.images.read import ImageReadError
    from idmetric.losses.identity import IdentityLoss
    from idmetric.models.backbone import Backbone
    from idmetric.models.embedder import Embedder
    from idmetric.models.idsim import IDSim
    from idmetric.models.load import load
    from idmetric.models.nearid import NearID
    from idmetric.models.visid import VisIDEmbed
    from idmetric.scoring.compare import score, score_pairs

_LAZY = {
    "Backbone": "idmetric.models.backbone",
    "CheckpointError": "idmetric.checkpoints.errors",
    "Embedder": "idmetric.models.embedder",
    "Embedding": "idmetric.distance.embedding",
    "IDSim": "idmetric.models.idsim",
    "IdentityLoss": "idmetric.losses.identity",
    "ImageReadError": "idmetric.images.read",
    "NearID": "idmetric.models.nearid",
    "NonFiniteError": "idmetric.distance.finite",
    "VisIDEmbed": "idmetric.models.visid",
    "load": "idmetric.models.load",
    "score": "idmetric.scoring.compare",
    "score_pairs": "idmetric.scoring.compare",
}

__all__ = [
    "Backbone",
    "CheckpointError",
    "Embedder",
    "Embedding",
    "IDSim",
    "IdentityLoss",
    "ImageReadError",
    "NearID",
    "NonFiniteError",
    "VisIDEmbed",
    "__version__",
    "load",
    "score",
    "score_pairs",
]


__getattr__, __dir__ = lazy(__name__, _LAZY)
