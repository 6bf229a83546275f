"""Images of any kind to RGB pixels: reading (`images.read`), masks, resizing, and which files a path names."""
