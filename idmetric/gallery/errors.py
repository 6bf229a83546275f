"""Errors and warnings of galleries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from idmetric.embed.store import DamagedShardError


class GalleryError(RuntimeError):
    """A gallery cannot do what was asked; the message says why and how to fix it."""


class GalleryWriteError(GalleryError):
    """A gallery cannot be written."""


class LostError(GalleryError):
    """Embeddings of listed images are missing."""


class StaleWarning(UserWarning):
    """An image was left out of an answer because its file has changed since it was embedded."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into a GalleryWriteError, which says which gallery cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GalleryWriteError(
            f"the gallery {str(folder)!r} cannot be written ({reason}): make room or give yourself "
            "permission, or keep it in another folder (--gallery)"
        ) from error


@contextmanager
def naming_shards() -> Iterator[None]:
    """Turn errors of damaged shards into GalleryErrors, which say how to fix the gallery."""
    try:
        yield
    except DamagedShardError as error:
        raise GalleryError(
            f"the shard {os.fspath(error.path)!r} is damaged ({error.reason}): `idmetric gallery build` or "
            "update() makes it again"
        ) from error
