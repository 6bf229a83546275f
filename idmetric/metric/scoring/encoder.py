"""The images of a request: read in threads, and embedded in batches or taken from the cache.

The cache is a folder with a `Store` for each model, with exactly its weights and settings, as a gallery has.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import NonFiniteError, shown
from idmetric.metric.distance.matrix import needs_patches
from idmetric.metric.files.output import OutputError, writing
from idmetric.metric.images import paths
from idmetric.metric.images.masks import MaskLike, labeled
from idmetric.metric.images.opening import Named
from idmetric.metric.images.read import ImageReadError, Outside
from idmetric.metric.scoring import pipeline
from idmetric.metric.scoring.copy_warnings import small_picture
from idmetric.metric.scoring.files import mask_path
from idmetric.metric.scoring.keys import MASKED, folder_name
from idmetric.metric.scoring.pairs import Pair, Pairs
from idmetric.metric.scoring.records import Record
from idmetric.metric.scoring.scores import File, ScoreSettings

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.metric.models.embedder import Embedder
    from idmetric.metric.scoring.matches import Tokens
    from idmetric.metric.scoring.store import Store


class Watcher(Protocol):
    """Sees images and rows as they come (`idmetric.evaluate.report.album.Album`).

    Attributes:
        details: number of nearest images of which it wants tokens; 0: none.
        references: the references that were read, in order.
    """

    details: int
    references: dict[File, None]

    def add_picture(self, file: File, picture: Image.Image, mask: MaskLike | None, outside: Outside, /) -> None:
        """See an image at its full size, in a thread."""

    def tokens(self, file: File, masked: bool, embedding: Embedding, /) -> Tokens | None:
        """Return what `add` needs of an image."""

    def add(
        self, row: Record, image: File, reference: File, image_tokens: Tokens | None, reference_tokens: Tokens | None, /
    ) -> None:
        """See a row, before it is ranked."""


@dataclass
class Loaded(pipeline.Input[File]):
    """A file that was read. `small`: the picture from which copies are found."""

    small: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Seen:
    """An embedded image. `small`: the picture from which copies are found. `tokens`: what the watcher wants of it."""

    embedding: Embedding
    small: NDArray[np.uint8] | None
    tokens: Tokens | None = None


class Encoder:
    """Reads and embeds files in batches; embeddings are kept on the CPU, as there may be many.

    If the cache's disk is full, nothing more is kept; scores do not depend on the cache.

    Args:
        watcher: sees pictures and embeddings as they come, or None.

    Attributes:
        skipped: files that could not be used, with the reasons; only with on_error="skip".
    """

    def __init__(self, metric: Embedder, settings: ScoreSettings, watcher: Watcher | None) -> None:
        self._metric, self._settings, self._watcher = metric, settings, watcher
        self._scores_patches = needs_patches(settings.distance)
        self._patches = self._scores_patches or (watcher is not None and watcher.details > 0)
        self.skipped: dict[File, str] = {}
        self._stores: dict[bool, Store] = {}  # of masked and of whole images
        self._full = False
        if settings.cache is not None:
            from idmetric.metric.scoring.store import Store

            folder = Path(settings.cache)
            with writing(folder):  # before anything is embedded
                folder.mkdir(parents=True, exist_ok=True)
            about = {False: metric.about(), True: metric.about(settings.outside, settings.mask_id)}
            self._stores = {masked: Store(folder / folder_name(facts), self._patches, metric.model_id)
                            for masked, facts in about.items()}  # fmt: skip
            self._mend()

    def images(self, files: Iterable[File]) -> Generator[tuple[File, Seen | None], None, None]:
        """Yield each file in order, embedded; None for one that is skipped."""
        settings = self._settings
        with closing(
            pipeline.batches(files, self.read, batch_size=settings.batch_size, workers=settings.workers)
        ) as batches:
            for batch in batches:
                order, found = [one.item for one in batch], self.see(batch)
                yield from ((file, found.get(file)) for file in order)

    def pairs(self, pairs: Pairs) -> Iterator[tuple[Pair, Seen | None, Seen | None]]:
        """Yield the pairs in order, with their images: each is embedded once, and held until its last pair."""
        uses = Counter(file for pair in pairs for file in set(pair.files))
        held: dict[File, Seen | None] = {}
        with closing(self.images(dict.fromkeys(pairs.files))) as images:  # in the order of their first pairs
            for pair in pairs:
                while not held.keys() >= set(pair.files):
                    file, seen = next(images)
                    held[file] = seen
                yield pair, held[pair.files[0]], held[pair.files[1]]
                for file in set(pair.files):
                    uses[file] -= 1
                    if not uses[file]:
                        del held[file]

    # Reading

    def read(self, file: File) -> Loaded:
        """Read a file, its pixels and mask at the model's resolution.

        Raises:
            ImageReadError: with on_error="fail".
        """
        path = file[0]
        try:
            return self._read(file)
        except ImageReadError as error:
            if self._settings.on_error == "fail":
                raise
            problem = pipeline.problem_of(error, path)
            self.skipped[file] = problem
            return Loaded(file, problem=problem)

    def _read(self, file: File) -> Loaded:
        options, path = self._settings, file[0]
        mask = mask_path(options.mask_dir, file)
        if mask is None and options.mask_dir is not None:
            raise ImageReadError(*paths.absent_mask(options.mask_dir, path))
        image: str | Named = path
        subject_mask: str | Named | None = mask
        loaded = Loaded(file)
        is_cached = False
        if self._stores:
            source = pipeline.Source.read(path, mask)
            image, subject_mask, loaded.key = source.image, source.mask, source.key
            is_cached = loaded.key in self._stores[mask is not None]
            if is_cached and self._watcher is None and not options.copies:
                return loaded

        picture = self._metric.read_image(image, whole=mask is not None)  # a mask belongs to all pixels of its image
        if not is_cached:
            loaded.pixels, loaded.mask = self._metric.load_image(
                picture, subject_mask, options.outside, mask_id=options.mask_id
            )
        if self._watcher is not None:
            self._watcher.add_picture(file, picture, labeled(mask, options.mask_id), options.outside)
        if options.copies:
            loaded.small = small_picture(picture)
        return loaded

    # Embedding

    def see(self, batch: Sequence[Loaded]) -> dict[File, Seen]:
        """Embed images that have pixels, and take the others from the cache."""
        fresh = [one for one in batch if one.pixels is not None]
        known = [one for one in batch if one.pixels is None and not one.problem]
        found: dict[File, Seen] = {}
        for masked, store in self._stores.items() if known else ():
            if store.unsaved:
                self._write(store.save)
            kept = store.readable([one.key for one in known if one.key.endswith(MASKED) == masked])
            self._mend()
            for one in known:
                if one.key in kept:
                    found[one.item] = self._seen(one, kept[one.key])
        again = [self.read(one.item) for one in known if one.item not in found]  # their shard is damaged or gone
        if fresh := [*fresh, *(one for one in again if one.pixels is not None)]:
            found |= self._embed(fresh)
        return found

    def _embed(self, fresh: list[Loaded]) -> dict[File, Seen]:
        """Embed one batch, and keep it in the cache."""
        together, bad = pipeline.embed(self._metric, fresh, self._patches, zero=True)
        if bad and self._settings.on_error == "fail":
            names = [fresh[k].item[0] for k in sorted(bad)]
            raise NonFiniteError(f"{shown(names)}: {next(iter(bad.values()))}", sorted(bad))
        if bad:
            self.skipped |= {fresh[k].item: why for k, why in bad.items()}
            good = [k for k in range(len(fresh)) if k not in bad]
            together, fresh = together[good], [fresh[k] for k in good]
        together = together.cpu()
        for masked, store in self._stores.items():
            keys = {one.key: k for k, one in enumerate(fresh) if one.key and one.key.endswith(MASKED) == masked}
            if keys:
                self._write(store.add, list(keys), together[list(keys.values())])
        return {one.item: self._seen(one, seen) for one, seen in zip(fresh, together, strict=True)}

    def _seen(self, one: Loaded, embedding: Embedding) -> Seen:
        masked = one.mask is not None or one.key.endswith(MASKED)
        tokens = None if self._watcher is None else self._watcher.tokens(one.item, masked, embedding)
        if not self._scores_patches:  # kept no longer than the watcher needs them
            embedding = Embedding(embedding.cls, model=embedding.model)
        return Seen(embedding[[0]], one.small, tokens)  # a copy: a slice would keep its whole batch

    # The cache

    def save(self) -> None:
        """Write everything that is not in a file of the cache yet."""
        for store in self._stores.values():
            self._write(store.save)

    def _write(self, write: Callable[..., None], *args: Any) -> None:
        """Write; if that fails, keep nothing more, as scores matter more than their cache."""
        try:
            if not self._full:
                write(*args)
        except OSError as error:
            self._full = True
            for store in self._stores.values():
                store.drop()
            warnings.warn(f"the cache is not complete ({error}); the scores are", stacklevel=2)

    def _mend(self) -> None:
        for store in self._stores.values():
            try:
                lines = store.mend()
            except OutputError as error:  # a folder that is read-only: the shard is not used, and stays
                lines = [str(error)]
            for line in lines:
                warnings.warn(f"in the cache, {line}", stacklevel=2)
