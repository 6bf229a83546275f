"""The images of a request, embedded by the stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric import paths
from idmetric.metric.distance import needs_patches
from idmetric.metric.embedding import Embedding
from idmetric.metric.images import ImageReadError, small_picture
from idmetric.metric.masks import labeled
from idmetric.scoring.copies import Print, take_print
from idmetric.scoring.files import mask_path
from idmetric.scoring.in_memory import source_of
from idmetric.scoring.pairs import Pair, Pairs
from idmetric.scoring.scores import File, ScoreSettings
from idmetric.store import Store, cache_folder
from idmetric.stream import Item, Look, embedded, open_store, problem_of

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder
    from idmetric.scoring.sheet import Album


@dataclass(frozen=True)
class Pictured:
    """An embedded image.

    Attributes:
        small: the picture in which copies are found; None if they are not looked for.
        print: of the same picture, if prints are taken.
    """

    embedding: Embedding
    small: NDArray[np.uint8] | None
    print: Print | None = None


class RequestImages:
    """The images of a request; their embeddings are kept on the CPU, as there may be many.

    Args:
        album: keeps the pictures for a page, or None.

    Attributes:
        skipped: files that could not be used, with the reasons; only with on_error="skip".
    """

    def __init__(self, metric: Embedder, settings: ScoreSettings, album: Album | None) -> None:
        self._metric = metric
        self._settings = settings
        self._album = album
        self._patches = needs_patches(settings.distance)
        self._look = Look(True, settings.outside, settings.mask_id)
        self.skipped: dict[File, str] = {}
        self._store: Store | None = None
        folder = cache_folder(settings.cache)
        if folder is not None:
            self._store = open_store(folder, metric, patches=self._patches)

    def images(
        self, files: Iterable[File], *, prints: bool = False
    ) -> Generator[tuple[File, Pictured | None], None, None]:
        """Yield each file in order, embedded; None for one that is skipped.

        Args:
            prints: take prints, half a megabyte each, where copies are looked for.
        """
        stream = embedded(
            map(self._item, files),
            self._metric,
            self._look,
            store=self._store,
            patches=self._patches,
            batch_size=self._settings.batch_size,
            workers=self._settings.workers,
            on_error=self._settings.on_error,
            also=partial(self._taken, prints),
        )
        with closing(stream):
            for result in stream:
                file: File = result.item.source
                if result.problem is not None:
                    self.skipped[file] = problem_of(result.problem, result.item.name)
                    yield file, None
                    continue
                yield file, self._pictured(result.also.get("small"), result.row)

    def of_embedding(self, names: Sequence[str], embedding: Embedding) -> dict[File, Pictured]:
        """References that were embedded before, by their names; they have no pictures."""
        return {(name, None): self._pictured(None, embedding[[row]]) for row, name in enumerate(names)}

    def pairs(self, pairs: Pairs) -> Iterator[tuple[Pair, Pictured | None, Pictured | None]]:
        """Yield the pairs in order, with their images: each is embedded once, and held until its last pair."""
        uses: Counter[File] = Counter()
        for pair in pairs:
            uses.update(set(pair.files))
        images: dict[File, Pictured | None] = {}
        with closing(self.images(dict.fromkeys(pairs.files))) as ahead:  # in the order of their first pairs
            for pair in pairs:
                a, b = pair.files
                while a not in images or b not in images:
                    file, image = next(ahead)
                    images[file] = image
                    del image
                yield pair, images[a], images[b]
                for file in {a, b}:
                    uses[file] -= 1
                    if not uses[file]:
                        del images[file]

    def _item(self, file: File) -> Item:
        path = file[0]
        mask_dir = self._settings.mask_dir
        mask = mask_path(mask_dir, file)
        if mask is None and mask_dir is not None:
            problem = ImageReadError(*paths.absent_mask(mask_dir, path))
            return Item(path, path, problem=problem, source=file)
        return Item(path, source_of(path), source_of(mask), source=file)

    def _taken(self, prints: bool, item: Item, picture: Image.Image) -> dict[str, Any]:
        """What to take of a picture while it is decoded."""
        if self._album is not None:
            mask = labeled(item.mask, self._settings.mask_id)
            self._album.add_picture(item.source, picture, mask, self._settings.outside)
        if not self._settings.copies:
            return {}
        small = small_picture(picture)
        return {"small": take_print(small) if prints else small}

    def _pictured(self, small: NDArray[np.uint8] | Print | None, embedding: Embedding) -> Pictured:
        if not self._patches:
            embedding = embedding.without_patches()
        if isinstance(small, Print):
            return Pictured(embedding, small.pixels, small)
        return Pictured(embedding, small)
