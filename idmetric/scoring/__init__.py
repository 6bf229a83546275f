"""Scores of images against references, as rows: what `idmetric score` prints."""
