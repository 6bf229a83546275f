"""From files to stored vectors: embeddings on disk, the keys that name them, and exact nearest-neighbor search."""
