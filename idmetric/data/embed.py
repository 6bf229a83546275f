"""Embed the images of a manifest with one or several models; each image is read once for all of them.

    stored = embed(manifest, {"tiny": EmbedderModel(tiny)}, store=Path("results/embeddings"))
    stored["tiny"].vectors([0, 5, 7])  # global features of rows 0, 5 and 7

A `store.Store` for each model and `Look` keeps the embeddings, under a hash of the image, its mask and its text. A
changed file, another model or other weights therefore never get an old embedding, and a stopped run resumes with the
images that are missing.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.look import Look, UnreadableError
from idmetric.data.manifest.table import Manifest
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.images.masks import labeled
from idmetric.metric.images.opening import Named
from idmetric.metric.images.read import ImageReadError, Outside, Preprocessing, describe, read_image
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.scoring.keys import content, content_key, key_of, settings_digest
from idmetric.metric.scoring.pipeline import Input, batches, keep, usable
from idmetric.metric.scoring.store import Store

Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]
Item = tuple[str | bytes | None, str | bytes | None, str | None]  # an image, its mask, and the text that goes with it
_TEXT = "text"  # key of a row without an image, before that of its words


# Models


class VectorModel(Protocol):
    """A model that embeds images: an `EmbedderModel`, or a baseline."""

    background: tuple[int, int, int]  # behind transparent images
    reads_words: bool  # whether text changes an image's embedding

    def signature(self) -> dict[str, str]:
        """Everything that its embeddings depend on."""

    def prepare(self, image: Image.Image | None, mask: Any, outside: Outside, words: str | None) -> Any:
        """Turn an image into the model's input, in a thread; ImageReadError if that is impossible.

        Models that read words also get texts without an image, as None.
        """

    def embed(self, prepared: Sequence[Any], patches: bool) -> Embedding:
        """Embed a batch of inputs from `prepare`."""


class EmbedderModel:
    """An `Embedder` as a `VectorModel`."""

    has_patches = True

    def __init__(self, metric: Embedder) -> None:
        self.metric = metric
        self.background, self.preprocessing = metric.background, metric.preprocessing
        self.decode, self.decoded = metric.decode, partial(metric.read_image, whole=False)
        self.reads_words = hasattr(metric, "encode_items")  # VisIDEmbed

    def signature(self) -> dict[str, str]:
        """See `VectorModel`."""
        facts = self.metric.about()
        return {
            **self.metric.signature(), "interpolation": self.metric.interpolation, "weights": facts["weights"],
            "settings": settings_digest({key: facts[key] for key in ("settings", "seen")}),
        }  # fmt: skip

    def prepare(self, image: Image.Image | None, mask: Any, outside: Outside, words: str | None) -> Any:
        """See `VectorModel`."""
        return *((None, None) if image is None else self.metric.load_image(image, mask, outside)), words

    def embed(self, prepared: Sequence[Any], patches: bool) -> Embedding:
        """See `VectorModel`."""
        pixels, covers, words = zip(*prepared, strict=True)
        masks = None if all(c is None for c in covers) else list(covers)
        # load_image has already replaced the pixels outside the mask
        options: dict[str, Any] = {"batch_size": len(pixels), "masks": masks, "outside": "keep", "patches": patches}
        if self.reads_words and any(w is not None for w in words):
            default = self.metric.config()["instruction"]
            options |= {"texts": [default if w is None else w for w in words], "instruction": ""}
        return self.metric.embed(list(pixels), **options)


@dataclass(frozen=True)
class Stored:
    """The embeddings of a manifest's images by one model; rows are numbered as in the manifest.

    Attributes:
        keys: row -> key in the store. problems: row -> the reason why its image cannot be used.
    """

    store: Store
    keys: Mapping[int, str]
    problems: Mapping[int, str] = field(default_factory=dict)
    _folder: Any = field(default=None, repr=False)  # keeps a temporary folder alive

    def vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Global features (N, D) of rows."""
        return self.store.vectors([self.keys[int(row)] for row in rows])

    def embedding(self, rows: Rows) -> Embedding:
        """Embeddings of rows, with patches if `embed` kept them."""
        return self.store.embedding([self.keys[int(row)] for row in rows])


def embed(
    manifest: Manifest,
    models: Mapping[str, VectorModel],
    rows: Rows | None = None,
    *,
    store: Path | None = None,
    patches: bool = False,
    look: Look = Look(),  # noqa: B008  # immutable
    words: Mapping[int, str] | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
    skip: bool = False,
) -> dict[str, Stored]:
    """Embed rows (default: all) with each model, except images that the store already holds.

    Args:
        store: folder that keeps the embeddings; None: a temporary one.
        patches: keep patch tokens too; they stay on disk and are read on demand.
        words: row -> the text of its image, including the instruction, for models that read text; other rows get the
            model's default. A row without an image is its text alone.
        batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
        progress: called with (images done, images).
        skip: leave out images that cannot be used, see `Stored.problems`.

    Raises:
        UnreadableError: without `skip`, naming all images that are missing (before anything is embedded), or that
            cannot be read or embedded (the store keeps the embeddings of the rest).
    """
    chosen = range(len(manifest)) if rows is None else sorted({int(row) for row in rows})
    items, problems = _items(manifest, chosen, look, words or {}, all(model.reads_words for model in models.values()))
    if problems and not skip:
        raise UnreadableError(manifest, problems)
    temporary = tempfile.TemporaryDirectory(prefix="idmetric-") if store is None else None
    folder = store or Path(temporary.name if temporary else "")
    stores = {name: Store(folder / look.folder(model), patches, model="") for name, model in models.items()}
    for line in chain.from_iterable(store.mend() for store in stores.values()):
        warnings.warn(line, stacklevel=2)
    keys: dict[str, dict[int, str]] = {name: {} for name in models}

    def read(item: Item) -> Input[Item]:
        try:
            return _read(item, models, stores, look)
        except (ValueError, OSError) as error:
            return Input(item, problem=str(error))

    done = 0
    try:
        with closing(batches(items, read, batch_size=batch_size, workers=workers)) as ahead:
            for batch in ahead:
                for name, model in models.items():
                    _embed(name, model, [one for one in batch if not one.problem], stores[name])
                for one in batch:
                    if one.problem:
                        problems |= dict.fromkeys(items[one.item], one.problem)
                    for name, model in models.items() if not one.problem else ():
                        keys[name] |= dict.fromkeys(items[one.item], _key(one, model))
                done += len(batch)
                if progress is not None:
                    progress(done, len(items))
    finally:  # also if the run is stopped
        for each in stores.values():
            each.save()
    problems = dict(sorted(problems.items()))
    if problems and not skip:
        raise UnreadableError(manifest, problems)
    return {name: Stored(stores[name], keys[name], problems, temporary) for name in models}


def embed_rows(
    manifest: Manifest, model: Embedder, rows: Rows | None = None, **given: Any
) -> tuple[NDArray[np.float32], Mapping[int, str]]:
    """Embed rows (default: all) with one model, leaving out images that cannot be used; arguments as of `embed`.

    Returns:
        Global features (N, D) of all rows of the manifest, NaN in rows that were not requested or cannot be used; and
        row -> the reason why it cannot.
    """
    stored = embed(manifest, {model.label: EmbedderModel(model)}, rows, skip=True, **given)[model.label]
    found = stored.vectors(list(stored.keys))
    vectors = np.full((len(manifest), found.shape[1]), np.nan, dtype=np.float32)
    vectors[list(stored.keys)] = found
    return vectors, stored.problems


# Images on their way to the models


def _items(
    manifest: Manifest, rows: Iterable[int], look: Look, words: Mapping[int, str], readers: bool
) -> tuple[dict[Item, list[int]], dict[int, str]]:
    """The rows of each different image, mask and text; and row -> reason of rows that cannot be used."""
    look.check(manifest)
    items: dict[Item, list[int]] = {}
    problems: dict[int, str] = {}
    there = cache(os.path.isfile)
    for row in rows:
        image, mask = manifest.source(row), manifest.source(row, "mask") if look.masked else None
        gone = [path for path in (image, mask) if isinstance(path, str) and not there(path)]
        if gone:
            problems[row] = f"{gone[0]}: there is no such file"
        elif image is None and not (readers and words.get(row)):
            problems[row] = "a text without an image, which needs models that read text"
        else:
            items.setdefault((image, mask, words.get(row)), []).append(row)
    return items, problems


def content_keys(manifest: Manifest, rows: Sequence[int], look: Look, pool: ThreadPoolExecutor) -> dict[int, str]:
    """A key of each row, equal for rows with the same bytes of image (and mask).

    UnreadableError names all files that are missing, OSError one that cannot be read.
    """
    items, problems = _items(manifest, rows, look, {}, False)
    if problems:
        raise UnreadableError(manifest, problems)
    found = pool.map(lambda item: key_of(item[0] or b"", item[1]), items)
    keys = {row: key for own, key in zip(items.values(), found, strict=True) for row in own}
    return {row: keys[row] for row in rows}


def _key(one: Input[Item], model: VectorModel) -> str:
    """The key of an image's embedding, which depends on the text for models that read it."""
    text = one.item[2]
    return one.key if text is None or not model.reads_words else f"{one.key}-{settings_digest({'words': text})}"


def _read(item: Item, models: Mapping[str, Any], stores: Mapping[str, Store], look: Look) -> Input[Item]:
    """The image as the input of each model that has not embedded it, decoded once for all that decode it alike."""
    image, mask, text = item
    data, cover = (None if source is None else content(source) for source in (image, mask))
    found = Input(item, _TEXT if data is None else content_key(data, cover))
    decoded: dict[Any, Image.Image] = {}
    pixels = {}
    for name, model in models.items():
        if _key(found, model) in stores[name]:
            continue
        if image is None:
            pixels[name] = model.prepare(None, None, look.outside, text)
            continue
        reading: Preprocessing = getattr(model, "preprocessing", "standard")
        # a mask belongs to all pixels; without one, models that leave pixels out each decode the file themselves
        fast = mask is None and getattr(model, "decode", "exact") == "fast"
        way = name if fast else (model.background, reading)
        if way not in decoded:
            read = model.decoded if fast else partial(read_image, background=model.background, preprocessing=reading)
            decoded[way] = read(_named(data, image))
        try:
            pixels[name] = model.prepare(decoded[way], labeled(_named(cover, mask), look.mask_id), look.outside, text)
        except ImageReadError as error:  # a decoded image has no name
            named = describe(image) if error.source.startswith("<PIL") else error.source
            raise ImageReadError(named, error.reason) from error
    found.pixels = pixels or None
    return found


def _named(data: bytes | None, source: str | bytes | None) -> Any:
    """The bytes that a key was made of, named by their file."""
    return Named(data, source) if data and isinstance(source, str) else source


def _embed(name: str, model: VectorModel, batch: Sequence[Input[Item]], store: Store) -> None:
    """Embed the images that this model lacks, and set the problem of those with an embedding that cannot be used."""
    wanted = [Input(one.item, _key(one, model), (one.pixels or {}).get(name)) for one in batch]
    dtype = model.signature().get("dtype", "float32")
    bad = keep(
        store, wanted, lambda fresh: usable(lambda: model.embed([x.pixels for x in fresh], store.patches), dtype, name)
    )
    for one, own in zip(batch, wanted, strict=True):
        if own.key in bad:
            image = one.item[0]
            one.problem = f"{'a text' if image is None else describe(image)}: {bad[own.key]}"
