"""Embed the images of a manifest for several models at once: each image is read once and shown to every model.

    stored = embed(manifest, {"tiny": tiny, "dino": dino}, store=Path("results/embeddings"))
    stored["tiny"].vectors([0, 5, 7])  # global features of rows 0, 5 and 7

What is embedded is kept: by the content of the image (and of its mask, and the words beside it), in a folder for each
model and way of looking. A changed file, another model, other weights or another version of this package never find
what an earlier one left; a run that was killed embeds only what is missing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.manifest.table import Manifest
from idmetric.distance.finite import NonFiniteError, reason
from idmetric.images.masks import MaskId, labelled
from idmetric.images.read import ImageReadError, Outside, Preprocessing, describe, read_image
from idmetric.models.embedding import Embedding
from idmetric.protocols.common.result import slug
from idmetric.store.fingerprint import MASK_RULES, settings_digest
from idmetric.store.store import Store

_SHOWN = 20


class VectorModel(Protocol):
    """What can be embedded with: `scorers.EmbedderModel` for an `Embedder`, `scorers.VectorBaseline` for a formula."""

    background: tuple[int, int, int]  # behind transparent images
    reads_words: bool  # whether words beside the image change its embedding

    def signature(self) -> dict[str, str]:
        """Everything that its embeddings depend on."""

    def prepare(self, image: Image.Image, mask: Any, outside: Outside, words: str | None) -> Any:
        """The image as the model takes it, in a thread; ImageReadError if it cannot."""

    def embed(self, prepared: Sequence[Any], patches: bool) -> Embedding:
        """Embed what `prepare` gave."""


@dataclass(frozen=True)
class Look:
    """What of an image the models are shown.

    Attributes:
        masked: only the subject, by the manifest's masks; rows without one are refused.
        outside: what becomes of the rest, see `Embedder.embed`.
        mask_id: which label of the masks is the subject, where they hold several.
    """

    masked: bool = False
    outside: Outside = "black"
    mask_id: MaskId | None = None

    def mask_of(self, manifest: Manifest, row: int) -> Any:
        """The mask to apply to a row; None where whole images are embedded."""
        return labelled(manifest.source(row, "mask"), self.mask_id) if self.masked else None


class UnreadableError(ValueError):
    """Images that cannot be used; `problems` says which rows and why, all together."""

    def __init__(self, manifest: Manifest, problems: Mapping[int, str]) -> None:
        names = manifest.column("id")
        lines = [f"{names[row]}: {reason}" for row, reason in problems.items()]
        more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        listed = "\n  ".join([*lines[:_SHOWN], *more])
        super().__init__(
            f"{len(lines)} images cannot be used; mend them, or leave them out (--on-error skip):\n  {listed}"
        )
        self.problems = dict(problems)


@dataclass(frozen=True)
class Stored:
    """The embeddings of a manifest's images by one model. Rows are the manifest's."""

    shards: Store
    keys: Mapping[int, str]
    _folder: Any = field(default=None, repr=False)  # a temporary one lives as long as this

    def vectors(self, rows: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """Global features (N, D) of rows."""
        return self.shards.vectors([self.keys[int(row)] for row in rows])

    def embedding(self, rows: Sequence[int] | NDArray[np.integer]) -> Embedding:
        """The same with patches, if they were asked for."""
        return self.shards.embedding([self.keys[int(row)] for row in rows])


def embed(
    manifest: Manifest,
    models: Mapping[str, VectorModel],
    rows: Sequence[int] | NDArray[np.integer] | None = None,
    *,
    store: Path | None = None,
    patches: bool = False,
    look: Look = Look(),
    words: Mapping[int, str] | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Stored]:
    """Embed rows (default all) with each model; those that the store knows are read from it.

    Args:
        store: folder that keeps them; None: a temporary one.
        patches: keep patch tokens too; they stay in files, and are read as they are asked for.
        words: row -> all that is said beside its image, instruction included, for models that read; rows without
            an entry get the model's default.
        batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
        progress: called with (images done, images to do): those that some model has not embedded yet.

    Raises:
        UnreadableError: naming all images that are missing (before anything is embedded), or that cannot be read or
            embedded (what could be is kept).
    """
    chosen = range(len(manifest)) if rows is None else sorted({int(row) for row in rows})
    temporary = tempfile.TemporaryDirectory(prefix="idmetric-") if store is None else None
    folder = Path(temporary.name) if temporary is not None else Path(store or "")
    shards = {name: Store(folder / folder_name(model, look), patches, model="") for name, model in models.items()}
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        keys = content_keys(manifest, chosen, look, pool)
        own = {name: _with_words(keys, words if model.reads_words else None) for name, model in models.items()}
        work = _Work(manifest, models, shards, own, look, words or {}, patches, batch_size)
        work.run(pool, progress)
    return {name: Stored(shards[name], own[name], temporary) for name in models}


def folder_name(model: Any, look: Look = Look()) -> str:
    """The folder of a model's embeddings: its name, and a digest of all that they depend on."""
    about = {**model.signature(), "background": str(getattr(model, "background", ""))}
    if look.masked:
        about |= {"outside": look.outside, "masks": f"{MASK_RULES} {look.mask_id or ''}"}
    return f"{slug(about.get('model', 'model'))[:60]}.{settings_digest(about)}"


# Keys


def content_keys(manifest: Manifest, rows: Sequence[int], look: Look, pool: ThreadPoolExecutor) -> dict[int, str]:
    """A key of each row, equal where image (and mask) have the same bytes; all files that are missing are named."""
    sources = {row: (manifest.source(row), manifest.source(row, "mask") if look.masked else None) for row in rows}
    different = list(dict.fromkeys(sources.values()))
    found = dict(zip(different, pool.map(lambda pair: _digest(pair, look.masked), different), strict=True))
    problems = {row: str(found[pair]) for row, pair in sources.items() if isinstance(found[pair], Exception)}
    if problems:
        raise UnreadableError(manifest, problems)
    return {row: str(found[pair]) for row, pair in sources.items()}


def _digest(pair: tuple[str | bytes | None, str | bytes | None], masked: bool) -> str | Exception:
    """Hash of the bytes of an image and its mask, or why there is none."""
    if masked and pair[1] is None:
        return ValueError(f"{describe(pair[0])}: it has no mask in the manifest, and the subject alone is to be seen")
    digest = hashlib.blake2b(digest_size=16)
    for source in pair:
        try:
            digest.update(source if isinstance(source, bytes) else Path(source).read_bytes() if source else b"")
        except OSError as error:
            return ValueError(f"{describe(source)}: {error.strerror or error}")
        digest.update(b"\0" if source is None else b"\1")
    return digest.hexdigest()


def _with_words(keys: Mapping[int, str], words: Mapping[int, str] | None) -> dict[int, str]:
    if not words:
        return dict(keys)
    return {
        row: hashlib.blake2b(f"{key}\0{words[row]}".encode(), digest_size=16).hexdigest() if row in words else key
        for row, key in keys.items()
    }


# Embedding


@dataclass
class _Work:
    """One call of `embed`."""

    manifest: Manifest
    models: Mapping[str, VectorModel]
    shards: Mapping[str, Store]
    keys: Mapping[str, Mapping[int, str]]
    look: Look
    words: Mapping[int, str]
    patches: bool
    batch_size: int
    problems: dict[int, str] = field(default_factory=dict)

    def run(self, pool: ThreadPoolExecutor, progress: Callable[[int, int], None] | None) -> None:
        todo = self._missing()
        try:
            for done, batch in self._batches(list(todo), todo, pool):
                for name, model in self.models.items():
                    self._embed(name, model, batch)
                if progress is not None:
                    progress(done, len(todo))
        finally:  # also where the run is stopped
            for store in self.shards.values():
                store.save()
        if self.problems:
            raise UnreadableError(self.manifest, self._of_all_rows())

    def _missing(self) -> dict[int, list[str]]:
        """Row -> the models that have not embedded its image; one row for each different image."""
        todo: dict[int, list[str]] = {}
        for name, keys in self.keys.items():
            first: dict[str, int] = {}
            for row, key in keys.items():
                if key not in self.shards[name]:
                    first.setdefault(key, row)
            for row in first.values():
                todo.setdefault(row, []).append(name)
        return dict(sorted(todo.items()))

    def _batches(
        self, rows: Sequence[int], wanted: Mapping[int, list[str]], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, dict[int, dict[str, Any]]]]:
        """Images done and what was prepared of a batch; the next batch is read while one is embedded."""

        def start(at: int) -> dict[int, Future[dict[str, Any]]]:
            return {row: pool.submit(self._read, row, wanted[row]) for row in rows[at : at + self.batch_size]}

        ahead = start(0)
        for at in range(0, len(rows), self.batch_size):
            now, ahead = ahead, start(at + self.batch_size)
            batch: dict[int, dict[str, Any]] = {}
            for row, future in now.items():
                try:
                    batch[row] = future.result()
                except (ValueError, OSError) as error:
                    self.problems[row] = str(error)
            yield min(at + self.batch_size, len(rows)), batch

    def _read(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """The image as each model takes it."""
        source, mask = self.manifest.source(row), self.look.mask_of(self.manifest, row)
        decoded: dict[Any, Image.Image] = {}
        found = {}
        for name in names:
            colour = self.models[name].background
            reading: Preprocessing = getattr(self.models[name], "preprocessing", "standard")
            if (colour, reading) not in decoded:
                decoded[colour, reading] = read_image(source or b"", background=colour, preprocessing=reading)
            try:
                found[name] = self.models[name].prepare(
                    decoded[colour, reading], mask, self.look.outside, self.words.get(row)
                )
            except ImageReadError as error:  # of the decoded image it knows no name
                named = describe(source) if error.source.startswith("<PIL") else error.source
                raise ImageReadError(named, error.reason) from error
        return found

    def _embed(self, name: str, model: VectorModel, batch: Mapping[int, Mapping[str, Any]]) -> None:
        rows = [row for row, prepared in batch.items() if name in prepared]
        if not rows:
            return
        try:
            embedding = model.embed([batch[row][name] for row in rows], self.patches).cpu()
        except NonFiniteError as error:
            if error.embedding is None:
                raise
            embedding = error.embedding.cpu()
        finite = embedding.finite()
        usable = finite & embedding.cls.any(1)
        for k in (~usable).nonzero().flatten().tolist():
            source = describe(self.manifest.source(rows[k]))
            why = f"its embedding by {name} is zero" if finite[k] else reason(model.signature()["dtype"], name)
            self.problems[rows[k]] = f"{source}: {why}"
        good = usable.nonzero().flatten()
        if len(good):
            self.shards[name].add([self.keys[name][rows[k]] for k in good.tolist()], embedding[good])

    def _of_all_rows(self) -> dict[int, str]:
        """Problems of all rows that show an image that has one."""
        bad = {keys[row]: reason for keys in self.keys.values() for row, reason in self.problems.items()}
        found = {row: bad[key] for keys in self.keys.values() for row, key in keys.items() if key in bad}
        return dict(sorted(found.items()))
