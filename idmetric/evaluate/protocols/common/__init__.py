"""What protocols share: models, rows, intervals, results, the papers' numbers."""
