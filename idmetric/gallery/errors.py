"""Errors and warnings of galleries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


class GalleryError(RuntimeError):
    """A gallery cannot do what was asked; the message says why and how to fix it."""


class GalleryWriteError(GalleryError):
    """A gallery cannot be written."""


class BusyError(GalleryError):
    """Another process is updating the gallery."""


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
