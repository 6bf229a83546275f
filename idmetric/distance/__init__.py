"""Distances between embeddings; `idmetric.distance.matrix` has the table of their names."""
