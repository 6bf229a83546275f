"""Data: what training and evaluation read, and what makes it."""
