"""The ID-Sim recipe: LoRA on a ViT, class and patch similarities."""
