"""Bring a list of images up to date: read the entries, embed new content, and report the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from idmetric.gallery.index import GalleryItem, Where, files_of, stamp_of
from idmetric.gallery.look_files import LooksWriter, look_of
from idmetric.gallery.read import FileHead, Masking, to_embed
from idmetric.store import MASKED, Store
from idmetric.stream import Item, embedded, problem_of

if TYPE_CHECKING:
    from idmetric.gallery.sources import Entry
    from idmetric.metric.embedder import Embedder


@dataclass(frozen=True)
class Update:
    """The result of an update, by the images' places.

    Attributes:
        images: usable images in the gallery now. embedded: how many of them were embedded in this update.
        new, changed, moved (from, to), deleted: compared with the previous update.
        unreadable: place -> why the image cannot be used.
    """

    images: int
    embedded: int
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = {
            "new": len(self.new),
            "changed": len(self.changed),
            "moved": len(self.moved),
            "deleted": len(self.deleted),
            "unreadable": len(self.unreadable),
        }
        changes = [f"{count} {name}" for name, count in counts.items() if count]
        return ", ".join([f"{self.images} images", f"{self.embedded} embedded", *changes])


def difference(
    before: dict[Where, GalleryItem],
    after: Sequence[GalleryItem],
    embedded: int,
) -> Update:
    """Compare the images before and after an update."""
    now = {item.where: item for item in after}
    gone = [item for where, item in before.items() if where not in now]
    gone_by_key = {item.key: item for item in gone if item.key}
    new, changed, moved = [], [], []
    for where, item in now.items():
        if where in before:
            if before[where].key != item.key:
                changed.append(item.place)
        elif item.key in gone_by_key:
            old = gone_by_key.pop(item.key)
            moved.append((old.place, item.place))
        else:
            new.append(item.place)

    moved_from = {place for place, _ in moved}
    unreadable = {item.place: item.problem for item in after if item.problem}
    return Update(
        images=sum(not item.problem for item in after),
        embedded=embedded,
        new=new,
        changed=changed,
        moved=moved,
        deleted=[item.place for item in gone if item.place not in moved_from],
        unreadable=unreadable,
    )


def current_items(
    metric: Embedder,
    store: Store,
    entries: Sequence[Entry],
    before: Mapping[Where, GalleryItem],
    masking: Masking,
    *,
    patches: bool,
    batch_size: int,
    workers: int | None,
    progress: Callable[[int, int], None] | None = None,
    looks: LooksWriter | None = None,
) -> list[GalleryItem]:
    """Return the current items of the entries; content that the store lacks is embedded, or gets a problem.

    Args:
        before: items of the previous update; files that have not changed since are not read.
        looks: keeps what the pixels of the images that are read show.
    """

    items: dict[int, GalleryItem] = {}  # by the number of the entry
    heads: dict[int, FileHead] = {}

    def to_read() -> Iterator[Item]:
        for number, entry in enumerate(entries):
            stamp = stamp_of(files_of(entry))
            item = _unchanged(entry, before.get(entry.where), stamp, store, masking)
            if item is not None:
                items[number] = item
                continue
            items[number] = GalleryItem(entry.name, entry.place, entry.files, "", entry.identity, stamp=stamp)
            yield to_embed(entry, masking, number, heads)

    stream = embedded(
        to_read(),
        metric,
        masking.look,
        store=store,
        also=None if looks is None else lambda item, picture: {"look": look_of(picture)},
        patches=patches,
        batch_size=batch_size,
        workers=workers,
        on_error="skip",
    )
    with closing(stream):
        for result in stream:
            number = result.item.source
            head = heads.pop(number, FileHead())
            problem = "" if result.problem is None else problem_of(result.problem, result.item.name)
            items[number] = replace(
                items[number],
                key=result.key,
                width=head.width,
                height=head.height,
                size=head.size,
                problem=problem,
            )
            if looks is not None and result.problem is None:
                looks.add(result.key, result.also["look"], head.is_animation)
            if progress is not None:
                progress(number + 1, len(entries))
    if progress is not None and entries:
        progress(len(entries), len(entries))
    return [items[number] for number in range(len(entries))]


def _unchanged(
    entry: Entry, item: GalleryItem | None, stamp: tuple[tuple[int, ...], ...], store: Store, masking: Masking
) -> GalleryItem | None:
    """The item of the previous update under the entry's present name, if its files are as they were then."""
    if item is None or not stamp or stamp != item.stamp:
        return None
    is_embedded = item.key.endswith(MASKED) == masking.masked and item.key in store
    if not is_embedded and not item.problem:
        return None
    return replace(item, name=entry.name, identity=entry.identity)
