"""The list of a gallery's images, the model that embedded them, and the lock on both."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idmetric.gallery.sources import MANIFESTS, Entry, GalleryError
from idmetric.metric.files import StrPath, parse_json, refuse_irregular, replacing
from idmetric.metric.paths import is_hidden

KIND, FORMAT = "idmetric-gallery", 1
IMAGES = "images.jsonl"  # its first line holds the model and the number of images
LOCK = ".lock"
# the place of an image whose bytes are in a manifest: "photos.parquet#ID"
_IN_MANIFEST = re.compile(rf"(.+?(?:{'|'.join(map(re.escape, MANIFESTS))}))#", re.DOTALL | re.IGNORECASE)

Where = tuple[str, ...]  # an image's address in the gallery: its place, and its files


@dataclass(frozen=True)
class GalleryItem:
    """An image of a gallery.

    Attributes:
        name, place, files, identity: see `sources.Entry`.
        key: hash of its content, under which its embedding is kept; empty if it could not be read.
        width, height: in pixels, as stored; 0 if unknown. size: of the file in bytes.
        stamp: size, times of change and inode of its `files_of` when they were hashed.
        problem: why it has no embedding; empty if it has one.
    """

    name: str
    place: str
    files: tuple[str, ...]
    key: str
    identity: str | None = None
    width: int = 0
    height: int = 0
    size: int = 0
    stamp: tuple[tuple[int, ...], ...] = ()
    problem: str = ""

    @property
    def where(self) -> Where:
        """The image's address in the gallery."""
        return (self.place, *self.files)


def by_key(items: Iterable[GalleryItem]) -> dict[str, list[GalleryItem]]:
    """Group images by their content."""
    groups: dict[str, list[GalleryItem]] = {}
    for item in items:
        groups.setdefault(item.key, []).append(item)
    return groups


def file_of(image: GalleryItem | Entry) -> str:
    """An image's file, or the manifest with its bytes."""
    match = _IN_MANIFEST.match(image.place)
    return match[1] if match and image.place not in image.files else image.place


def files_of(image: GalleryItem | Entry) -> tuple[str, ...]:
    """The files that an image and its mask are read from, a manifest with their bytes among them."""
    file = file_of(image)
    return image.files if file in image.files else (*image.files, file)


def stamp_of(files: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return size, times of change and inode of each file; nothing if one is missing."""
    stamps = []
    for path in files:
        try:
            stat = os.stat(path)
        except OSError:
            return ()
        stamps.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    return tuple(stamps)


def shown(item: GalleryItem, relative: bool) -> str:
    """An image's place as answers show it, perhaps relative to the current folder."""
    file = file_of(item)
    return os.path.relpath(file) + item.place.removeprefix(file) if relative else item.place


def row_of(item: GalleryItem, relative: bool) -> dict[str, Any]:
    """An image's columns in tables."""
    row = {"image": shown(item, relative), "name": item.name, "identity": item.identity}
    return {**row, "width": item.width, "height": item.height}


# Files


def stores_in(folder: StrPath, name: str) -> list[Path]:
    """Return the folders in a folder that hold a file of this name, sorted; none if the folder does not exist.

    Raises:
        PermissionError: if the folder or one in it is closed to the user, so that it may hold such a file.
    """
    stores = []
    try:
        for entry in sorted(os.listdir(folder)):
            if is_hidden(entry):
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                os.stat(os.path.join(folder, entry, name))
                stores.append(Path(folder, entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return stores


def models_of(folder: StrPath) -> list[dict[str, Any]]:
    """Return the head of each model's part of a gallery: `about`, how the model was opened, number of images.

    Raises:
        GalleryError: if one is damaged.
    """
    heads = []
    for store in stores_in(folder, IMAGES):
        path = store / IMAGES
        refuse_irregular(path)
        with _damage_named(path), path.open(encoding="utf-8") as file:
            heads.append(_head(path, file.readline()))
    return heads


def read_index(store: Path) -> tuple[dict[str, Any], list[GalleryItem]] | None:
    """Return the head of a model's part and its images; None if there is none.

    Raises:
        GalleryError: naming a damaged file.
    """
    path = store / IMAGES
    try:
        refuse_irregular(path)
    except FileNotFoundError:
        return None
    with _damage_named(path):
        first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
        head = _head(path, first)
        items = [_parse_item(line) for line in lines]
        if len(items) != head["images"]:
            raise ValueError(f"{len(items)} images instead of {head['images']}")
    return head, items


def _parse_item(line: str) -> GalleryItem:
    """Return the image of a line of the list."""
    values = parse_json(line)
    values["stamp"] = tuple(map(tuple, values["stamp"]))
    values["files"] = tuple(values["files"])
    return GalleryItem(**values)


def write_index(
    store: Path,
    head: dict[str, Any],
    items: Sequence[GalleryItem],
) -> None:
    """Write the list atomically."""
    lines = [json.dumps({"kind": KIND, "format": FORMAT, **head, "images": len(items)})]
    lines += [json.dumps(asdict(item)) for item in items]
    with replacing(store / IMAGES) as path:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _head(path: Path, line: str) -> dict[str, Any]:
    head = parse_json(line)
    if not isinstance(head, dict) or (head.get("kind"), head.get("format")) != (KIND, FORMAT):
        raise ValueError(f"it is not a gallery's list of format {FORMAT}")
    return head


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Report values of a wrong kind as damage."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GalleryError(
            f"{str(path)!r} is damaged ({error}): delete it, and `idmetric gallery build SOURCES --model MODEL` "
            "writes it again and embeds nothing again"
        ) from error
