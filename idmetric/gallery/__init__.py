"""Embed a folder of images once, and search in it often: `idmetric gallery`, docs/use/gallery.md.

    from idmetric import IDSim
    from idmetric.gallery import Gallery

    gallery = Gallery("index/", IDSim("tiny"))
    print(gallery.update("photos/"))  # embeds what is new
    gallery.query("who.jpg", k=5).to_pandas()

An embedding is kept by the content of its image (and mask), in a folder for each model and way of looking. So a changed
file, another model, other weights, resolution or version of this package never meet an old embedding.
"""

from __future__ import annotations

from idmetric.gallery.gallery import Gallery
from idmetric.gallery.index import GalleryItem, models_of
from idmetric.gallery.sources import GalleryError, GallerySource, StaleWarning
from idmetric.gallery.update import Update

__all__ = [
    "Gallery",
    "GalleryError",
    "GalleryItem",
    "GallerySource",
    "StaleWarning",
    "Update",
    "models_of",
]
