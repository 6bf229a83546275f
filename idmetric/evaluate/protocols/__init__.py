"""Evaluation protocols: data and models to tables, one per file."""
