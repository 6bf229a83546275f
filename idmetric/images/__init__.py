"""Images of any kind to RGB pixels: reading (`idmetric.images.read`), masks, resizing, and which files a path names."""
