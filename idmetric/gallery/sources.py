"""The sources of a gallery's images: folders, single files and manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric import paths as inputs
from idmetric.metric.errors import RequestError
from idmetric.metric.paths import IMAGE_ENDINGS
from idmetric.store import content

if TYPE_CHECKING:
    from idmetric.data.old_manifest.table import Manifest

MANIFESTS = (".parquet", ".csv", ".jsonl")


class GalleryError(RuntimeError):
    """A gallery cannot do what was asked; the message says why and how to fix it."""


class StaleWarning(UserWarning):
    """Images were left out of an answer because their files are missing, or have changed since they were embedded."""


@dataclass(frozen=True)
class GallerySource:
    """A folder, an image file or a manifest, and the folder of its masks (`paths.mask_of`); absolute paths."""

    path: str
    mask_dir: str | None = None


@dataclass(frozen=True)
class Entry:
    """An image to be kept in the gallery.

    Attributes:
        name: its path below the source's folder, or its id in the manifest.
        place: its file, or `manifest#id` for bytes in a manifest.
        files: the files of image and mask; empty for bytes in a manifest.
        image, mask: functions that read the bytes, or raise OSError. None: the image has no mask.
        identity: the identity in the manifest.
    """

    name: str
    place: str
    files: tuple[str, ...]
    image: Callable[[], bytes]
    mask: Callable[[], bytes] | None = None
    identity: str | None = None

    @property
    def where(self) -> tuple[str, ...]:
        """The image's identity in the gallery."""
        return (self.place, *self.files)


def entries(sources: Sequence[GallerySource], masked: bool) -> Iterator[Entry]:
    """Yield all images of all sources, each (with its mask) once, in the order of their names.

    Raises:
        GalleryError: for a source that is missing or holds no image, and in a folder of masks for two masks of one
            image, and two images of one mask.
    """
    seen: set[tuple[str, ...]] = set()
    taken: dict[str, str] = {}  # masks of folders, and the images that have them
    for source in sources:
        count = 0
        try:
            for entry in _entries(source, masked):
                count += 1
                if source.mask_dir is not None and entry.place in entry.files[:-1]:
                    inputs.claim(taken, entry.place, entry.files[-1], source.mask_dir)
                if entry.where not in seen:
                    seen.add(entry.where)
                    yield entry
        except RequestError as error:
            raise GalleryError(str(error)) from error
        if not count:
            raise GalleryError(f"{source.path!r} holds no images (files ending in {' '.join(IMAGE_ENDINGS)})")


def _entries(source: GallerySource, masked: bool) -> Iterator[Entry]:
    path = Path(source.path)
    if path.is_dir():
        try:
            files = inputs.images_below(path)
        except OSError as error:
            folder = str(error.filename or path)
            raise GalleryError(f"cannot list the folder {folder!r}: {error.strerror or error}") from error
        for file in files:
            yield _file(file, file.relative_to(path).as_posix(), source, masked)
    elif path.suffix.lower() in MANIFESTS and path.is_file():
        manifest = _manifest(path)
        names = zip(manifest.column("id"), manifest.column("identity"), strict=True)
        for row, (name, identity) in enumerate(names):
            yield _row(manifest, source.path, row, name, identity, masked)
    elif path.is_file():
        yield _file(path, path.name, source, masked)
    elif path.exists():
        raise GalleryError(f"{source.path!r} is a pipe or a device: name a folder, an image or a manifest")
    else:
        raise GalleryError(f"there is no folder, image or manifest at {source.path!r}: name the place it has now")


def _manifest(path: Path) -> Manifest:
    """Read a manifest, or the metadata.csv of WildlifeReID-10k and its like.

    Raises:
        GalleryError: for another table, or one with boxes to cut out; it names the importer.
    """
    from idmetric.data.importers.run import import_dataset
    from idmetric.data.old_manifest.table import ManifestError, read

    kind = "wildlife" if path.name == "metadata.csv" else "table"
    try:
        try:
            return read(path)
        except ManifestError:
            if kind == "table" or b"bbox" in path.read_bytes().partition(b"\n")[0]:
                raise
        manifest = import_dataset(kind, path.parent)
        identities = [name and name.removeprefix(f"{kind}/") for name in manifest.column("identity")]
        return manifest.replace(identity=identities)
    except ValueError as error:
        raise GalleryError(f"{error} (idmetric data import {kind} makes a manifest of other tables)") from error


def mask_of(folder: str, image: str) -> str:
    """Return the path of an image's mask in a folder (`paths.mask_of`); the expected .png if there is none."""
    return inputs.mask_of(folder, image) or inputs.absent_mask(folder, image)[0]


def _file(
    path: Path,
    name: str,
    source: GallerySource,
    masked: bool,
) -> Entry:
    image = str(path)
    if not masked or source.mask_dir is None:
        return Entry(name, image, (image,), partial(content, path))
    mask = mask_of(source.mask_dir, image)
    files = (image, mask)
    return Entry(name, image, files, partial(content, path), partial(content, mask))


def _row(
    manifest: Manifest,
    path: str,
    row: int,
    name: str,
    identity: str | None,
    masked: bool,
) -> Entry:
    def cell(column: str) -> Any:
        return manifest.table[column][row].as_py()

    files = [cell("path")]
    mask = None
    if masked:
        files.append(cell("mask"))
        if cell("mask") is not None or cell("mask_bytes") is not None:
            mask = partial(_content, manifest, row, "mask")
    files = [str(manifest.root / file) for file in files if file is not None]
    is_inside = cell("image_bytes") is not None or not files
    place = f"{path}#{name}" if is_inside else files[0]
    image = partial(_content, manifest, row, "path")
    return Entry(name, place, tuple(files), image, mask, identity)


def _content(manifest: Manifest, row: int, column: str) -> bytes:
    """Read an image or a mask of a manifest."""
    source = manifest.source(row, column)
    if source is None and column == "path":
        raise OSError("the row is a text without an image")
    return source if isinstance(source, bytes) else content(source or "")
