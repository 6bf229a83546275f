"""Which image files a path, a folder or a pattern names, and which mask belongs to each: the same in every command.

- A file stands for itself, whatever its name.
- A folder stands for the images in and below it. Links to folders are followed, unless they lead back to a folder
  above.
- A pattern (`gen/*.png`, `gen/**/*.png`) stands for what matches it, as a shell would list it.

Hidden files and folders, and those that file managers leave, are left out of folders and patterns (see `is_hidden`).
Lists are in natural order: 2.png before 10.png.
"""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, is_same_file

# of a folder; a file that is named, or in a manifest, may end in anything
_IMAGES = (
    ".jpg .jpeg .jpe .jfif .png .apng .webp .bmp .dib .gif .tif .tiff .ppm .pgm .pnm .pbm .avif .heic .heif .hif "
    ".jp2 .j2k .jpx .mpo .tga .psd"
)
_VIDEOS = ".mp4 .mov .m4v .mkv .webm .avi .mpg .mpeg .ts"
_RAW = ".dng .nef .nrw .cr2 .cr3 .arw .sr2 .srw .raf .orf .rw2 .pef"
_UNREAD = f"{_RAW} .svg .eps .ai .pdf .exr .hdr .jxl .xcf .psb .qoi"  # pictures that are not read
IMAGE_ENDINGS = tuple(_IMAGES.split())
VIDEO_ENDINGS = tuple(_VIDEOS.split())
RAW_ENDINGS = tuple(_RAW.split())
UNREAD_ENDINGS = tuple(_UNREAD.split())
# of file managers and operating systems, which keep thumbnails and deleted photos there, in lower case
_OF_SYSTEMS = (
    "__macosx/$recycle.bin/recycler/system volume information/lost+found/@eadir/#recycle/#snapshot/@tmp/@recycle/"
    "@recently-snapshot/~snapshot/__pycache__/thumbs.db/ehthumbs.db/desktop.ini/icon\r"
)
SYSTEM_NAMES = frozenset(_OF_SYSTEMS.split("/"))

ABSENT = "the file does not exist: check the path and the working directory"
_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters: C:// is a path
_NUMBERS = re.compile("([0-9]+)")


def is_address(path: str) -> bool:
    """Whether this is a URL, which is never fetched."""
    return _ADDRESS.match(path) is not None


def is_image(path: StrPath) -> bool:
    """Whether a file's name ends as an image's does."""
    return os.path.splitext(path)[1].lower() in IMAGE_ENDINGS


def is_embedding_file(source: object) -> TypeGuard[StrPath]:
    """Whether this is the path of a file of `Embedding.save`, by its ending."""
    if not isinstance(source, str | os.PathLike):
        return False
    return os.fspath(source).lower().endswith(".idm")


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is left out of folders and patterns: .DS_Store, @eaDir, #recycle, ..."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def with_slashes(path: str) -> str:
    """The path of a table, which may be from Windows: slashes in place of backslashes, unless a file is called so."""
    if os.path.lexists(path):
        return path
    return path.replace("\\", "/")


def natural(path: str) -> tuple[Any, ...]:
    """Sort key of paths, in which numbers in names count as numbers."""
    pieces: list[Any] = _NUMBERS.split(path)  # text and numbers in turn, text at both ends
    pieces[1::2] = map(int, pieces[1::2])
    return pieces, path


# Folders


def walk(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All files below a folder, sorted by the names on the way, without hidden ones; links to folders are followed.

    A link that leads nowhere, a pipe and a device count as files, so that reading them reports it.

    Args:
        above: real paths of the folders that links do not lead back to.
    """
    above |= {os.path.realpath(folder)}
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)

    for entry in entries:
        if is_hidden(entry.name):
            continue
        path = folder / entry.name
        # of a link that leads to itself, entry.is_dir() raises an error
        leads_to_folder = path.is_dir() if entry.is_symlink() else entry.is_dir()
        if not leads_to_folder:
            yield path
        elif os.path.realpath(path) not in above:
            yield from walk(path, above)


def matching(folder: StrPath, *patterns: str) -> list[Path]:
    """Files and folders in a folder that match one of several patterns of `Path.glob`, sorted, without hidden ones."""
    paths = set()
    for pattern in patterns:
        for path in Path(folder).glob(pattern):
            if not any(map(is_hidden, path.relative_to(folder).parts)):
                paths.add(path)
    return sorted(paths)


def images_below(folder: Path) -> list[Path]:
    """The images that `walk` finds; one warning names the endings of pictures that are not read."""
    images = []
    unread_endings = []
    for file in walk(folder):
        ending = file.suffix.lower()
        if is_image(file):
            images.append(file)
        elif ending in UNREAD_ENDINGS:
            unread_endings.append(ending)

    if unread_endings:
        endings = ", ".join(sorted(set(unread_endings)))
        files = "1 file" if len(unread_endings) == 1 else f"{len(unread_endings)} files"
        warnings.warn(f"{folder}: {files} with other endings left out: {endings}", stacklevel=3)
    return images


# Folders and patterns as lists of images


def names_several(source: Any) -> TypeGuard[StrPath]:
    """Whether this is a folder or a pattern, and so a list of images."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = os.fspath(source)
    return os.path.isdir(path) or _is_pattern(path)


def listed(source: StrPath) -> list[str]:
    """The image files that a path, a folder or a pattern names; one path that is neither is returned as it is.

    Files with other endings are listed only where a pattern matches no other.

    Raises:
        RequestError: for a folder that holds no images or cannot be listed, or a pattern that matches none.
    """
    path = os.fspath(source)
    if not names_several(path):
        return [path]

    files: list[str] = []
    try:
        for match in matches(path) or [path]:
            if os.path.isdir(match):
                files += map(str, images_below(Path(match)))
            elif match != path:
                files.append(match)
    except OSError as error:
        folder = str(error.filename or path)
        raise RequestError(f"the folder cannot be listed: {error.strerror}", folder) from error

    if not files:
        endings = " ".join(IMAGE_ENDINGS)
        raise RequestError(f"it holds no images (files ending in {endings}; hidden files are left out)", path)
    images = [file for file in files if is_image(file)]
    return sorted(set(images or files), key=natural)


def all_listed(sources: Iterable[StrPath]) -> list[str]:
    """The files of several paths, folders and patterns, each once."""
    files: dict[str, str] = {}  # by one spelling of each path
    for source in sources:
        for path in listed(source):
            files.setdefault(os.path.abspath(path), path)
    return list(files.values())


def matches(pattern: str) -> list[str]:
    """Files and folders that a pattern matches, without hidden ones, in natural order; empty for other paths."""
    if not _is_pattern(pattern):
        return []
    base = pattern_folder(pattern)
    matched = []
    below = pattern[len(base) :]
    for match in glob.glob(glob.escape(base) + below, recursive=True):
        names_below = Path(match[len(base) :]).parts
        if not any(map(is_hidden, names_below)):
            matched.append(match)
    return sorted(matched, key=natural)


def _is_pattern(path: str) -> bool:
    if not glob.has_magic(path) or is_address(path):
        return False
    return not os.path.lexists(path)


def pattern_folder(pattern: str) -> str:
    """The folders that a pattern, or a folder's path, begins with, "" for the working directory.

    They may have brackets in their names.
    """
    head = pattern.rstrip("/" + os.sep) or pattern
    while head and not os.path.isdir(head):
        head = os.path.dirname(head)
    return head


def check_partners(a: Any, b: Any) -> None:
    """Refuse to compare two folders or patterns image by image (ValueError) unless their images have equal names."""
    if not (names_several(a) and names_several(b)):
        return
    names_a = _stems(a)
    names_b = _stems(b)
    count_a = len(names_a)
    count_b = len(names_b)
    if names_a != names_b and 1 not in (count_a, count_b):
        raise ValueError(
            f"{os.fspath(a)!r} ({count_a} images) and {os.fspath(b)!r} ({count_b}) are compared image by "
            "image, but their images have different names: pairwise() compares all with all; give two lists to choose "
            "pairs"
        )


def _stems(source: StrPath) -> list[str]:
    """The names of a folder's or pattern's images, without endings."""
    return [Path(path).stem for path in listed(source)]


# Masks


def mask_of(folder: StrPath, image: str) -> str | None:
    """An image's mask in a folder of masks: the file that ends as the image's path does, whatever its own ending.

    For photos/candle/04.jpg it is the first of masks/photos/candle/04.png, masks/candle/04.png and masks/04.png that
    exists, with any ending of images. Of several in one folder, 04.jpg.png comes before others. RequestError for
    two that are as good.
    """
    parts = Path(os.path.abspath(image)).parts
    *above, name = parts[1:]
    stem, _ = os.path.splitext(name)

    # the longest end of the image's path first
    for start in range(len(above) + 1):
        mask_folder = os.path.join(folder, *above[start:])
        if not os.path.isdir(mask_folder):
            continue
        changed = os.stat(mask_folder).st_mtime_ns
        names_of_stems = _images_by_stem(os.path.abspath(mask_folder), changed)
        for mask_stem in (name, stem):
            masks = []
            for mask_name in names_of_stems.get(mask_stem, []):
                mask = os.path.join(mask_folder, mask_name)
                if not is_same_file(mask, image):  # the folder may hold the images too
                    masks.append(mask)
            if len(masks) > 1:
                reason = f"both {masks[0]} and {masks[1]} may be its mask: keep one of them"
                raise RequestError(reason, image)
            if masks:
                return masks[0]
    return None


@lru_cache(256)
def _images_by_stem(folder: str, changed: int) -> dict[str, list[str]]:
    """The names of images in a folder, by their names without endings.

    Args:
        changed: when the folder was changed, by which a listing that is kept grows old.
    """
    names: dict[str, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        if is_image(name):
            stem, _ = os.path.splitext(name)
            names.setdefault(stem, []).append(name)
    return names


def absent_mask(folder: StrPath, image: StrPath) -> tuple[str, str]:
    """Name and reason for an error about an image without a mask there."""
    mask = Path(folder, f"{Path(image).stem}.png")
    return str(mask), f"the mask of {os.fspath(image)} does not exist"


def masks_of(folder: StrPath, images: Iterable[str]) -> list[str | None]:
    """The masks of images in a folder, see `mask_of`; None for an image without one."""
    taken: dict[str, str] = {}
    masks = []
    for image in images:
        mask = mask_of(folder, image)
        if mask is not None:
            claim(taken, image, mask, folder)
        masks.append(mask)
    return masks


def claim(taken: dict[str, str], image: str, mask: str, folder: StrPath) -> None:
    """Note in `taken` that an image has this mask; RequestError if another image has it."""
    real_mask = os.path.realpath(mask)
    owner = taken.setdefault(real_mask, image)
    if owner == image or is_same_file(owner, image):
        return
    owner_folder = Path(owner).parent.name
    image_folder = Path(image).parent.name
    folders = f"{folder}/{owner_folder} and {folder}/{image_folder}"
    raise RequestError(f"it would be the mask of both {owner} and {image}: put their masks into {folders}", mask)
