"""VisIDEmbed, the Qwen2.5-VL embedder of VisME."""
