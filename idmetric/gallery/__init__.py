"""Embed folders and tables of images once, and search in them often: `idmetric gallery`, docs/use/gallery.md.

    from idmetric import Gallery, IDSim

    gallery = Gallery("index/", IDSim("tiny"))
    print(gallery.build("photos/"))  # embeds what is new
    gallery.query("who.jpg", k=5).to_pandas()
    gallery.duplicates().write("duplicates.csv")
    gallery.identities(threshold=0.3).write("identities.html")

An embedding is kept by the content of its image (and mask), in a folder for each model and way of looking. So a changed
file, another model, other weights or another resolution never meet an old embedding.
"""

from __future__ import annotations

from idmetric.gallery.answer import Answer
from idmetric.gallery.build import Update
from idmetric.gallery.files import GalleryError, StaleWarning, models_of
from idmetric.gallery.gallery import Gallery

__all__ = ["Answer", "Gallery", "GalleryError", "StaleWarning", "Update", "models_of"]
