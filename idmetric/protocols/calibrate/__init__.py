"""Calibration of a model on labelled pairs."""
