"""Embeddings and small pictures of scored images in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.distance.embedding import Embedding
from idmetric.embed.keys import MASKED, folder_name
from idmetric.embed.store import Store
from idmetric.evaluate.copies import SIZE
from idmetric.images.masks import MaskId
from idmetric.images.read import Outside
from idmetric.io.output import writing
from idmetric.models.embedder import Embedder


class Cache:
    """Embeddings and small pictures in a folder, by the content of image and mask.

    The folder has the layout of a gallery (`idmetric.gallery`), and may be one: a `Store` for each model, with exactly
    its weights and settings. A damaged shard is deleted, and its images are embedded again. If the disk is full,
    nothing more is kept; scores do not depend on the cache.

    Args:
        copies: keep the small pictures for the search of copies.
        say: called with a line for each damaged shard, and if the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        metric: Embedder,
        outside: Outside,
        patches: bool,
        copies: bool,
        say: Callable[[str], None],
        mask_id: MaskId | None = None,
    ) -> None:
        with writing(folder):  # before anything is embedded
            folder.mkdir(parents=True, exist_ok=True)

        stores = {False: metric.about(), True: metric.about(outside, mask_id)}
        made_by = metric.model_id
        self._of = {m: Store(folder / folder_name(facts), patches, made_by) for m, facts in stores.items()}

        color = "".join(f"{x:02x}" for x in metric.background)
        read = "" if metric.preprocessing == "standard" else f".{metric.preprocessing}"
        read += "" if metric.decode == "exact" else f".{metric.decode}"
        self._small = Store(folder / f"pictures.{SIZE}.{color}{read}.reduced") if copies else None
        self._say, self._full = say, False
        self._mend()

    def __contains__(self, key: str) -> bool:
        return key in self._of[key.endswith(MASKED)] and (self._small is None or key in self._small)

    def get(self, keys: Sequence[str]) -> dict[str, tuple[Embedding, NDArray[np.uint8] | None]]:
        """The embedding and small picture of each key, unless its shard is damaged or gone."""
        if any(key in store.unsaved for store in self._stores() for key in keys):
            self.save()

        found: dict[str, Embedding] = {}
        for masked, store in self._of.items():
            found |= store.readable([key for key in keys if key.endswith(MASKED) == masked])
        small = {} if self._small is None else self._small.readable(keys)
        self._mend()

        whole = [key for key in found if self._small is None or key in small]
        return {key: (found[key], _picture(small.get(key))) for key in whole}

    def add(self, keys: Sequence[str], embedding: Embedding, small: Sequence[NDArray[np.uint8] | None]) -> None:
        """Keep images, with their small pictures if copies are looked for; they are written after half a minute."""
        if not self._full:
            self._writing(lambda: self._add(keys, embedding, small))

    def _add(self, keys: Sequence[str], embedding: Embedding, small: Sequence[NDArray[np.uint8] | None]) -> None:
        for masked, store in self._of.items():
            at = [k for k, key in enumerate(keys) if key.endswith(MASKED) == masked]
            if at:
                store.add([keys[k] for k in at], embedding[at])
        if self._small is not None and keys:
            flat = np.stack([x for x in small if x is not None]).reshape(len(keys), -1)
            self._small.add(keys, Embedding(torch.from_numpy(flat)))

    def save(self) -> None:
        """Write everything that is not in a file yet."""
        if not self._full:
            self._writing(self._save)

    def _save(self) -> None:
        for store in self._stores():
            store.save()

    def _mend(self) -> None:
        for store in self._stores():
            for line in store.mend():
                self._say(f"in the cache, {line}")

    def _stores(self) -> list[Store]:
        return [store for store in (*self._of.values(), self._small) if store is not None]

    def _writing(self, write: Callable[[], object]) -> None:
        """Write; if that fails, keep nothing more, as scores matter more than their cache."""
        try:
            write()
        except OSError as error:
            self._full = True
            for store in self._stores():
                store.drop()
            self._say(f"the cache is not complete ({error}); the scores are")


def _picture(small: Embedding | None) -> NDArray[np.uint8] | None:
    if small is None:
        return None
    picture: NDArray[np.uint8] = small.cls[0].numpy().reshape(SIZE, SIZE, 3)
    return picture
