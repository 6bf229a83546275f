"""Do two images show the same visual identity? Identity similarity metrics in the style of LPIPS.

Importing this package loads neither torch nor timm: the names below are resolved on first use.

>>> import idmetric
>>> metric = idmetric.IDSim("tiny")  # doctest: +SKIP
>>> metric("a.jpg", "b.jpg")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from idmetric._version import __version__

if TYPE_CHECKING:
    from idmetric.backbone import Backbone
    from idmetric.checkpoint import CheckpointError
    from idmetric.embedder import Embedder
    from idmetric.embedding import Embedding
    from idmetric.finite import NonFiniteError
    from idmetric.identity_loss import IdentityLoss
    from idmetric.idsim import IDSim
    from idmetric.images import ImageReadError
    from idmetric.loading import load
    from idmetric.nearid import NearID
    from idmetric.visid import VisIDEmbed

_LAZY = {
    "Backbone": "idmetric.backbone",
    "CheckpointError": "idmetric.checkpoint",
    "Embedder": "idmetric.embedder",
    "Embedding": "idmetric.embedding",
    "IDSim": "idmetric.idsim",
    "IdentityLoss": "idmetric.identity_loss",
    "ImageReadError": "idmetric.images",
    "NearID": "idmetric.nearid",
    "NonFiniteError": "idmetric.finite",
    "VisIDEmbed": "idmetric.visid",
    "load": "idmetric.loading",
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
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
