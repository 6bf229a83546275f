"""Embeddings on disk, the digests that name them, and exact nearest-neighbour search."""
