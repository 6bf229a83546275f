"""Training sets from manifests: filters, balance, mined negatives, triplets."""
