"""Reading of images and masks for scoring, in threads."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.distance.matrix import needs_patches
from idmetric.embed.keys import content_key
from idmetric.images import paths
from idmetric.images.opening import Named
from idmetric.images.read import ImageReadError, describe
from idmetric.io.prefetch import in_order
from idmetric.io.text_file import MOST
from idmetric.scoring.copies import small_picture
from idmetric.scoring.files import mask_path
from idmetric.scoring.scores import File
from idmetric.scoring.settings import Settings, Watcher

if TYPE_CHECKING:
    from torch import Tensor

    from idmetric.models.embedder import Embedder
    from idmetric.scoring.cache import Cache, Key

_LOOK = 60.0  # seconds to look for further unreadable images
_LISTED = 20  # most images named in an error


class UnreadableImagesError(ImageReadError):
    """Images that cannot be read, each with its reason."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.args = (f"{source}: {reason}",)


@dataclass(frozen=True)
class Loaded:
    """An image as the model sees it, its mask, the small picture for the search of copies, and its key in the cache.

    It has no pixels if the cache has its embedding.
    """

    file: File
    pixels: Tensor | None = None
    mask: Tensor | None = None
    small: NDArray[np.uint8] | None = None
    key: Key | None = None


class Reader:
    """Reads files for a model.

    Attributes:
        skipped: files that could not be read, with the reasons; only with on_error="skip".
        patches: whether distances or the watcher need patch tokens. cache: the folder of embeddings, if there is one.
    """

    def __init__(self, metric: Embedder, settings: Settings, watcher: Watcher | None) -> None:
        self._metric, self._settings, self._watcher = metric, settings, watcher
        self.skipped: dict[File, str] = {}
        self.patches = needs_patches(settings.distance) or (watcher is not None and watcher.details > 0)
        self.cache: Cache | None = None
        if settings.cache is not None:
            from idmetric.scoring.cache import Cache

            self.cache = Cache(
                Path(settings.cache), metric, settings.outside, self.patches, settings.copies, warnings.warn,
                settings.mask_id,
            )  # fmt: skip

    def read(self, file: File) -> Loaded | None:
        """Read a file, its pixels and mask at the model's resolution; None for a file to skip.

        Raises:
            ImageReadError: with on_error="fail".
        """
        path = file[0]
        try:
            return self._read(file)
        except ImageReadError as error:
            if self._settings.on_error == "fail":
                raise
            self.skipped[file] = error.reason if error.source == path else f"its mask {error.source}: {error.reason}"
            return None

    def _read(self, file: File) -> Loaded:
        path, mask = file[0], self._mask_of(file)
        image, mask_image, key = self._content(path, mask)
        cached = self.cache is not None and key is not None and key in self.cache
        if cached and self._watcher is None:
            return Loaded(file, key=key)

        # a mask belongs to all pixels of its image
        picture = self._metric.decoded(image) if mask is None else self._metric.read_image(image)
        options = self._settings
        pixels = loaded_mask = None
        try:
            if not cached:
                pixels, loaded_mask = self._metric.load_image(
                    picture, mask_image, options.outside, mask_id=options.mask_id
                )
            if self._watcher is not None:
                from idmetric.images.masks import labelled

                self._watcher.add_picture(file, picture, labelled(mask, options.mask_id), options.outside)
        except ImageReadError as error:
            named = path if error.source == describe(picture) else error.source  # the picture has no name
            raise ImageReadError(named, error.reason) from error
        return Loaded(file, pixels, loaded_mask, small_picture(picture) if options.copies else None, key)

    def _mask_of(self, file: File) -> str | None:
        folder = self._settings.mask_dir
        found = mask_path(folder, file)
        if found is None and folder is not None:
            raise ImageReadError(*paths.absent_mask(folder, file[0]))
        return found

    def _content(self, path: str, mask: str | None) -> tuple[Any, Any, Key | None]:
        """Return image and mask as `images` takes them (with a cache their bytes), and their key in the cache."""
        if self.cache is None:
            return path, mask, None
        files = [Path(path), *([] if mask is None else [Path(mask)])]
        try:
            if not all(file.is_file() and 0 < file.stat().st_size <= MOST for file in files):
                return path, mask, None
            image, *masks = (file.read_bytes() for file in files)
        except OSError:  # reported when the image is read
            return path, mask, None
        cover = masks[0] if masks else None
        named = None if cover is None or mask is None else Named(cover, mask)
        return Named(image, path), named, (mask is not None, content_key(image, cover))

    def unreadable(self, files: Iterable[File]) -> ImageReadError | None:
        """Return the error that lists all unreadable images with their reasons; None if all can be read now."""
        every = list(dict.fromkeys(files))
        threads = self._settings.threads
        until = time.monotonic() + _LOOK
        found: list[ImageReadError] = []
        with closing(in_order(self._fault_of, every, threads=threads, waiting=2 * threads)) as faults:
            for fault in faults:
                found += [] if fault is None else [fault]
                if time.monotonic() > until and found:
                    break
        if len(found) < 2:
            return found[0] if found else None
        more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
        listed = "; ".join([*map(str, found[:_LISTED]), *more])
        return UnreadableImagesError(f"{len(found)} of {len(every)} images", listed)

    def _fault_of(self, file: File) -> ImageReadError | None:
        try:
            self.read(file)
        except ImageReadError as error:
            return error
        return None
