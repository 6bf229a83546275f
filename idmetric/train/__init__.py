"""Training recipes, one per file; the core never imports them."""
