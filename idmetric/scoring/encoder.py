"""Embedding of read images for scoring: in batches, by the model or from the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.distance.finite import NonFiniteError, reason, shown
from idmetric.distance.matrix import needs_patches
from idmetric.io.threads import in_order
from idmetric.models.embedding import Embedding
from idmetric.scoring.memory import Memory, Seen
from idmetric.scoring.pairs import Pair, Pairs
from idmetric.scoring.reader import Loaded, Reader
from idmetric.scoring.scores import File
from idmetric.scoring.settings import Progress, Settings, Watcher

if TYPE_CHECKING:
    from idmetric.models.embedder import Embedder

_AHEAD = 2  # windows of pairs that are read while one is embedded


class Encoder:
    """Embeds files in batches, in memory that does not grow with their number.

    Args:
        on_cpu: move embeddings to the CPU, as many of them are kept.
    """

    def __init__(
        self, metric: Embedder, settings: Settings, reader: Reader, watcher: Watcher | None, on_cpu: bool
    ) -> None:
        self._metric, self._settings, self._reader, self._watcher = metric, settings, reader, watcher
        self._on_cpu = on_cpu
        self._scores_patches = needs_patches(settings.distance)

    def images(self, files: Sequence[File], progress: Progress) -> Iterator[tuple[File, Seen]]:
        """Yield the images in order, without unreadable ones; at most three batches are decoded at once."""
        size, done = self._settings.batch_size, 0
        threads = self._settings.threads
        with closing(in_order(self._reader.read, files, threads=threads, waiting=2 * size)) as ahead:
            while part := list(islice(ahead, size)):
                yield from self.see([x for x in part if x is not None])
                done += len(part)
                part.clear()  # frees its pixels before waiting for the next
                progress(done, len(files))

    def windows(self, pairs: Pairs) -> Iterator[tuple[list[Pair], Mapping[File, Seen]]]:
        """Yield a batch of adjacent pairs with their images at a time; the next two batches are read meanwhile.

        Images stay in `Memory`; those that recur soon are read and embedded once. Windows depend only on the pairs,
        not on the images in memory, and a resumed run passes the same batches to the model.
        """
        memory = Memory(self._settings.memory * 2**30)
        ahead: deque[tuple[list[Pair], list[File], list[Future[Loaded | None]]]] = deque()
        with ThreadPoolExecutor(self._settings.threads) as pool:
            try:
                for part in pairs.windows(max(2, self._settings.batch_size)):
                    files = list(dict.fromkeys(file for pair in part for file in pair.files))
                    missing = [file for file in memory.reserve(files) if file not in self._reader.skipped]
                    ahead.append((part, files, [pool.submit(self._reader.read, file) for file in missing]))
                    if len(ahead) > _AHEAD:
                        yield self._next(*ahead.popleft(), memory)
                while ahead:
                    yield self._next(*ahead.popleft(), memory)
            finally:
                pool.shutdown(cancel_futures=True)

    def _next(
        self, part: list[Pair], files: list[File], coming: list[Future[Loaded | None]], memory: Memory
    ) -> tuple[list[Pair], Mapping[File, Seen]]:
        loaded = [x for x in (future.result() for future in coming) if x is not None]
        coming.clear()
        for file, seen in self.see(loaded):
            memory.put(file, seen)
        kept = {file: memory.get(file) for file in files}
        memory.release(files)
        return part, {file: seen for file, seen in kept.items() if seen is not None}

    def see(self, loaded: Sequence[Loaded]) -> list[tuple[File, Seen]]:
        """Embed images that have pixels, and take the others from the cache."""
        found: dict[File, Seen] = {}
        known = [x for x in loaded if x.pixels is None]
        cache = self._reader.cache
        if known and cache is not None:
            kept = cache.get([x.key for x in known if x.key is not None])
            for x, one in zip(known, kept, strict=True):
                if one is not None:
                    embedding, small = one
                    here = embedding if self._on_cpu else embedding.to(self._metric.device)
                    found[x.file] = self._seen(x, small, here)

        again = (self._reader.read(x.file) for x in known if x.file not in found)  # images of a damaged shard
        fresh = [x for x in (*loaded, *again) if x is not None and x.pixels is not None]
        size = self._settings.batch_size
        for start in range(0, len(fresh), size):
            found |= self._embed(fresh[start : start + size])
        return [(x.file, found[x.file]) for x in loaded if x.file in found]

    def _embed(self, fresh: list[Loaded]) -> dict[File, Seen]:
        """Embed one batch, and keep it in the cache."""
        together, fresh = self._finite(fresh)
        if self._on_cpu:
            together = together.cpu()
        if self._reader.cache is not None:
            at = [k for k, x in enumerate(fresh) if x.key is not None]
            keys = [key for x in fresh if (key := x.key) is not None]
            self._reader.cache.add(keys, together[at].cpu(), [fresh[k].small for k in at])
        return {x.file: self._seen(x, x.small, embedding) for x, embedding in zip(fresh, together, strict=True)}

    def _finite(self, batch: list[Loaded]) -> tuple[Embedding, list[Loaded]]:
        """Embed a batch; returns the embedding and its images, without images that have non-finite features."""
        try:
            return self._metric.embed(
                [x.pixels for x in batch if x.pixels is not None], batch_size=self._settings.batch_size,
                masks=[x.mask for x in batch], outside="keep",  # load_image has applied it
                patches=self._reader.patches,
            ), batch  # fmt: skip
        except NonFiniteError as error:
            why, lost = reason(self._metric.dtype), [batch[k].file for k in error.rows]
            if self._settings.on_error == "fail" or error.embedding is None:
                raise NonFiniteError(f"{shown([path for path, _ in lost])}: {why}", error.rows) from error
            self._reader.skipped |= dict.fromkeys(lost, why)
            good = [k for k in range(len(batch)) if k not in error.rows]
            return error.embedding[good], [batch[k] for k in good]

    def _seen(self, x: Loaded, small: NDArray[np.uint8] | None, embedding: Embedding) -> Seen:
        masked = x.mask is not None or (x.key is not None and x.key[0])
        tokens = None if self._watcher is None else self._watcher.tokens(x.file, masked, embedding)
        if not self._scores_patches:  # kept no longer than the watcher needs them
            embedding = Embedding(embedding.cls, model=embedding.model)
        return Seen(embedding[[0]], small, tokens)  # a copy: a slice would keep its whole batch
