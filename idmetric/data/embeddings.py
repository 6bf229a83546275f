"""Embeddings of a manifest's images, kept in a file so that no image is embedded twice."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.checkpoint import replacing
from idmetric.embedding import Embedding
from idmetric.images import describe

if TYPE_CHECKING:
    from idmetric.data.manifest import Manifest
    from idmetric.embedder import Embedder

_SAVE_EVERY = 2_000  # images; a killed run loses at most so many
_KEYS = "keys"
Vectors = dict[str, NDArray[np.float32]]  # key of an image -> its vector


@dataclass(frozen=True)
class Embedded:
    """What a model says of a manifest's images.

    Attributes:
        vectors: global features (N, D), float32; NaN in rows that were not asked for or could not be read.
        problems: row -> why it could not be read.
    """

    vectors: NDArray[np.float32]
    problems: dict[int, str]


def cache_path(folder: str | os.PathLike[str], model: Embedder) -> Path:
    """Where embeddings of this model are kept in a folder: one file for all that is mined there."""
    return Path(folder) / f"embeddings.{re.sub('[^A-Za-z0-9]+', '-', model.model_id).strip('-')}.safetensors"


def embed_rows(
    manifest: Manifest,
    model: Embedder,
    rows: Sequence[int] | NDArray[np.integer] | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Embedded:
    """Embed the images of some rows (default all), except those that the cache file knows.

    An image is known by its file's place, size and time of change, or by its bytes; rows that show the same file are
    embedded once. From time to time what is new goes into a file beside the cache (`.part-...`); at the end, also where
    the run is stopped, and in the next run after a kill, the cache takes these in.

    Raises:
        ValueError: if the cache is of another model, or no cache of this package.
    """
    wanted = range(len(manifest)) if rows is None else [int(r) for r in rows]
    known, parts = _load_all(Path(cache), model) if cache is not None else ({}, [])
    sources = {r: manifest.source(r) for r in wanted}
    problems: dict[int, str] = {}
    keys: dict[int, str] = {}
    for r, source in sources.items():
        try:
            keys[r] = _key(source)
        except OSError as error:
            problems[r] = f"{describe(source)}: {error.strerror or error}"
    todo = list({key: r for r, key in keys.items() if key not in known}.items())
    failed: dict[str, str] = {}
    fresh: Vectors = {}  # in no file yet
    try:
        images = [sources[r] for _, r in todo]
        for number, (key, (vector, reason)) in enumerate(
            zip((key for key, _ in todo), _vectors(model, images, batch_size), strict=True), 1
        ):
            if vector is None:
                failed[key] = reason
            else:
                known[key] = fresh[key] = vector
            if progress is not None:
                progress(number, len(todo))
            if len(fresh) >= _SAVE_EVERY and cache is not None:
                parts.append(_part(Path(cache)))
                _save(parts[-1], fresh, model)
                fresh = {}
    finally:
        if cache is not None and (fresh or parts):
            _save(Path(cache), known, model)
            for part in parts:
                part.unlink(missing_ok=True)
    problems |= {r: failed[key] for r, key in keys.items() if key in failed}
    size = len(next(iter(known.values()))) if known else 0
    vectors = np.full((len(manifest), size), np.nan, dtype=np.float32)
    for r, key in keys.items():
        if key in known:
            vectors[r] = known[key]
    return Embedded(vectors, dict(sorted(problems.items())))


def _vectors(
    model: Embedder, images: Sequence[Any], batch_size: int
) -> Iterator[tuple[NDArray[np.float32] | None, str]]:
    """The vector of each image, or None and why; the next batch is read while one is embedded."""

    def read(source: Any) -> torch.Tensor | str:
        try:
            return model.load_image(source)[0]
        except (ValueError, OSError) as error:
            return str(error)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        batches = [images[s : s + batch_size] for s in range(0, len(images), batch_size)]
        ahead = [pool.submit(read, x) for x in batches[0]] if batches else []
        for number in range(len(batches)):
            loaded = [f.result() for f in ahead]
            ahead = [pool.submit(read, x) for x in batches[number + 1]] if number + 1 < len(batches) else []
            pixels = [x for x in loaded if not isinstance(x, str)]
            found: Iterator[NDArray[np.float32]] = iter(())
            if pixels:
                found = iter(model.embed(pixels, batch_size=batch_size, patches=False).cls.float().cpu().numpy())
            for x in loaded:
                if isinstance(x, str):
                    yield None, x
                else:
                    vector = np.array(next(found))
                    usable = np.isfinite(vector).all() and vector.any()
                    yield (vector, "") if usable else (None, "its embedding is zero or not finite")


def _key(source: str | bytes | None) -> str:
    if isinstance(source, bytes):
        return hashlib.blake2b(source, digest_size=16).hexdigest()
    stat = os.stat(source or "")
    text = f"{os.path.realpath(source or '')}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _load_all(cache: Path, model: Embedder) -> tuple[Vectors, list[Path]]:
    """What the cache knows, and the parts beside it that a killed run left."""
    parts = sorted(cache.parent.glob(f"{glob.escape(cache.name)}.part-*")) if cache.parent.is_dir() else []
    known: Vectors = {}
    for path in (cache, *parts):
        known |= _load(path, model)
    return known, parts


def _part(cache: Path) -> Path:
    """A new name, also where two runs share the cache."""
    return cache.with_name(f"{cache.name}.part-{uuid.uuid4().hex}")


def _load(path: Path, model: Embedder) -> Vectors:
    from safetensors import safe_open

    if not path.is_file():
        return {}
    embedding = Embedding.load(path)
    with safe_open(path, "pt") as file:
        keys = (file.metadata() or {}).get(_KEYS, "").split()
    if len(keys) != len(embedding):
        raise ValueError(f"{os.fspath(path)!r} does not say which images it holds: delete it, or name another file")
    if embedding.model != model.model_id:
        raise ValueError(f"{os.fspath(path)!r} holds embeddings of {embedding.model}, not of {model.model_id}")
    return dict(zip(keys, embedding.cls.float().numpy(), strict=True))


def _save(path: Path, vectors: Vectors, model: Embedder) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        cls = torch.from_numpy(np.stack(list(vectors.values())))
        Embedding(cls, model=model.model_id).save(temporary, {_KEYS: " ".join(vectors)})
