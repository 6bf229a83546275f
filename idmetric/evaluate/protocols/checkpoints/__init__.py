"""Which checkpoint of a personalization LoRA to keep? See `protocol`, and `tracker` for training scripts."""
