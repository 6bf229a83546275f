"""What all HTML pages have in common: base, style, pictures and charts. Loads no torch."""
