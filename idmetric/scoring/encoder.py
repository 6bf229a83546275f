"""The images of a request: read in threads, embedded in batches or taken from the cache, and held in bounded memory."""

from __future__ import annotations

import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.distance.embedding import Embedding
from idmetric.distance.finite import NonFiniteError, shown
from idmetric.distance.matrix import needs_patches
from idmetric.embed import pipeline
from idmetric.embed.keys import MASKED, content, content_key
from idmetric.images import paths
from idmetric.images.opening import Named
from idmetric.images.read import ImageReadError, describe
from idmetric.io.threads import in_order
from idmetric.scoring.copies import small_picture
from idmetric.scoring.files import mask_path
from idmetric.scoring.pairs import Pair, Pairs
from idmetric.scoring.scores import File
from idmetric.scoring.settings import Settings, Watcher

if TYPE_CHECKING:
    from idmetric.models.embedder import Embedder
    from idmetric.scoring.cache import Cache

_LOOK = 60.0  # seconds to look for further unreadable images
_LISTED = 20  # most images named in an error


class UnreadableImagesError(ImageReadError):
    """Images that cannot be read, each with its reason."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.args = (f"{source}: {reason}",)


@dataclass
class Loaded(pipeline.Input[File]):
    """A file that was read. `small`: the picture from which copies are found."""

    small: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Seen:
    """An embedded image. `small`: the picture from which copies are found. `extra`: what the `Watcher` keeps of it."""

    embedding: Embedding
    small: NDArray[np.uint8] | None
    extra: Any = None

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        e = self.embedding
        kept = (e.cls, e.patches, e.weights, self.small, self.extra)
        return sum(x.nbytes for x in kept if x is not None)


class Memory:
    """The most recently used images, up to a number of bytes; images in use or announced stay, however large."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._kept: OrderedDict[File, Seen] = OrderedDict()
        self._bytes = 0
        self._wanted: Counter[File] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def reserve(self, files: Iterable[File]) -> list[File]:
        """Announce the files to be used; returns the missing ones that have not been announced before."""
        missing = [file for file in files if file not in self._kept and not self._wanted[file]]
        self._wanted.update(files)
        return missing

    def put(self, file: File, seen: Seen) -> None:
        """Add an image that was missing."""
        self._kept[file] = seen
        self._bytes += seen.bytes

    def get(self, file: File) -> Seen | None:
        """An announced image; None if it could not be read."""
        if file in self._kept:
            self._kept.move_to_end(file)
        return self._kept.get(file)

    def release(self, files: Iterable[File]) -> None:
        """Take an announcement back, after use, and forget images that do not fit into memory."""
        for file in files:
            self._wanted[file] -= 1
            if not self._wanted[file]:
                del self._wanted[file]
        if self._bytes <= self._limit:
            return
        for file in [file for file in self._kept if file not in self._wanted]:  # least recently used first
            self._bytes -= self._kept.pop(file).bytes
            if self._bytes <= self._limit:
                break


class Encoder:
    """Reads and embeds files in batches, in memory that does not grow with their number.

    Args:
        on_cpu: move embeddings to the CPU, as many of them are kept.

    Attributes:
        skipped: files that could not be used, with the reasons; only with on_error="skip".
        cache: the folder of embeddings, if there is one.
    """

    def __init__(self, metric: Embedder, settings: Settings, watcher: Watcher | None, on_cpu: bool) -> None:
        self._metric, self._settings, self._watcher, self._on_cpu = metric, settings, watcher, on_cpu
        self._scores_patches = needs_patches(settings.distance)
        self._patches = self._scores_patches or (watcher is not None and watcher.details > 0)
        self.skipped: dict[File, str] = {}
        self.cache: Cache | None = None
        if settings.cache is not None:
            from idmetric.scoring.cache import Cache

            self.cache = Cache(
                Path(settings.cache), metric, settings.outside, self._patches, settings.copies, warnings.warn,
                settings.mask_id,
            )  # fmt: skip

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
        """Yield the pairs in order, with their images. Those that recur soon are read and embedded once."""
        memory = Memory(self._settings.memory * 2**30)
        waiting: deque[tuple[Pair, int]] = deque()  # pairs, and how many of their images are not embedded yet

        def wanted() -> Iterator[File]:
            for pair in pairs:
                missing = [f for f in memory.reserve(list(dict.fromkeys(pair.files))) if f not in self.skipped]
                waiting.append((pair, len(missing)))
                yield from missing

        def complete() -> Iterator[tuple[Pair, Seen | None, Seen | None]]:
            while waiting and not waiting[0][1]:
                pair = waiting.popleft()[0]
                a, b = pair.files
                yield pair, memory.get(a), memory.get(b)
                memory.release(list(dict.fromkeys(pair.files)))

        with closing(self.images(wanted())) as images:
            for file, seen in images:
                if seen is not None:
                    memory.put(file, seen)
                yield from complete()  # the pairs before
                pair, missing = waiting.popleft()
                waiting.appendleft((pair, missing - 1))
                yield from complete()
        yield from complete()

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
            why = error.reason if error.source == path else f"its mask {error.source}: {error.reason}"
            self.skipped[file] = why
            return Loaded(file, problem=why)

    def _read(self, file: File) -> Loaded:
        path, mask = file[0], self._mask_of(file)
        image, mask_image, key = self._content(path, mask)
        cached = self.cache is not None and key in self.cache
        if cached and self._watcher is None:
            return Loaded(file, key)

        # a mask belongs to all pixels of its image
        picture = self._metric.read_image(image, whole=mask is not None)
        options = self._settings
        found = Loaded(file, key)
        try:
            if not cached:
                found.pixels, found.mask = self._metric.load_image(
                    picture, mask_image, options.outside, mask_id=options.mask_id
                )
            if self._watcher is not None:
                from idmetric.images.masks import labeled  # which needs torch, unlike scores by exported models

                self._watcher.add_picture(file, picture, labeled(mask, options.mask_id), options.outside)
        except ImageReadError as error:
            named = path if error.source == describe(picture) else error.source  # the picture has no name
            raise ImageReadError(named, error.reason) from error
        found.small = small_picture(picture) if options.copies else None
        return found

    def _mask_of(self, file: File) -> str | None:
        folder = self._settings.mask_dir
        found = mask_path(folder, file)
        if found is None and folder is not None:
            raise ImageReadError(*paths.absent_mask(folder, file[0]))
        return found

    def _content(self, path: str, mask: str | None) -> tuple[Any, Any, str]:
        """Return image and mask as `images` takes them (with a cache their bytes), and their key in the cache."""
        if self.cache is None:
            return path, mask, ""
        try:
            image, cover = content(path), None if mask is None else content(mask)
        except OSError:  # reported when the image is read
            return path, mask, ""
        if not image or cover == b"":
            return path, mask, ""
        named = None if cover is None or mask is None else Named(cover, mask)
        return Named(image, path), named, content_key(image, cover)

    def unreadable(self, files: Iterable[File]) -> ImageReadError | None:
        """Return the error that lists all unreadable images with their reasons; None if all can be read now."""
        every = list(dict.fromkeys(files))
        threads = pipeline.threads(self._settings.workers)
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

    # Embedding

    def see(self, batch: Sequence[Loaded]) -> dict[File, Seen]:
        """Embed images that have pixels, and take the others from the cache."""
        found: dict[File, Seen] = {}
        fresh = [one for one in batch if one.pixels is not None]
        known = [one for one in batch if one.pixels is None and not one.problem]
        if known and self.cache is not None:
            kept = self.cache.get([one.key for one in known])
            for one in known:
                if one.key in kept:
                    embedding, small = kept[one.key]
                    here = embedding if self._on_cpu else embedding.to(self._metric.device)
                    found[one.item] = self._seen(one, small, here)
                else:  # its shard is damaged or gone
                    again = self.read(one.item)
                    fresh += [again] if again.pixels is not None else []
        size = self._settings.batch_size
        for start in range(0, len(fresh), size):
            found |= self._embed(fresh[start : start + size])
        return found

    def _embed(self, fresh: list[Loaded]) -> dict[File, Seen]:
        """Embed one batch, and keep it in the cache."""
        together, bad = pipeline.embed(self._metric, fresh, self._patches, zero=True)
        if bad and self._settings.on_error == "fail":
            names = [fresh[k].item[0] for k in sorted(bad)]
            raise NonFiniteError(f"{shown(names)}: {next(iter(bad.values()))}", sorted(bad))
        self.skipped |= {fresh[k].item: why for k, why in bad.items()}
        if bad:
            good = [k for k in range(len(fresh)) if k not in bad]
            together, fresh = together[good], [fresh[k] for k in good]
        if self._on_cpu:
            together = together.cpu()
        if self.cache is not None:
            at = [k for k, one in enumerate(fresh) if one.key]
            self.cache.add([fresh[k].key for k in at], together[at].cpu(), [fresh[k].small for k in at])
        return {one.item: self._seen(one, one.small, seen) for one, seen in zip(fresh, together, strict=True)}

    def _seen(self, one: Loaded, small: NDArray[np.uint8] | None, embedding: Embedding) -> Seen:
        masked = one.mask is not None or one.key.endswith(MASKED)
        tokens = None if self._watcher is None else self._watcher.tokens(one.item, masked, embedding)
        if not self._scores_patches:  # kept no longer than the watcher needs them
            embedding = Embedding(embedding.cls, model=embedding.model)
        return Seen(embedding[[0]], small, tokens)  # a copy: a slice would keep its whole batch
