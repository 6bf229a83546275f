"""The VisME recipe: LoRA on Qwen2.5-VL, identity-aware batches, gradient caching."""
