"""Embed the images of a manifest with one or several models; each image is read once for all of them.

    stored = embed(manifest, {"tiny": EmbedderModel(tiny)}, store=Path("results/embeddings"))
    stored["tiny"].vectors([0, 5, 7])  # global features of rows 0, 5 and 7

A `store.Store` for each model and `Look` keeps the embeddings, under a hash of the image, its mask and its text. A
changed file, another model or other weights therefore never get an old embedding, and a stopped run resumes with the
images that are missing.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from idmetric.data.manifest.table import Manifest
from idmetric.distance.embedding import Embedding
from idmetric.embed.keys import MASK_RULES, folder_name, key_of, settings_digest
from idmetric.embed.pipeline import Input, batches, keep, threads, usable
from idmetric.embed.store import Store
from idmetric.images.masks import MaskId, labeled, read_mask
from idmetric.images.read import ImageReadError, Outside, Preprocessing, describe, read_image
from idmetric.io.tables import first_few
from idmetric.models.embedder import Embedder

Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]
_SHOWN = 20  # unreadable images that an error lists
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
        if image is None:
            return None, None, words
        return *self.metric.load_image(image, mask, outside), words

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
class Look:
    """Which part of each image the models see.

    Attributes:
        masked: show the models only the subject that the manifest's masks select; each row needs a mask.
        outside: how pixels outside the mask are replaced, see `Embedder.embed`.
        mask_id: the subject's label, if the masks hold several.
        mirrored: show each image, and its mask, with left and right exchanged.
    """

    masked: bool = False
    outside: Outside = "black"
    mask_id: MaskId | None = None
    mirrored: bool = False

    def mask_of(self, manifest: Manifest, row: int) -> Any:
        """The mask to apply to a row; None if whole images are embedded."""
        return labeled(manifest.source(row, "mask"), self.mask_id) if self.masked else None

    def turned(self, image: Image.Image, mask: Any) -> tuple[Image.Image, Any]:
        """A decoded image and its mask as the models see them: as they are, or mirrored."""
        if not self.mirrored:
            return image, mask
        return ImageOps.mirror(image), None if mask is None else read_mask(mask, image=image).flip(-1)

    def folder(self, model: Any) -> str:
        """The folder of a model's embeddings: its name, and a digest of everything that they depend on."""
        facts = {**model.signature(), "background": str(getattr(model, "background", ""))}
        if self.masked:
            facts |= {"outside": self.outside, "masks": f"{MASK_RULES} {self.mask_id or ''}"}
        if self.mirrored:
            facts |= {"mirrored": "yes"}
        return folder_name({"model": "model", **facts})


_WHOLE = Look()


class UnreadableError(ValueError):
    """Images cannot be used; `problems` maps each row to the reason."""

    def __init__(self, manifest: Manifest, problems: Mapping[int, str]) -> None:
        names = manifest.column("id")
        lines = [f"{names[row]}: {reason}" for row, reason in problems.items()]
        listed = "\n  ".join(first_few(lines, _SHOWN))
        super().__init__(
            f"{len(lines)} images cannot be used; fix them, or leave them out (--on-error skip):\n  {listed}"
        )
        self.problems = dict(problems)


@dataclass(frozen=True)
class Stored:
    """The embeddings of a manifest's images by one model; rows are numbered as in the manifest."""

    store: Store
    keys: Mapping[int, str]
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
    look: Look = _WHOLE,
    words: Mapping[int, str] | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Stored]:
    """Embed rows (default: all) with each model, except images that the store already holds.

    Args:
        store: folder that keeps the embeddings; None: a temporary one.
        patches: keep patch tokens too; they stay on disk and are read on demand.
        words: row -> the text of its image, including the instruction, for models that read text; other rows get the
            model's default. A row without an image is its text alone.
        batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
        progress: called with (images done, images to do), counting images that some model has not embedded yet.

    Raises:
        UnreadableError: naming all images that are missing (before anything is embedded), or that cannot be read or
            embedded (the store keeps the embeddings of the rest).
        ValueError: if `store` is a file.
    """
    stored, _ = _embed(manifest, models, rows, store, patches, look, words or {}, batch_size, workers, progress, False)
    return stored


def _embed(
    manifest: Manifest, models: Mapping[str, VectorModel], rows: Rows | None, store: Path | None, patches: bool,
    look: Look, words: Mapping[int, str], batch_size: int, workers: int | None, progress: Progress | None, skip: bool,
) -> tuple[dict[str, Stored], dict[int, str]]:  # fmt: skip
    """The embeddings by each model, and row -> reason of the images that cannot be used, which need `skip`."""
    if store is not None and store.is_file():
        raise ValueError(f"{store} is a file, and embeddings are kept in a folder: name another place, or delete it")
    chosen = range(len(manifest)) if rows is None else sorted({int(row) for row in rows})
    temporary = tempfile.TemporaryDirectory(prefix="idmetric-") if store is None else None
    folder = Path(temporary.name) if temporary is not None else Path(store or "")
    stores = {name: Store(folder / look.folder(model), patches, model="") for name, model in models.items()}
    for line in (line for one in stores.values() for line in one.mend()):
        warnings.warn(line, stacklevel=3)

    with ThreadPoolExecutor(threads(workers)) as pool:
        readers = all(model.reads_words for model in models.values())
        content, problems = _content(manifest, chosen, look, pool, words if readers else {})
    if problems and not skip:
        raise UnreadableError(manifest, problems)
    keys = {name: _with_words(content, words if model.reads_words else {}) for name, model in models.items()}

    todo = _missing(stores, keys)
    found: dict[int, str] = {}
    done = 0

    def read(row: int) -> Input[int]:
        try:
            return Input(
                row, pixels=_prepared(manifest, row, {n: models[n] for n in todo[row]}, look, words, content[row])
            )
        except (ValueError, OSError) as error:
            return Input(row, problem=str(error))

    try:
        with closing(batches(todo, read, batch_size=batch_size, workers=workers)) as ahead:
            for batch in ahead:
                found |= {one.item: one.problem for one in batch if one.problem}
                for name, model in models.items():
                    found |= _embed_batch(manifest, name, model, batch, stores[name], keys[name])
                done += len(batch)
                if progress is not None:
                    progress(done, len(todo))
    finally:  # also if the run is stopped
        for one in stores.values():
            one.save()

    found = _of_all_rows(found, keys)
    if found and not skip:
        raise UnreadableError(manifest, found)
    return {name: Stored(stores[name], keys[name], temporary) for name in models}, problems | found


@dataclass(frozen=True)
class Embedded:
    """Global features of a manifest's images.

    Attributes:
        vectors: (N, D), float32; NaN in rows that were not requested or cannot be used.
        problems: row -> the reason why it cannot be used.
    """

    vectors: NDArray[np.float32]
    problems: dict[int, str]


def embed_rows(
    manifest: Manifest,
    model: Embedder,
    rows: Rows | None = None,
    *,
    store: Path | None = None,
    words: Mapping[int, str] | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Embedded:
    """Embed rows (default: all) with one model, leaving out images that cannot be used; arguments as for `embed`."""
    models = {model.label: EmbedderModel(model)}
    stored, problems = _embed(
        manifest, models, rows, store, False, _WHOLE, words or {}, batch_size, None, progress, True
    )  # fmt: skip
    given = range(len(manifest)) if rows is None else map(int, rows)
    wanted = [row for row in given if row not in problems]
    found = stored[model.label].vectors(wanted)
    vectors = np.full((len(manifest), found.shape[1]), np.nan, dtype=np.float32)
    vectors[wanted] = found
    return Embedded(vectors, dict(sorted(problems.items())))


# Keys


def content_keys(manifest: Manifest, rows: Sequence[int], look: Look, pool: ThreadPoolExecutor) -> dict[int, str]:
    """A key of each row, equal for rows with the same bytes of image (and mask).

    Raises:
        UnreadableError: naming all files that are missing.
    """
    keys, problems = _content(manifest, rows, look, pool, {})
    if problems:
        raise UnreadableError(manifest, problems)
    return keys


def _content(
    manifest: Manifest, rows: Sequence[int], look: Look, pool: ThreadPoolExecutor, words: Mapping[int, str]
) -> tuple[dict[int, str], dict[int, str]]:
    """The keys of the rows, and row -> reason of the rows without one; rows without an image need words."""
    sources = {row: (manifest.source(row), manifest.source(row, "mask") if look.masked else None) for row in rows}
    alone = {row for row, (image, _) in sources.items() if image is None}
    for row in alone:
        del sources[row]
    different = list(dict.fromkeys(sources.values()))
    found = dict(zip(different, pool.map(lambda pair: _key(pair, look.masked), different), strict=True))
    keys = {row: _TEXT for row in sorted(alone) if words.get(row)}
    problems = dict.fromkeys(alone - keys.keys(), "a text without an image, which needs models that read text")
    for row, pair in sources.items():
        (problems if isinstance(found[pair], Exception) else keys)[row] = str(found[pair])
    return keys, problems


def _key(pair: tuple[str | bytes | None, str | bytes | None], masked: bool) -> str | Exception:
    """The key of an image and its mask, or the error that prevents it."""
    image, mask = pair
    if masked and mask is None:
        return ValueError(f"{describe(image)}: it has no mask in the manifest, but only the subject may be embedded")
    try:
        return key_of(image or b"", mask)
    except OSError as error:
        return ValueError(f"{error.filename or describe(image)}: {error.strerror or error}")


def _with_words(keys: Mapping[int, str], words: Mapping[int, str]) -> dict[int, str]:
    return {
        row: f"{key}-{settings_digest({'words': words[row]})}" if row in words else key for row, key in keys.items()
    }


# Embedding


def _missing(stores: Mapping[str, Store], keys: Mapping[str, Mapping[int, str]]) -> dict[int, list[str]]:
    """Row -> the models that have not embedded its image; one row for each different image."""
    todo: dict[int, list[str]] = {}
    for name, own in keys.items():
        first = {key: row for row, key in reversed(list(own.items())) if key not in stores[name]}
        for row in first.values():
            todo.setdefault(row, []).append(name)
    return dict(sorted(todo.items()))


def _prepared(
    manifest: Manifest, row: int, models: Mapping[str, VectorModel], look: Look, words: Mapping[int, str], content: str
) -> dict[str, Any]:
    """A row's image as the input of each of these models, decoded once for all that decode it in the same way."""
    source, mask = manifest.source(row), look.mask_of(manifest, row)
    if source is None:
        return {name: model.prepare(None, None, look.outside, words[row]) for name, model in models.items()}
    decoded: dict[Any, Image.Image] = {}
    found = {}
    for name, model in models.items():
        reading: Preprocessing = getattr(model, "preprocessing", "standard")
        # a mask belongs to all pixels; without one, models that leave pixels out each read the file themselves
        fast = mask is None and getattr(model, "decode", "exact") == "fast"
        key = name if fast else (model.background, reading)
        if key not in decoded:
            plain = partial(read_image, background=model.background, preprocessing=reading)
            decoded[key] = (getattr(model, "decoded", plain) if fast else plain)(source)
        try:
            image, cover = look.turned(decoded[key], mask)
            found[name] = model.prepare(image, cover, look.outside, words.get(row))
        except ImageReadError as error:  # a decoded image has no name
            named = describe(source) if error.source.startswith("<PIL") else error.source
            raise ImageReadError(named, error.reason) from error

    if key_of(source, manifest.source(row, "mask") if look.masked else None) != content:
        raise ValueError(f"{describe(source)}: the file changed while it was read: run again")
    return found


def _embed_batch(
    manifest: Manifest,
    name: str,
    model: VectorModel,
    batch: Sequence[Input[int]],
    store: Store,
    keys: Mapping[int, str],
) -> dict[int, str]:
    """Embed the images of a batch that one model needs; return row -> reason of unusable ones."""
    wanted = [Input(x.item, keys[x.item], x.pixels[name]) for x in batch if x.pixels and name in x.pixels]
    dtype = model.signature().get("dtype", "float32") if wanted else ""
    bad = keep(
        store, wanted, lambda fresh: usable(lambda: model.embed([x.pixels for x in fresh], store.patches), dtype, name)
    )
    found = {}
    for one in wanted:
        if one.key in bad:
            given = manifest.source(one.item)
            found[one.item] = f"{'a text' if given is None else describe(given)}: {bad[one.key]}"
    return found


def _of_all_rows(problems: Mapping[int, str], keys: Mapping[str, Mapping[int, str]]) -> dict[int, str]:
    """Row -> reason, for all rows of the images that cannot be used."""
    bad = {own[row]: reason for own in keys.values() for row, reason in problems.items()}
    return dict(sorted({row: bad[key] for own in keys.values() for row, key in own.items() if key in bad}.items()))
