"""Distances between embeddings; `idmetric.metric.distance.matrix` has the table of their names."""
