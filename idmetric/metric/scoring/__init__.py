"""Scores of images against references, or of pairs, as rows: shared by `idmetric.score`, the command and the report."""
