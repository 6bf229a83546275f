"""Embed the images of a manifest with one or several models, one after the other.

    stored = embed(table, {"tiny": tiny}, store=Path("results/embeddings"))
    stored["tiny"].vectors([0, 5, 7])  # global features of rows 0, 5 and 7

A folder keeps the embeddings, under a hash of the image, its mask and its text. A changed file, another model or other
weights therefore never get an old embedding, and a stopped run resumes with the images that are missing.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.look import check_masks
from idmetric.data.manifest import ManifestError
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding
from idmetric.store import Store, cache_folder
from idmetric.stream import ImageModel, Item, Look, embedded, open_store
from idmetric.tables import first_few

if TYPE_CHECKING:
    import pandas as pd

Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]
Want = Callable[[Item, "Image.Image"], None]  # takes what it needs of an item's picture while it is read, in a thread
_SHOWN = 20  # unusable images that an error lists


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
    table: pd.DataFrame,
    models: Mapping[str, ImageModel],
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
    wants: Sequence[Want] = (),
) -> dict[str, Stored]:
    """Embed rows (default: all) with each model, except images that the store already holds.

    Args:
        store: folder that keeps the embeddings; None: that of the environment, else a temporary one.
        patches: keep patch tokens too; they stay on disk and are read on demand.
        words: row -> the text of its image, including the instruction, for models that read text; other rows get the
            model's default. A row without an image is its text alone.
        batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
        progress: called with (images done, images), of all models together.
        skip: leave out images that cannot be used, see `Stored.problems`.
        wants: functions that take what they need of each image, while it is read for the first model.

    Raises:
        ManifestError: without `skip`, naming all images that are missing (before anything is embedded), or that
            cannot be read or embedded (the store keeps the embeddings of the rest).
    """
    all_read_words = all(model.reads_words for model in models.values())
    items, problems = items_of(table, rows, look, words or {}, all_read_words)
    if problems and not skip:
        raise unusable(table, problems)
    folder = cache_folder(store)
    temporary = None
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="idmetric-", ignore_cleanup_errors=True)
        folder = Path(temporary.name)
    all_keys: dict[str, dict[int, str]] = {}
    stores: dict[str, Store] = {}
    for number, (name, model) in enumerate(models.items()):
        model_store = open_store(folder, model, patches=patches, is_needed=True)
        if temporary is not None:
            model_store.counts = Counter()  # nobody asks what it held before
        usable_items = [item for item in items if item.source[0] not in problems]
        also = None
        if wants and number == 0:
            also = partial(take_all, wants)
        stream = embedded(
            usable_items,
            model,
            look,
            store=model_store,
            also=also,
            patches=patches,
            batch_size=batch_size,
            workers=workers,
            on_error="skip",
        )
        keys: dict[int, str] = {}
        with closing(stream):
            for done, result in enumerate(stream, 1):
                if result.problem is not None:
                    problems |= dict.fromkeys(result.item.source, str(result.problem))
                else:
                    keys |= dict.fromkeys(result.item.source, result.key)
                if progress is not None:
                    progress(number * len(items) + done, len(models) * len(items))
        all_keys[name] = keys
        stores[name] = model_store

    problems = dict(sorted(problems.items()))
    if problems and not skip:
        raise unusable(table, problems)
    stored = {}
    for name, model_store in stores.items():
        usable_keys = {row: key for row, key in all_keys[name].items() if row not in problems}
        stored[name] = Stored(model_store, usable_keys, problems, temporary)
    return stored


def take_all(wants: Sequence[Want], item: Item, picture: Image.Image) -> dict[str, Any]:
    """Let each function take what it needs; an `Also` of the stream."""
    for want in wants:
        want(item, picture)
    return {}


def unusable(table: pd.DataFrame, problems: Mapping[int, str]) -> ManifestError:
    """The error for rows with images that cannot be used: row -> reason."""
    names = table["id"].tolist()
    lines = [f"{names[row]}: {problems[row]}" for row in sorted(problems)]
    listed = "\n  ".join(first_few(lines, _SHOWN))
    return ManifestError(
        f"{len(lines)} images cannot be used; fix them, or leave them out (--on-error skip):\n  {listed}"
    )


def embed_rows(
    table: pd.DataFrame, model: Embedder, rows: Rows | None = None, **options: Any
) -> tuple[NDArray[np.float32], Mapping[int, str]]:
    """Embed rows (default: all) with one model, leaving out images that cannot be used; arguments as of `embed`.

    Returns:
        Global features (N, D) of all rows of the manifest, NaN in rows that were not requested or cannot be used; and
        row -> the reason why it cannot.
    """
    stored = embed(table, {model.label: model}, rows, skip=True, **options)[model.label]
    usable_rows = list(stored.keys)
    features = stored.vectors(usable_rows)
    shape = len(table), features.shape[1]
    vectors = np.full(shape, np.nan, dtype=np.float32)
    vectors[usable_rows] = features
    return vectors, stored.problems


def items_of(
    table: pd.DataFrame, rows: Rows | None, look: Look, words: Mapping[int, str] = {}, all_read_words: bool = False
) -> tuple[list[Item], dict[int, str]]:
    """Each different image, mask and text, with its rows as `Item.source`; and row -> reason of unusable rows."""
    check_masks(look, table)
    images, masks = table["path"].tolist(), table["mask"].tolist()
    chosen: Iterable[int] = range(len(table))
    if rows is not None:
        chosen = sorted({int(row) for row in rows})
    items: dict[tuple[str | None, str | None, str | None], Item] = {}
    problems: dict[int, str] = {}
    is_file = cache(os.path.isfile)
    for row in chosen:
        image = images[row]
        mask = masks[row] if look.masked else None
        text = words.get(row)
        missing = [path for path in (image, mask) if path is not None and not is_file(path)]
        if missing:
            problems[row] = f"{missing[0]}: the file does not exist"
        elif image is None and not (all_read_words and text):
            problems[row] = "a text without an image, which needs models that read text"
        else:
            item = Item(image or "a text", image, mask, text, source=[])
            items.setdefault((image, mask, text), item).source.append(row)
    return list(items.values()), problems
