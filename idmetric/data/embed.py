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
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.look import Look, UnreadableError
from idmetric.data.manifest.table import Manifest
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.images.kinds import WHITE, Color, ImageLike
from idmetric.metric.images.masks import MaskLike, labeled
from idmetric.metric.images.read import Outside, Preprocessing, describe, read_image
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.models.visid import VisIDEmbed
from idmetric.metric.scoring.keys import settings_digest
from idmetric.metric.scoring.pipeline import Embedded, Input, Source, batches, keep, usable
from idmetric.metric.scoring.store import Store

Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]
Item = tuple[str | bytes | None, str | bytes | None, str | None]  # an image, its mask, and the text that goes with it
_TEXT = "text"  # key of a row without an image, before that of its words


# Models


class ImageModel:
    """A model of images that threads prepare.

    Attributes:
        background: behind transparent images. preprocessing: how files become RGB.
        reads_words: whether text changes an image's embedding. has_patches: whether embeddings have patches.
    """

    background: Color = WHITE
    preprocessing: Preprocessing = "standard"
    reads_words = False
    has_patches = False

    def signature(self) -> dict[str, str]:
        """Everything that its results depend on."""
        raise NotImplementedError

    def decoding(self, whole: bool) -> Hashable:
        """What `decode` depends on: models with equal values share the decoded image."""
        return self.background, self.preprocessing

    def decode(self, image: ImageLike, whole: bool) -> Image.Image:
        """Read an image as RGB; `whole`: all of its pixels are needed, as a mask belongs to them."""
        return read_image(image, background=self.background, preprocessing=self.preprocessing)

    def prepare(self, image: Image.Image | None, mask: MaskLike | None, outside: Outside, words: str | None) -> Any:
        """Turn an image into the model's input, in a thread; ImageReadError if that is impossible.

        Models that read words also get texts without an image, as None.
        """
        raise NotImplementedError


class VectorModel(ImageModel):
    """A model that embeds images: an `EmbedderModel`, or a baseline."""

    def embed(self, prepared: Sequence[Any], patches: bool) -> Embedding:
        """Embed a batch of inputs from `prepare`."""
        raise NotImplementedError


class EmbedderModel(VectorModel):
    """An `Embedder` as a `VectorModel`."""

    has_patches = True

    def __init__(self, metric: Embedder) -> None:
        self.metric = metric
        self.background, self.preprocessing = metric.background, metric.preprocessing
        self.reads_words = isinstance(metric, VisIDEmbed)

    def signature(self) -> dict[str, str]:
        """See `ImageModel`."""
        facts = self.metric.about()
        return {
            **self.metric.signature(),
            "interpolation": self.metric.interpolation,
            "weights": facts["weights"],
            "settings": settings_digest({key: facts[key] for key in ("settings", "seen")}),
        }

    def decoding(self, whole: bool) -> Hashable:
        """See `ImageModel`."""
        if whole or self.metric.decode == "exact":
            return super().decoding(whole)
        return id(self)  # each model leaves out other pixels

    def decode(self, image: ImageLike, whole: bool) -> Image.Image:
        """See `ImageModel`."""
        return self.metric.read_image(image, whole=whole)

    def prepare(self, image: Image.Image | None, mask: MaskLike | None, outside: Outside, words: str | None) -> Any:
        """See `ImageModel`."""
        if image is None:
            return None, None, words
        return *self.metric.load_image(image, mask, outside), words

    def embed(self, prepared: Sequence[Any], patches: bool) -> Embedding:
        """See `VectorModel`."""
        pixels, covers, words = zip(*prepared, strict=True)
        # load_image has already replaced the pixels outside the mask
        options: dict[str, Any] = {"batch_size": len(pixels), "outside": "keep", "patches": patches}
        if any(cover is not None for cover in covers):
            options["masks"] = list(covers)
        if self.reads_words and any(text is not None for text in words):
            default = self.metric.config()["instruction"]
            options |= {"texts": [default if text is None else text for text in words], "instruction": ""}
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
    _folder: object = field(default=None, repr=False)  # keeps a temporary folder alive

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
    all_read_words = all(model.reads_words for model in models.values())
    items, problems = items_of(manifest, rows, look, words or {}, all_read_words)
    if problems and not skip:
        raise UnreadableError.of(manifest, problems)
    temporary = tempfile.TemporaryDirectory(prefix="idmetric-", ignore_cleanup_errors=True) if store is None else None
    folder = store or Path(temporary.name if temporary else "")
    stores: dict[str, Store] = {}
    keys: dict[str, dict[int, str]] = {}
    for name, model in models.items():
        stores[name] = Store(folder / look.folder(model), patches, model="")
        keys[name] = {}
        for line in stores[name].drop_damaged():
            warnings.warn(line, stacklevel=2)

    def read(item: Item) -> Input[Item]:
        return read_item(item, models, look, lambda name, key: key in stores[name])

    done = 0
    try:
        with closing(batches(items, read, batch_size=batch_size, workers=workers)) as ahead:
            for batch in ahead:
                for name, model in models.items():
                    _embed(name, model, [image for image in batch if not image.problem], stores[name])
                for image in batch:
                    item_rows = items[image.item]
                    if image.problem:
                        problems |= dict.fromkeys(item_rows, image.problem)
                        continue
                    for name, model in models.items():
                        keys[name] |= dict.fromkeys(item_rows, _key(image, model))
                done += len(batch)
                if progress is not None:
                    progress(done, len(items))
    finally:  # also if the run is stopped
        for model_store in stores.values():
            model_store.save()
    problems = dict(sorted(problems.items()))
    if problems and not skip:
        raise UnreadableError.of(manifest, problems)
    return {name: Stored(stores[name], keys[name], problems, temporary) for name in models}


def embed_rows(
    manifest: Manifest, model: Embedder, rows: Rows | None = None, **options: Any
) -> tuple[NDArray[np.float32], Mapping[int, str]]:
    """Embed rows (default: all) with one model, leaving out images that cannot be used; arguments as of `embed`.

    Returns:
        Global features (N, D) of all rows of the manifest, NaN in rows that were not requested or cannot be used; and
        row -> the reason why it cannot.
    """
    models = {model.label: EmbedderModel(model)}
    stored = embed(manifest, models, rows, skip=True, **options)[model.label]
    usable_rows = list(stored.keys)
    features = stored.vectors(usable_rows)
    shape = len(manifest), features.shape[1]
    vectors = np.full(shape, np.nan, dtype=np.float32)
    vectors[usable_rows] = features
    return vectors, stored.problems


# Images on their way to the models


def items_of(
    manifest: Manifest, rows: Rows | None, look: Look, words: Mapping[int, str] = {}, all_read_words: bool = False
) -> tuple[dict[Item, list[int]], dict[int, str]]:
    """The rows of each different image, mask and text; and row -> reason of rows that cannot be used."""
    look.check(manifest)
    chosen = range(len(manifest)) if rows is None else sorted({int(row) for row in rows})
    items: dict[Item, list[int]] = {}
    problems: dict[int, str] = {}
    is_file = cache(os.path.isfile)
    for row in chosen:
        image = manifest.source(row)
        mask = manifest.source(row, "mask") if look.masked else None
        missing = [path for path in (image, mask) if isinstance(path, str) and not is_file(path)]
        if missing:
            problems[row] = f"{missing[0]}: the file does not exist"
        elif image is None and not (all_read_words and words.get(row)):
            problems[row] = "a text without an image, which needs models that read text"
        else:
            items.setdefault((image, mask, words.get(row)), []).append(row)
    return items, problems


def read_item(
    item: Item, models: Mapping[str, ImageModel], look: Look, is_known: Callable[[str, str], bool]
) -> Input[Item]:
    """The image as the input of each model that needs it, decoded once for all that decode it alike.

    Args:
        is_known: whether the model of a name needs no content of a key.

    Returns:
        `pixels` are the inputs by model; None if no model needs any, or there is a `problem`.
    """
    image, mask, text = item
    loaded = Input(item, _TEXT if image is None else "")
    decoded: dict[Hashable, Image.Image] = {}
    inputs = {}
    try:
        source = None if image is None else Source.read(image, mask)
        if source is not None:
            loaded.key = source.key
        for name, model in models.items():
            if is_known(name, _key(loaded, model)):
                continue
            if source is None:
                inputs[name] = model.prepare(None, None, look.outside, text)
                continue
            decoding = model.decoding(mask is not None)
            if decoding not in decoded:
                decoded[decoding] = model.decode(source.image, mask is not None)
            subject_mask = labeled(source.mask, look.mask_id)
            inputs[name] = model.prepare(decoded[decoding], subject_mask, look.outside, text)
    except ValueError as error:  # ImageReadError, or of words
        return Input(item, loaded.key, problem=str(error))
    loaded.pixels = inputs or None
    return loaded


def _key(image: Input[Item], model: ImageModel) -> str:
    """The key of an image's embedding, which depends on the text for models that read it."""
    text = image.item[2]
    if text is None or not model.reads_words:
        return image.key
    return f"{image.key}-{settings_digest({'words': text})}"


def _embed(name: str, model: VectorModel, batch: Sequence[Input[Item]], store: Store) -> None:
    """Embed the images that this model lacks, and set the problem of those with an embedding that cannot be used."""
    dtype = model.signature().get("dtype", "float32")
    inputs = []
    for image in batch:
        pixels = image.pixels or {}
        inputs.append(Input(image.item, _key(image, model), pixels.get(name)))

    def run(fresh: list[Input[Item]]) -> Embedded:
        prepared = [image.pixels for image in fresh]
        return usable(lambda: model.embed(prepared, store.patches), dtype, name)

    reasons = keep(store, inputs, run)
    for image, model_input in zip(batch, inputs, strict=True):
        if model_input.key in reasons:
            source = image.item[0]
            source_name = "a text" if source is None else describe(source)
            image.problem = f"{source_name}: {reasons[model_input.key]}"
