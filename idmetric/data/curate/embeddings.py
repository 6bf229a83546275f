"""Embeddings of a manifest's images, kept in a file so that no image is embedded twice."""

from __future__ import annotations

import glob
import os
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.distance.finite import NonFiniteError, reason
from idmetric.images.read import describe
from idmetric.io.output import replacing
from idmetric.models.embedding import Embedding
from idmetric.store.fingerprint import folder_name, key_of_file

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.models.embedder import Embedder

_SAVE_EVERY = 2_000  # images; a killed run loses at most so many
_KEYS, _MADE_BY, _SUM = "keys", "made-by", "crc32"
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
    return Path(folder) / f"embeddings.{folder_name(model.about())}.safetensors"


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

    An image is known by the hash of its bytes, so each file is read in every run, and rows with the same bytes are
    embedded once. The cache is of one model: exactly its weights as they are in memory, dtype and settings. From time
    to time new embeddings are written to a file next to the cache (`.part-...`). They join the cache at the end, even
    if the run is stopped, or after a kill in the next run.

    Raises:
        ValueError: if the cache is of another model, or no cache of this package.
    """
    wanted = range(len(manifest)) if rows is None else [int(r) for r in rows]
    made_by = folder_name(model.about()) if cache is not None else ""
    known, parts = _load_all(Path(cache), made_by) if cache is not None else ({}, [])
    sources = {r: manifest.source(r) for r in wanted}
    keys, problems = _keys(sources)
    todo = list({key: r for r, key in keys.items() if key not in known}.items())
    failed: dict[str, str] = {}
    fresh: Vectors = {}  # in no file yet
    try:
        images = [sources[r] for _, r in todo]
        for number, (key, (vector, reason)) in enumerate(
            zip((key for key, _ in todo), _vectors(model, images, [key for key, _ in todo], batch_size), strict=True), 1
        ):
            if vector is None:
                failed[key] = reason
            else:
                known[key] = fresh[key] = vector
            if progress is not None:
                progress(number, len(todo))
            if len(fresh) >= _SAVE_EVERY and cache is not None:
                parts.append(_part(Path(cache)))
                _save(parts[-1], fresh, model, made_by)
                fresh = {}
    finally:
        if cache is not None and (fresh or parts):
            _save(Path(cache), known, model, made_by)
            for part in parts:
                part.unlink(missing_ok=True)
    problems |= {r: failed[key] for r, key in keys.items() if key in failed}
    size = len(next(iter(known.values()))) if known else 0
    vectors = np.full((len(manifest), size), np.nan, dtype=np.float32)
    for r, key in keys.items():
        if key in known:
            vectors[r] = known[key]
    return Embedded(vectors, dict(sorted(problems.items())))


def _keys(sources: Mapping[int, str | bytes | None]) -> tuple[dict[int, str], dict[int, str]]:
    """Row -> the key of its image's content; row -> why it cannot be read."""

    def key(source: str | bytes | None) -> tuple[str, str]:
        try:
            return key_of_file(source or ""), ""
        except OSError as error:
            return "", f"{describe(source)}: {error.strerror or error}"

    different = list(dict.fromkeys(sources.values()))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = dict(zip(different, pool.map(key, different), strict=True))
    keys = {row: found[source][0] for row, source in sources.items() if found[source][0]}
    return keys, {row: found[source][1] for row, source in sources.items() if found[source][1]}


def _vectors(
    model: Embedder, images: Sequence[Any], keys: Sequence[str], batch_size: int
) -> Iterator[tuple[NDArray[np.float32] | None, str]]:
    """The vector of each image, or None and why; the next batch is read while one is embedded."""

    def read(source: Any, key: str) -> torch.Tensor | str:
        try:
            pixels = model.load_image(source)[0]
            changed = not isinstance(source, bytes) and key_of_file(source) != key
            return f"{describe(source)}: it changed while it was read: run again" if changed else pixels
        except (ValueError, OSError) as error:
            return str(error)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        pairs = list(zip(images, keys, strict=True))
        batches = [pairs[s : s + batch_size] for s in range(0, len(pairs), batch_size)]
        ahead = [pool.submit(read, *x) for x in batches[0]] if batches else []
        for number in range(len(batches)):
            loaded = [f.result() for f in ahead]
            ahead = [pool.submit(read, *x) for x in batches[number + 1]] if number + 1 < len(batches) else []
            pixels = [x for x in loaded if not isinstance(x, str)]
            found: Iterator[NDArray[np.float32]] = iter(())
            if pixels:
                found = iter(_embedded(model, pixels).cls.float().cpu().numpy())
            for x in loaded:
                if isinstance(x, str):
                    yield None, x
                else:
                    vector = np.array(next(found))
                    finite = np.isfinite(vector).all()
                    problem = reason(model.dtype) if not finite else "" if vector.any() else "its embedding is zero"
                    yield (None, problem) if problem else (vector, "")


def _embedded(model: Embedder, pixels: Sequence[torch.Tensor]) -> Embedding:
    """One batch, in which some features may not be finite."""
    try:
        return model.embed(list(pixels), batch_size=len(pixels), patches=False)
    except NonFiniteError as error:
        if error.embedding is None:
            raise
        found: Embedding = error.embedding
        return found


def _load_all(cache: Path, made_by: str) -> tuple[Vectors, list[Path]]:
    """What the cache knows, and the parts beside it that a killed run left."""
    parts = sorted(cache.parent.glob(f"{glob.escape(cache.name)}.part-*")) if cache.parent.is_dir() else []
    known: Vectors = {}
    for path in (cache, *parts):
        known |= _load(path, made_by)
    return known, parts


def _part(cache: Path) -> Path:
    """A new name, also where two runs share the cache."""
    return cache.with_name(f"{cache.name}.part-{uuid.uuid4().hex}")


def _load(path: Path, made_by: str) -> Vectors:
    from safetensors import safe_open

    if not path.is_file():
        return {}
    embedding = Embedding.load(path)
    with safe_open(path, "pt") as file:
        head = file.metadata() or {}
        keys = head.get(_KEYS, "").split()
    if len(keys) != len(embedding):
        raise ValueError(f"{os.fspath(path)!r} does not say which images it holds: delete it, or name another file")
    if _MADE_BY not in head:
        raise ValueError(
            f"{os.fspath(path)!r} was written by idmetric 0.1, which identified images by file times, not by their "
            "content: delete it, or name another file"
        )
    if head[_MADE_BY] != made_by:
        raise ValueError(
            f"{os.fspath(path)!r} holds embeddings of {embedding.model} as it was then ({head[_MADE_BY]}), not of the "
            f"model as it is now ({made_by}): name another file"
        )
    if head.get(_SUM) not in (None, _crc(keys, embedding.cls)):
        raise ValueError(f"{os.fspath(path)!r} is damaged, the disk has changed it: delete it, or name another file")
    return dict(zip(keys, embedding.cls.float().numpy(), strict=True))


def _save(path: Path, vectors: Vectors, model: Embedder, made_by: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        cls = torch.from_numpy(np.stack(list(vectors.values())))
        more = {_KEYS: " ".join(vectors), _MADE_BY: made_by, _SUM: _crc(list(vectors), cls)}
        Embedding(cls, model=model.model_id).save(temporary, more)


def _crc(keys: Sequence[str], cls: torch.Tensor) -> str:
    """CRC-32 of keys and vectors, as hex digits."""
    return f"{zlib.crc32(cls.numpy().tobytes(), zlib.crc32(' '.join(keys).encode())):08x}"
