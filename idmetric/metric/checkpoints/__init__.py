"""Model folders and published checkpoints: config.json, safetensors, the Hub, LoRA."""
