"""The facts of a gallery on disk, and which of its files have changed; no model is opened.

gallery_info("index/").to_pandas()  # one row per model
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from idmetric.gallery.index import IMAGES, GalleryItem, files_of, read_index, stamp_of, stores_in
from idmetric.gallery.sources import GalleryError
from idmetric.metric.files import StrPath
from idmetric.scoring.scores import Record, Records
from idmetric.store import Store

INFO = (
    "model", "revision", "images", "unreadable", "missing", "changed", "distance", "resolution", "dtype", "dimension",
    "patches", "outside", "bytes", "updated", "idmetric", "opened", "folder",
)  # fmt: skip


def gallery_info(folder: StrPath) -> Records:
    """Return one row for each model of a gallery.

    Returns:
        Rows with the model and its settings, the number of usable, unreadable, missing and changed images, `dimension`
        of the vectors, `patches` (the number of images with stored patch tokens), `bytes` on disk, and the time
        (UTC) of the last update.

    Raises:
        GalleryError: if there is no gallery, or a list of images is damaged.
    """
    stores = stores_in(folder, IMAGES)
    if not stores:
        raise GalleryError(f"{str(folder)!r} is not a gallery")
    return Records([_row(store) for store in stores], INFO)


def _row(store: Path) -> Record:
    index = read_index(store)
    if index is None:
        raise GalleryError(f"{str(store)!r} holds no gallery any more")
    head, items = index
    about = head["about"]
    usable = [item for item in items if not item.problem]
    faults = [_fault(item) for item in usable]

    shards, with_patches = Store(store), Store(store, patches=True)
    keys = [item.key for item in usable if item.key in shards]
    changed_at = (store / IMAGES).stat().st_mtime
    updated = datetime.fromtimestamp(changed_at, UTC)
    return {
        "model": about.get("model"),
        "revision": about.get("revision"),
        "images": len(usable),
        "unreadable": len(items) - len(usable),
        "missing": faults.count("missing"),
        "changed": faults.count("changed"),
        "distance": "cls",
        "resolution": about.get("resolution"),
        "dtype": about.get("dtype"),
        "dimension": shards.vectors(keys[:1]).shape[1] if keys else None,
        "patches": sum(item.key in with_patches for item in usable),
        "outside": about.get("outside"),
        "bytes": sum(path.stat().st_size for path in store.rglob("*") if path.is_file()),
        "updated": updated.isoformat(timespec="seconds"),
        "idmetric": about.get("idmetric"),
        "opened": head["opened"],
        "folder": store.name,
    }


def _fault(item: GalleryItem) -> str:
    """Return "missing", "changed" (by size, times of change or inode), or "" for a file that is as it was embedded."""
    files = files_of(item)
    if not all(map(os.path.lexists, files)):
        return "missing"
    return "" if stamp_of(files) == item.stamp else "changed"
