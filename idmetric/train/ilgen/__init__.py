"""The ILGen recipe: a whole encoder, recall@k on generated instances."""
