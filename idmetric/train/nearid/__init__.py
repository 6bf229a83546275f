"""The NearID recipe: attention pooling on frozen SigLIP2, two-tier loss."""
