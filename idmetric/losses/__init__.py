"""Training losses: arrays in, scalar out, no models."""
