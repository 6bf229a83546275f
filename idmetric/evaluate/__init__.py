"""Evaluation statistics: arrays in, numbers out, no models."""
