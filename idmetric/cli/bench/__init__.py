"""`idmetric-bench`: seconds and memory of each stage, side by side."""
