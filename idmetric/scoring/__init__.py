"""Scores of images against references, and of pairs, with the facts needed to interpret them."""
