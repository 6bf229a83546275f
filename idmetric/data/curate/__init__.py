"""Training sets from manifests: filters, balance, mined negatives, triplets."""

from __future__ import annotations

from idmetric.io.lazy import lazy

# what version 0.1, where this was one module, had here
_OLD = dict.fromkeys(
    ("Strategy", "balanced", "cap", "choose", "datasets_of", "distinct", "hashed", "keep_identities", "keep_images",
     "lowest", "proportional", "two_views", "unique"),
    "idmetric.data.curate.balance",
)  # fmt: skip

__getattr__, __dir__ = lazy(__name__, _OLD)
