"""Do two images show the same visual identity? Identity similarity metrics in the style of LPIPS.

Importing this package loads neither torch nor timm: the names below are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.metric.lazy import lazy
from idmetric.version import __version__ as __version__

if TYPE_CHECKING:
    from idmetric.cli.demo import demo_images
    from idmetric.evaluate.evaluation import Evaluation, evaluation
    from idmetric.gallery.gallery import Gallery
    from idmetric.matching.consistency import consistency
    from idmetric.matching.matching import match
    from idmetric.matching.regions import Region
    from idmetric.matching.result import Match
    from idmetric.metric.backbone import Backbone
    from idmetric.metric.embedder import Embedder
    from idmetric.metric.embedding import Embedding
    from idmetric.metric.errors import CheckpointError, NonFiniteError
    from idmetric.metric.idsim import IDSim
    from idmetric.metric.images import ImageReadError
    from idmetric.metric.load import load
    from idmetric.metric.loss import IdentityLoss
    from idmetric.metric.nearid import NearID
    from idmetric.metric.visid.visid import VisIDEmbed
    from idmetric.scoring.calibration import calibration_of
    from idmetric.scoring.score import score, score_pairs

_LAZY = {
    "Backbone": "idmetric.metric.backbone",
    "CheckpointError": "idmetric.metric.errors",
    "Embedder": "idmetric.metric.embedder",
    "Embedding": "idmetric.metric.embedding",
    "Evaluation": "idmetric.evaluate.evaluation",
    "Gallery": "idmetric.gallery.gallery",
    "IDSim": "idmetric.metric.idsim",
    "IdentityLoss": "idmetric.metric.loss",
    "ImageReadError": "idmetric.metric.images",
    "Match": "idmetric.matching.result",
    "NearID": "idmetric.metric.nearid",
    "NonFiniteError": "idmetric.metric.errors",
    "Region": "idmetric.matching.regions",
    "VisIDEmbed": "idmetric.metric.visid.visid",
    "consistency": "idmetric.matching.consistency",
    "calibration_of": "idmetric.scoring.calibration",
    "demo_images": "idmetric.cli.demo",
    "evaluation": "idmetric.evaluate.evaluation",
    "load": "idmetric.metric.load",
    "match": "idmetric.matching.matching",
    "score": "idmetric.scoring.score",
    "score_pairs": "idmetric.scoring.score",
}

__all__ = [
    "Backbone",
    "CheckpointError",
    "Embedder",
    "Embedding",
    "Evaluation",
    "Gallery",
    "IDSim",
    "IdentityLoss",
    "ImageReadError",
    "Match",
    "NearID",
    "NonFiniteError",
    "Region",
    "VisIDEmbed",
    "__version__",
    "calibration_of",
    "consistency",
    "demo_images",
    "evaluation",
    "load",
    "match",
    "score",
    "score_pairs",
]


__getattr__, __dir__ = lazy(__name__, _LAZY)
