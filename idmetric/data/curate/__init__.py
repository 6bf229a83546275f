"""Training sets from manifests: filters, balance, mined negatives, triplets."""

from idmetric.metric.files import need

need("eval", "curation", pandas="pandas")
