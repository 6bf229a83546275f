"""Golden values: what two versions of the package print and write for the same commands."""
