"""The facts of a gallery on disk, and which of its files have changed; no model is opened.

gallery_info("index/").to_pandas()  # one row per model
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from idmetric.gallery.index import IMAGES, Item, files_of, read_index
from idmetric.gallery.prune import size_of
from idmetric.gallery.sources import GalleryError
from idmetric.gallery.update import stamp_of
from idmetric.metric.scoring.keys import MASKED, content, content_key, stores_in
from idmetric.metric.scoring.records import Record, Records
from idmetric.metric.scoring.store import Store

INFO = ("model", "revision", "images", "unreadable", "missing", "changed", "distance", "resolution", "dtype",
        "dimension", "patches", "outside", "bytes", "updated", "idmetric", "opened", "folder")  # fmt: skip


def gallery_info(folder: str | os.PathLike[str], *, check: bool = False) -> Records:
    """Return one row for each model of a gallery.

    Args:
        check: compare the content of all files with the embedded content; otherwise only size, times and inode.

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
    return Records([_row(store, check) for store in stores], INFO)


def faults(items: Iterable[Item], *, check: bool = False) -> dict[tuple[str, ...], str]:
    """Return `Item.where` -> "missing" or "changed", or why a file cannot be read, for images that differ from their
    embedding.

    Bytes inside a manifest are not compared.

    Args:
        check: as for `gallery_info`.
    """
    return {item.where: fault for item in items if (fault := _fault(item, check))}


def _fault(item: Item, check: bool) -> str:
    files = files_of(item)
    if not all(map(os.path.lexists, files)):
        return "missing"
    if not check:
        return "" if stamp_of(files) == item.stamp else "changed"
    if item.place not in item.files:
        return ""
    image, *masks = item.files
    try:
        key = content_key(content(image), content(masks[0]) if masks and item.key.endswith(MASKED) else None)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return "" if key == item.key else "changed"


def _row(store: Path, check: bool) -> Record:
    found = read_index(store)
    if found is None:
        raise GalleryError(f"{str(store)!r} holds no gallery any more")
    head, items = found
    about, usable = head["about"], [item for item in items if not item.problem]
    wrong = list(faults(usable, check=check).values())
    shards, with_patches = (Store(store, patches) for patches in (False, True))
    keys = [item.key for item in usable if item.key in shards][:1]
    updated = datetime.fromtimestamp((store / IMAGES).stat().st_mtime, UTC)
    return {
        "model": about.get("model"), "revision": about.get("revision"), "images": len(usable),
        "unreadable": len(items) - len(usable), "missing": wrong.count("missing"),
        "changed": len(wrong) - wrong.count("missing"), "distance": "cls", "resolution": about.get("resolution"),
        "dtype": about.get("dtype"), "dimension": shards.vectors(keys).shape[1] if keys else None,
        "patches": sum(item.key in with_patches for item in usable), "outside": about.get("outside"),
        "bytes": size_of(store), "updated": updated.isoformat(timespec="seconds"), "idmetric": about.get("idmetric"),
        "opened": head["opened"], "folder": store.name,
    }  # fmt: skip
