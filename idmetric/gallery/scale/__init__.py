"""Embeddings of very many images as a folder of Parquet files, by one process or a Ray cluster: docs/scale.md.

    from idmetric.gallery.scale import embed_dataset, embed_on_ray

    embed_dataset("photos/", "embeddings/", model="tiny")  # on this machine
    embed_on_ray("s3://bucket/photos", "s3://bucket/embeddings", model="tiny", address="auto")

Both write the same files, and either resumes what the other has begun.
"""

from __future__ import annotations

from idmetric.gallery.scale.cluster import embed_on_ray
from idmetric.gallery.scale.places import ScaleError
from idmetric.gallery.scale.run import Summary, embed_dataset

__all__ = ["ScaleError", "Summary", "embed_dataset", "embed_on_ray"]
