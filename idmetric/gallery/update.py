"""Bring a list of images up to date: read the entries, embed new content, and report the difference."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from idmetric.gallery.index import Item, files_of
from idmetric.gallery.read import load
from idmetric.metric.images.masks import MaskId
from idmetric.metric.images.read import Outside
from idmetric.metric.scoring.keys import MASKED
from idmetric.metric.scoring.pipeline import Input, batches, embed, keep
from idmetric.metric.scoring.store import Store

if TYPE_CHECKING:
    from idmetric.gallery.sources import Entry
    from idmetric.metric.models.embedder import Embedder


@dataclass(frozen=True)
class Update:
    """The result of an update, by the images' places.

    Attributes:
        images: usable images in the gallery now. embedded: how many of them were embedded in this update.
        new, changed, moved (from, to), deleted: compared with the previous update.
        unreadable: place -> why the image cannot be used.
        damaged: a line about each damaged shard; its images were embedded again.
    """

    images: int
    embedded: int
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts: dict[str, Any] = {"new": self.new, "changed": self.changed, "moved": self.moved, "deleted": self.deleted,
                 "unreadable": self.unreadable, "damaged shards rebuilt": self.damaged}  # fmt: skip
        counts = [f"{len(found)} {name}" for name, found in parts.items() if found]
        return ", ".join([f"{self.images} images", f"{self.embedded} embedded", *counts])


def difference(before: dict[tuple[str, ...], Item], after: Sequence[Item], embedded: int, damaged: list[str]) -> Update:
    """Compare the images before and after an update."""
    now = {item.where: item for item in after}
    gone = {item.key: item for where, item in before.items() if where not in now and item.key}
    new, moved = [], []
    for where, item in now.items():
        if where not in before and item.key in gone:
            moved.append((gone.pop(item.key).place, item.place))
        elif where not in before:
            new.append(item.place)
    return Update(
        images=sum(not item.problem for item in after),
        embedded=embedded,
        new=new,
        changed=[item.place for where, item in now.items() if where in before and before[where].key != item.key],
        moved=moved,
        deleted=[item.place for where, item in before.items() if where not in now and item.place not in dict(moved)],
        unreadable={item.place: item.problem for item in after if item.problem},
        damaged=damaged,
    )


def current_items(
    metric: Embedder,
    store: Store,
    entries: Sequence[Entry],
    before: Mapping[tuple[str, ...], Item],
    *,
    masked: bool,
    outside: Outside,
    mask_id: MaskId | None,
    quick: bool,
    batch_size: int,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[Item]:
    """Return the current items of the entries; content that the store lacks is embedded, or gets a problem.

    Args:
        before: the items of the previous update. others: as for `Gallery` and `Gallery.update`.
    """

    def read(entry: Entry) -> Input[Item]:
        stamp, known = stamp_of(files_of(entry)), before.get(entry.where)
        if quick and stamp and known is not None and stamp == known.stamp:
            fits = known.key.endswith(MASKED) == masked and known.key in store
            if fits or known.problem:
                return Input(replace(known, name=entry.name, identity=entry.identity))
        item = Item(entry.name, entry.place, entry.files, "", entry.identity, stamp=stamp)
        return load(metric, entry, item, store.__contains__, masked=masked, outside=outside, mask_id=mask_id)

    items: list[Item] = []
    bad: dict[str, str] = {}  # content without a usable embedding
    with closing(batches(entries, read, batch_size=batch_size, workers=workers)) as ahead:
        for batch in ahead:
            items += [one.item for one in batch]
            bad |= keep(store, batch, lambda fresh: embed(metric, fresh, store.patches))
            if progress is not None:
                progress(len(items), len(entries))
    return [replace(item, problem=bad[item.key]) if item.key in bad else item for item in items]


def stamp_of(files: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return size, times of change and inode of each file; nothing if one is missing."""
    found = []
    for path in files:
        try:
            stat = os.stat(path)
        except OSError:
            return ()
        found.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    return tuple(found)
