"""Fits calibration curves to labeled pairs, measures their probabilities and chooses thresholds."""
