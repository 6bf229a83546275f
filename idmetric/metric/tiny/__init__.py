"""The small model in this package: its weights, and the trunk that computes them."""
