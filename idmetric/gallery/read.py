"""Read images, tell by their content which are new, and embed those."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from idmetric.distance.finite import NonFiniteError, reason
from idmetric.gallery.index import Item
from idmetric.images.masks import MaskId
from idmetric.images.opening import open_file
from idmetric.images.read import ImageReadError, Outside
from idmetric.io.prefetch import in_order
from idmetric.store.fingerprint import MASKED, content_key
from idmetric.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from idmetric.gallery.sources import Entry
    from idmetric.models.embedder import Embedder
    from idmetric.models.embedding import Embedding

# a file changed so shortly before it was hashed may have been changed once more within one tick of its clock
_TICK = 2 * 10**9
_EMPTY = "the file is empty: fetch or write it again"
_NO_MASK = "it has no mask, and the gallery looks at masked subjects alone"


class Named(io.BytesIO):
    """A file in memory that messages call by its name."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


@dataclass(frozen=True)
class Loaded:
    """An item, and what is to be embedded of it: pixels and mask as the model sees them; None if nothing is."""

    item: Item
    pixels: Tensor | None = None
    mask: Tensor | None = None


def load_pixels(
    metric: Embedder,
    of: Entry | Item,
    image: bytes,
    mask: bytes | None,
    outside: Outside,
    mask_id: MaskId | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Pixels and mask as the model sees them; ImageReadError, by the names of the files, if there are none."""
    cover = None if mask is None else Named(mask, of.files[-1] if of.files else f"the mask of {of.place}")
    return metric.load_image(Named(image, of.place), cover, outside, mask_id=mask_id)


@dataclass
class Reader:
    """One update: see `Gallery`."""

    metric: Embedder
    store: Store
    masked: bool
    outside: Outside
    mask_id: MaskId | None
    batch_size: int
    embedded: int = 0

    def run(
        self,
        entries: Sequence[Entry],
        before: Mapping[tuple[str, ...], Item],
        quick: bool,
        workers: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> list[Item]:
        """The items that the entries are now; what has no embedding yet gets one, or a problem."""
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        items: list[Item] = []
        bad: dict[str, str] = {}  # content without a usable embedding
        waiting: dict[str, Loaded] = {}
        for loaded in self._loaded(entries, before, quick, workers):
            key = loaded.item.key
            if loaded.pixels is not None and key not in waiting and key not in self.store and key not in bad:
                waiting[key] = loaded
            items.append(loaded.item)
            if len(waiting) >= self.batch_size:
                bad |= self._embed(waiting)
                waiting = {}
            if progress is not None:
                progress(len(items), len(entries))
        bad |= self._embed(waiting)
        return [replace(item, problem=bad[item.key]) if item.key in bad else item for item in items]

    def _loaded(
        self, entries: Sequence[Entry], before: Mapping[tuple[str, ...], Item], quick: bool, workers: int | None
    ) -> Iterator[Loaded]:
        """In order; a few batches are read ahead."""
        return in_order(
            lambda entry: self._load(entry, before.get(entry.where), quick), entries,
            threads=workers or min(8, os.cpu_count() or 1), waiting=2 * self.batch_size,
        )  # fmt: skip

    def _load(self, entry: Entry, known: Item | None, quick: bool) -> Loaded:
        """The item, and its pixels if it is not embedded yet."""
        began = time.time_ns()
        stamp = stamp_of(entry.files)
        current = known is not None and _is_trusted(known, stamp) and known.key.endswith(MASKED) == self.masked
        if quick and known is not None and current and (known.problem or known.key in self.store):
            return Loaded(replace(known, name=entry.name, identity=entry.identity))
        item = Item(entry.name, entry.place, entry.files, "", entry.identity, stamp=stamp, hashed=began)
        return load(
            self.metric, entry, item, self.store.__contains__,
            masked=self.masked, outside=self.outside, mask_id=self.mask_id,
        )  # fmt: skip

    def _embed(self, waiting: Mapping[str, Loaded]) -> dict[str, str]:
        """Embed and keep; returns the keys whose embedding is of no use, and why."""
        wanted = {key: loaded for key, loaded in waiting.items() if loaded.pixels is not None}
        if not wanted:
            return {}
        found, bad = embed(self.metric, list(wanted.values()), self.store.patches)
        keys = list(wanted)
        good = [k for k in range(len(keys)) if k not in bad]
        if good:
            self.store.add([keys[k] for k in good], found[good])
            self.embedded += len(good)
        return {keys[k]: reason for k, reason in bad.items()}


def load(
    metric: Embedder, entry: Entry, item: Item, is_known: Callable[[str], bool], *, masked: bool, outside: Outside,
    mask_id: MaskId | None = None,
) -> Loaded:  # fmt: skip
    """Read an image, and bring it to how the model sees it.

    Args:
        item: what is known of it; it comes back with key, size and problem.
        is_known: whether content of that key needs no pixels.
        masked: whether the subject alone is looked at. outside, mask_id: see `Embedder.embed`.
    """
    try:
        image = entry.image()
        mask = entry.mask() if masked and entry.mask is not None else None
    except OSError as error:
        named = f"{error.filename}: " if error.filename not in (None, entry.place) else ""
        return Loaded(replace(item, problem=f"{named}{error.strerror or error}"))
    item = replace(item, key=content_key(image, mask), size=len(image))
    if not image or mask == b"":
        empty = f"{entry.files[-1]}: " if image and entry.files else "" if not image else "its mask: "
        return Loaded(replace(item, problem=f"{empty}{_EMPTY}"))
    if masked and mask is None:
        return Loaded(replace(item, problem=_NO_MASK))
    try:
        with open_file(io.BytesIO(image)) as opened:  # only its head
            item = replace(item, width=opened.width, height=opened.height)
    except Exception:  # what it is, and why not, is said below
        pass
    if is_known(item.key):
        return Loaded(item)
    try:
        return Loaded(item, *load_pixels(metric, entry, image, mask, outside, mask_id))
    except ImageReadError as error:
        problem = error.reason if error.source == entry.place else f"{error.source}: {error.reason}"
        return Loaded(replace(item, problem=problem))


def embed(metric: Embedder, loaded: Sequence[Loaded], patches: bool) -> tuple[Embedding, dict[int, str]]:
    """Embed images that have pixels, in one batch.

    Returns:
        Their embedding, on the CPU; the rows of it that are of no use, and why.
    """
    covers = [x.mask for x in loaded]
    try:
        found = metric.embed(
            [x.pixels for x in loaded if x.pixels is not None], batch_size=len(loaded),
            masks=None if all(c is None for c in covers) else covers,
            outside="keep", patches=patches,  # load_pixels has painted it
        ).cpu()  # fmt: skip
    except NonFiniteError as error:
        if error.embedding is None:
            raise
        found = error.embedding.cpu()
    finite = found.finite()
    bad = dict.fromkeys((~found.cls.any(1)).nonzero().flatten().tolist(), "its embedding is zero")
    return found, bad | dict.fromkeys((~finite).nonzero().flatten().tolist(), reason(metric.dtype))


def stamp_of(files: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Size, times of change and number of each file; nothing for one that is not there."""
    found = []
    for path in files:
        try:
            stat = os.stat(path)
        except OSError:
            return ()
        found.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    return tuple(found)


def _is_trusted(known: Item, stamp: tuple[tuple[int, ...], ...]) -> bool:
    """Whether files are surely those that were hashed; ctime changes with any write, and nobody can set it."""
    return bool(stamp) and stamp == known.stamp and all(max(s[1], s[2]) < known.hashed - _TICK for s in stamp)
