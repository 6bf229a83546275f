"""From items to embeddings: each file opened and decoded once, each content embedded once and kept."""
