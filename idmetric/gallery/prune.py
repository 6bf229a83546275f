"""Remove embeddings that no image of a gallery needs any more."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from idmetric.gallery.index import IMAGES
from idmetric.stream.shards import remove, shards_in
from idmetric.stream.store import KINDS, Store

_AT_ONCE = 64  # embeddings moved at a time
LOOKS = "looks"  # folder of what `looks.Looks` keeps
PICTURES = ("pictures", "pairs")  # kinds of files in that folder
# what `replacing` calls a shard or a list of images while it is written
_HALF_WRITTEN = re.compile(r"\.((cls|patches)-[0-9a-f]{32}(\.saf)?|images\.jsonl)\.[0-9a-f]{12}")
_LEFT = 3600  # seconds after which a half-written file has no living writer


@dataclass(frozen=True)
class Pruned:
    """The result of pruning.

    Attributes:
        embeddings: number of removed embeddings of the gallery's model. bytes: freed on the disk.
        others: removed folders of other models and weights.
    """

    embeddings: int
    bytes: int
    others: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.embeddings} embeddings"]
        if self.others:
            names = ", ".join(self.others)
            parts.append(f"the embeddings of {len(self.others)} other models or weights ({names})")
        return f"removed {' and '.join(parts)}: {self.bytes / 1e6:.1f} MB"


def prune_shards(store: Path, wanted: Container[str]) -> int:
    """Remove all embeddings except those of the wanted keys; return how many were removed. The caller holds the lock.

    The wanted rows of a shard are written to another before the shard is removed, so a stop loses nothing.

    Raises:
        ShardError: for a damaged shard that may hold wanted embeddings, and for one reached through a link.
    """
    removed: set[str] = set()
    for patches in (True, False):
        paths = shards_in(store, *KINDS)  # `idmetric score --cache` may write others from now on
        paths_with_patches = set(Store(store, patches=True).files())
        shards = Store(store, patches)
        if shards.damaged:  # it may hold images that are wanted
            raise next(iter(shards.damaged.values()))
        keys_by_file = shards.files()
        outdated = []
        for path in paths:
            keys = keys_by_file.get(path, [])  # empty if other shards have all of its rows
            kept_keys = [key for key in keys if key in wanted]
            is_other_kind = (path in paths_with_patches) != patches
            if is_other_kind or (keys and len(kept_keys) == len(keys)):
                continue
            for start in range(0, len(kept_keys), _AT_ONCE):
                part = kept_keys[start : start + _AT_ONCE]
                shards.add(part, shards.embedding(part))
            removed.update(key for key in keys if key not in wanted)
            outdated.append(path)
        shards.save()

        # a shard with exactly the wanted rows has the name of the one that was just written
        keys_by_file = shards.files()
        for path in outdated:
            if not any(key in wanted for key in keys_by_file.get(path, [])):
                remove(path, root=store.parent)

    if removed:
        remove_pictures(store)
    for path in store.iterdir():  # half-written files of killed processes
        is_half_written = _HALF_WRITTEN.fullmatch(path.name) and path.is_file()
        if is_half_written and time.time() - path.stat().st_mtime > _LEFT:
            remove(path, root=store.parent)
    return len(removed)


def remove_pictures(store: Path) -> None:
    """Remove the pictures of a model's part of a gallery, and their folder unless it holds other files."""
    folder = store / LOOKS
    for path in shards_in(folder, *PICTURES):
        remove(path, root=store.parent)
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_store(store: Path) -> None:
    """Remove a model's part of a gallery, except its lock and files that do not belong to a gallery."""
    remove(store / IMAGES, root=store.parent)  # first the file that makes it a gallery
    for path in shards_in(store, *KINDS):
        remove(path, root=store.parent)
    remove_pictures(store)


def size_of(folder: Path) -> int:
    """Sum the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
