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
from PIL import Image

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import NonFiniteError, shown
from idmetric.metric.distance.matrix import needs_patches
from idmetric.metric.files.output import OutputError, writing
from idmetric.metric.images import paths
from idmetric.metric.images.masks import MaskLike, labeled
from idmetric.metric.images.read import ImageReadError, Outside
from idmetric.metric.scoring import pipeline
from idmetric.metric.scoring.copy_warnings import small_picture
from idmetric.metric.scoring.files import mask_path
from idmetric.metric.scoring.in_memory import source_of, under_their_names
from idmetric.metric.scoring.keys import MASKED, folder_name
from idmetric.metric.scoring.pairs import Pair, Pairs
from idmetric.metric.scoring.records import Record
from idmetric.metric.scoring.scores import File, ScoreSettings

if TYPE_CHECKING:
    from idmetric.metric.models.embedder import Embedder
    from idmetric.metric.scoring.store import Store
    from idmetric.metric.scoring.subject import Subject


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

    def tokens(self, file: File, masked: bool, embedding: Embedding, /) -> Any:
        """Return what `add` needs of an image, of whatever type."""

    def add(self, row: Record, image: File, reference: File, image_tokens: Any, reference_tokens: Any, /) -> None:
        """See a row, before it is ranked; the tokens are those of its image and its reference."""


@dataclass
class Loaded(pipeline.Input[File]):
    """A file that was read. `small`: the picture from which copies are found."""

    small: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Seen:
    """An embedded image. `small`: the picture from which copies are found. `tokens`: what the watcher wants of it."""

    embedding: Embedding
    small: NDArray[np.uint8] | None
    tokens: Any = None


class Encoder:
    """Reads and embeds files in batches; embeddings are kept on the CPU, as there may be many.

    If the cache's disk is full, nothing more is kept; scores do not depend on the cache.

    Args:
        watcher: sees pictures and embeddings as they come, or None.

    Attributes:
        skipped: files that could not be used, with the reasons; only with on_error="skip".
    """

    def __init__(self, metric: Embedder, settings: ScoreSettings, watcher: Watcher | None) -> None:
        self._metric = metric
        self._settings = settings
        self._watcher = watcher
        self._scores_patches = needs_patches(settings.distance)
        self._patches = self._scores_patches or (watcher is not None and watcher.details > 0)
        self.skipped: dict[File, str] = {}
        self._stores: list[Store] = []  # of whole and of masked images
        self._is_full = False
        if settings.cache is not None:
            from idmetric.metric.scoring.store import Store

            folder = Path(settings.cache)
            with writing(folder):  # before anything is embedded
                folder.mkdir(parents=True, exist_ok=True)
            for facts in (metric.about(), metric.about(settings.outside, settings.mask_id)):
                of_model = folder / folder_name(facts)
                self._stores.append(Store(of_model, self._patches, metric.model_id))
            self._drop_damaged()

    def images(self, files: Iterable[File]) -> Generator[tuple[File, Seen | None], None, None]:
        """Yield each file in order, embedded; None for one that is skipped."""
        batch_size = self._settings.batch_size
        workers = self._settings.workers
        batches = pipeline.batches(files, self.read, batch_size=batch_size, workers=workers)
        with closing(batches):
            for batch in batches:
                batch_files = [image.item for image in batch]
                results = self.see(batch)
                for file in batch_files:
                    yield file, results.get(file)

    def of_subject(self, subject: Subject) -> dict[File, Seen]:
        """The references of a subject as if they were read: thumbnails stand for the photos."""
        images: dict[File, Seen] = {}
        photos = zip(subject.references, subject.thumbnails, strict=True)
        for row, (name, thumbnail) in enumerate(photos):
            file = (name, None)
            if self._watcher is not None:
                picture = Image.fromarray(thumbnail)
                self._watcher.add_picture(file, picture, None, "keep")
            loaded = Loaded(file)
            if self._settings.copies:
                loaded.small = thumbnail
            images[file] = self._seen(loaded, subject.embedding[[row]])
        return images

    def pairs(self, pairs: Pairs) -> Iterator[tuple[Pair, Seen | None, Seen | None]]:
        """Yield the pairs in order, with their images: each is embedded once, and held until its last pair."""
        uses: Counter[File] = Counter()
        for pair in pairs:
            uses.update(set(pair.files))
        images: dict[File, Seen | None] = {}
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

    # Reading

    def read(self, file: File) -> Loaded:
        """Read a file, its pixels and mask at the model's resolution.

        Raises:
            ImageReadError: with on_error="fail".
        """
        path = file[0]
        try:
            with under_their_names(*file):
                return self._read(file)
        except ImageReadError as error:
            if self._settings.on_error == "fail":
                raise
            problem = pipeline.problem_of(error, path)
            self.skipped[file] = problem
            return Loaded(file, problem=problem)

    def _read(self, file: File) -> Loaded:
        options = self._settings
        path = file[0]
        mask = mask_path(options.mask_dir, file)
        if mask is None and options.mask_dir is not None:
            raise ImageReadError(*paths.absent_mask(options.mask_dir, path))
        image: Any = source_of(path)
        subject_mask: Any = source_of(mask)
        loaded = Loaded(file)
        is_cached = False
        is_in_memory = image is not path or subject_mask is not mask  # not kept: a key is of the bytes of files
        if self._stores and not is_in_memory:
            source = pipeline.Source.read(path, mask)
            image = source.image
            subject_mask = source.mask
            loaded.key = source.key
            is_cached = loaded.key in self._store_of(loaded.key)
            if is_cached and self._watcher is None and not options.copies:
                return loaded

        picture = self._metric.read_image(image, whole=mask is not None)  # a mask belongs to all pixels of its image
        if not is_cached:
            loaded.pixels, loaded.mask = self._metric.load_image(
                picture, subject_mask, options.outside, mask_id=options.mask_id
            )
        if self._watcher is not None:
            labeled_mask = labeled(source_of(mask), options.mask_id)
            self._watcher.add_picture(file, picture, labeled_mask, options.outside)
        if options.copies:
            loaded.small = small_picture(picture)
        return loaded

    # Embedding

    def see(self, batch: Sequence[Loaded]) -> dict[File, Seen]:
        """Embed images that have pixels, and take the others from the cache."""
        cached = [image for image in batch if image.pixels is None and not image.problem]
        results = self._from_cache(cached) if cached else {}
        lost = [image for image in cached if image.item not in results]  # their shard is damaged or gone
        again = [self.read(image.item) for image in lost]
        fresh = [image for image in (*batch, *again) if image.pixels is not None]
        if fresh:
            results |= self._embed(fresh)
        return results

    def _from_cache(self, images: Sequence[Loaded]) -> dict[File, Seen]:
        embeddings: dict[str, Embedding] = {}
        for store in self._stores:
            if store.unsaved:
                self._write(store.save)
            keys = [image.key for image in images if self._store_of(image.key) is store]
            embeddings |= store.readable(keys)
        self._drop_damaged()
        results = {}
        for image in images:
            if image.key in embeddings:
                results[image.item] = self._seen(image, embeddings[image.key])
        return results

    def _embed(self, images: list[Loaded]) -> dict[File, Seen]:
        """Embed one batch, and keep it in the cache."""
        embedding, reasons = pipeline.embed(self._metric, images, self._patches, zero=True)
        if reasons and self._settings.on_error == "fail":
            rows = sorted(reasons)
            names = [images[row].item[0] for row in rows]
            raise NonFiniteError(f"{shown(names)}: {reasons[rows[0]]}", rows)
        for row, reason in reasons.items():
            self.skipped[images[row].item] = reason

        embedding = embedding.cpu()
        usable = [row for row in range(len(images)) if row not in reasons]
        for store in self._stores:
            row_of_key = {}
            for row in usable:
                key = images[row].key
                if key and self._store_of(key) is store:
                    row_of_key[key] = row
            if row_of_key:
                rows = list(row_of_key.values())
                self._write(store.add, list(row_of_key), embedding[rows])
        results = {}
        for row in usable:
            image = images[row]
            results[image.item] = self._seen(image, embedding[row])
        return results

    def _seen(self, image: Loaded, embedding: Embedding) -> Seen:
        tokens = None
        if self._watcher is not None:
            is_masked = image.mask is not None or image.key.endswith(MASKED)
            tokens = self._watcher.tokens(image.item, is_masked, embedding)
        if not self._scores_patches:  # kept no longer than the watcher needs them
            embedding = Embedding(embedding.cls, model=embedding.model)
        return Seen(embedding[[0]], image.small, tokens)  # a copy: a slice would keep its whole batch

    # The cache

    def _store_of(self, key: str) -> Store:
        return self._stores[key.endswith(MASKED)]

    def save(self) -> None:
        """Write everything that is not in a file of the cache yet."""
        for store in self._stores:
            self._write(store.save)

    def _write(self, write: Callable[..., None], *args: Any) -> None:
        """Write; if that fails, keep nothing more, as scores matter more than their cache."""
        if self._is_full:
            return
        try:
            write(*args)
        except OSError as error:
            self._is_full = True
            for store in self._stores:
                store.drop()
            warnings.warn(f"the cache is not complete ({error}); the scores are", stacklevel=2)

    def _drop_damaged(self) -> None:
        for store in self._stores:
            try:
                lines = store.drop_damaged()
            except OutputError as error:  # a folder that is read-only: the shard is not used, and stays
                lines = [str(error)]
            for line in lines:
                warnings.warn(f"in the cache, {line}", stacklevel=2)
