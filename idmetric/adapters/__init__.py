"""The metrics inside other libraries' habits: torchmetrics, and `datasets.map`. See docs/adapters.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idmetric.adapters.columns import EmbedColumn, ScoreColumns
    from idmetric.adapters.metrics import IdentityRetrieval, IdentitySimilarity

_LAZY = {
    "EmbedColumn": "idmetric.adapters.columns",
    "IdentityRetrieval": "idmetric.adapters.metrics",
    "IdentitySimilarity": "idmetric.adapters.metrics",
    "ScoreColumns": "idmetric.adapters.columns",
}

__all__ = ["EmbedColumn", "IdentityRetrieval", "IdentitySimilarity", "ScoreColumns"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
