"""What `idmetric-score` keeps of images: the latest in memory, all in a folder if asked to (`--cache`)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli.score_format import File

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from idmetric.evaluate.copies import Print
    from idmetric.images.masks import MaskId
    from idmetric.images.read import Outside
    from idmetric.models.embedder import Embedder
    from idmetric.models.embedding import Embedding
    from idmetric.report.matches import Tokens
    from idmetric.store.store import Store

Key = tuple[bool, str]  # whether there is a mask, and the content
_PRINTS = 256  # of images compared last: a print is 30 times as large as what it is made from


@dataclass(frozen=True)
class Seen:
    """What is kept of an image. `small`: copies are found by it. `tokens`: for the page's matched patches."""

    embedding: Embedding
    small: NDArray[np.uint8] | None
    tokens: Tokens | None = None

    @property
    def bytes(self) -> int:
        """That it takes."""
        e, t = self.embedding, self.tokens
        tensors: list[Tensor | None] = [e.cls, e.patches, e.weights]
        tensors += [] if t is None else [t.unit, t.inside]
        return sum(x.nbytes for x in tensors if x is not None) + (0 if self.small is None else self.small.nbytes)


class Memory:
    """The images used last, up to so many bytes; those that are in use or awaited stay whatever they take."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._kept: OrderedDict[File, Seen] = OrderedDict()
        self._bytes = 0
        self._wanted: Counter[File] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def reserve(self, files: Iterable[File]) -> list[File]:
        """Announce what will be used; returns those that nobody has brought or been asked to bring."""
        missing = [file for file in files if file not in self._kept and not self._wanted[file]]
        self._wanted.update(files)
        return missing

    def put(self, file: File, seen: Seen) -> None:
        """Bring one that was missing."""
        self._kept[file] = seen
        self._bytes += seen.bytes

    def get(self, file: File) -> Seen | None:
        """One that was announced; None where it could not be brought."""
        if file in self._kept:
            self._kept.move_to_end(file)
        return self._kept.get(file)

    def release(self, files: Iterable[File]) -> None:
        """Take an announcement back, once they were used."""
        self._wanted.subtract(files)
        self._wanted = +self._wanted
        spare, left = [], self._bytes
        for file, seen in self._kept.items():  # from the one unused for longest; as far as it takes, for there are many
            if left <= self._limit:
                break
            if not self._wanted[file]:
                spare.append(file)
                left -= seen.bytes
        for file in spare:
            del self._kept[file]
        self._bytes = left


class Prints:
    """The prints of the images compared last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Print] = OrderedDict()

    def of(self, name: str, small: NDArray[np.uint8] | None) -> Print | None:
        """What copies of an image are found by; None without its small picture."""
        from idmetric.evaluate.copies import take_print

        if small is None:
            return None
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = take_print(small)
            if len(self._kept) > _PRINTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return found


class Cache:
    """Embeddings and small pictures in a folder, by the content of image and mask.

    Embeddings lie as in a gallery (`idmetric.gallery`), which may be the folder: one for each model, by exactly its
    weights and settings. A shard that the disk has damaged is deleted, and its images are embedded again. If the disk
    is full, nothing more is kept; scores do not depend on the cache.

    Args:
        copies: keep small pictures too. say: called with a line for each damaged shard, and if the disk is full.
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
        from idmetric.evaluate.copies import SIZE
        from idmetric.io.output import writing
        from idmetric.store.fingerprint import folder_in
        from idmetric.store.store import DamagedShardError, Store

        def damaged(error: DamagedShardError) -> None:
            error.path.unlink(missing_ok=True)
            say(f"the cache's shard {error.path.name} was damaged ({error.reason}): what it held is made again")

        with writing(folder):  # or all would be embedded first
            folder.mkdir(parents=True, exist_ok=True)
        stores = {False: metric.about(), True: metric.about(outside, mask_id)}
        made_by = metric.model_id
        self._of = {
            m: Store(folder_in(folder, facts, metric.spelled_label), patches, damaged, made_by)
            for m, facts in stores.items()
        }
        colour = "".join(f"{x:02x}" for x in metric.background)
        read = "" if metric.preprocessing == "standard" else f".{metric.preprocessing}"
        self._small = Store(folder / f"pictures.{SIZE}.{colour}{read}", damaged=damaged) if copies else None
        self._say, self._full = say, False

    def __contains__(self, key: Key) -> bool:
        masked, name = key
        return name in self._of[masked] and (self._small is None or name in self._small)

    def get(self, keys: Sequence[Key]) -> list[tuple[Embedding, NDArray[np.uint8] | None] | None]:
        """What is kept of each, in order; None if its shard is damaged or gone."""
        if any(name in store.unsaved for store in self._stores() for _, name in keys):
            self.save()
        found: dict[Key, Embedding] = {}
        for masked, shards in self._of.items():
            own = shards.readable([name for m, name in keys if m == masked])
            found |= {(masked, name): one for name, one in own.items()}
        small = {} if self._small is None else self._small.readable([name for _, name in keys])
        kept: list[tuple[Embedding, NDArray[np.uint8] | None] | None] = []
        for key in keys:
            whole = key in found and (self._small is None or key[1] in small)
            kept.append((found[key], _picture(small.get(key[1]))) if whole else None)
        return kept

    def add(self, keys: Sequence[Key], embedding: Embedding, small: Sequence[NDArray[np.uint8] | None]) -> None:
        """Keep images, with their small pictures where copies are looked for; in a file after half a minute."""
        if not self._full:
            self._writing(lambda: self._add(keys, embedding, small))

    def _add(self, keys: Sequence[Key], embedding: Embedding, small: Sequence[NDArray[np.uint8] | None]) -> None:
        import numpy as np
        import torch

        from idmetric.models.embedding import Embedding

        for masked, store in self._of.items():
            at = [k for k, (m, _) in enumerate(keys) if m == masked]
            if at:
                store.add([keys[k][1] for k in at], embedding[at])
        if self._small is not None and keys:
            flat = np.stack([x for x in small if x is not None]).reshape(len(keys), -1)
            self._small.add([name for _, name in keys], Embedding(torch.from_numpy(flat)))

    def save(self) -> None:
        """Write what is in no file yet."""
        if not self._full:
            self._writing(self._save)

    def _save(self) -> None:
        for store in self._stores():
            store.save()

    def _stores(self) -> list[Store]:
        return [store for store in (*self._of.values(), self._small) if store is not None]

    def _writing(self, write: Callable[[], object]) -> None:
        """Write; if that fails, nothing more is kept: scores matter more than their cache."""
        try:
            write()
        except OSError as error:
            self._full = True
            for store in self._stores():
                store.drop()
            self._say(f"the cache is not complete ({error}); the scores are")


def _picture(small: Embedding | None) -> NDArray[np.uint8] | None:
    from idmetric.evaluate.copies import SIZE

    if small is None:
        return None
    picture: NDArray[np.uint8] = small.cls[0].numpy().reshape(SIZE, SIZE, 3)
    return picture
