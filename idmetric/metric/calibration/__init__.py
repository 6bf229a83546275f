"""From distances to probabilities: `apply` holds and applies a calibration, `curves` its curves.

Curves are fitted, measured and turned into thresholds by `idmetric.evaluate.statistics.calibration`.
"""
