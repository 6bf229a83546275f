"""The metrics inside other libraries' habits: torchmetrics, `datasets.map`, rewards. See docs/use/adapters.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.metric.lazy import lazy

if TYPE_CHECKING:
    from idmetric.adapters.columns import EmbedColumn, ScoreColumns
    from idmetric.adapters.metrics import IdentityRetrieval, IdentitySimilarity
    from idmetric.adapters.rewards import reward, reward_of_subjects

_LAZY = {
    "EmbedColumn": "idmetric.adapters.columns",
    "IdentityRetrieval": "idmetric.adapters.metrics",
    "IdentitySimilarity": "idmetric.adapters.metrics",
    "ScoreColumns": "idmetric.adapters.columns",
    "reward": "idmetric.adapters.rewards",
    "reward_of_subjects": "idmetric.adapters.rewards",
}

__all__ = ["EmbedColumn", "IdentityRetrieval", "IdentitySimilarity", "ScoreColumns", "reward", "reward_of_subjects"]


__getattr__, __dir__ = lazy(__name__, _LAZY)
