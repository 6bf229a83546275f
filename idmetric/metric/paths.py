"""Which image files a path, a folder or a pattern names, and which mask belongs to each: the same in every command.

- A file stands for itself, whatever its name.
- A folder stands for the images in and below it. Links to folders are followed, unless they lead back to a folder
  above.
- A pattern (`gen/*.png`, `gen/**/*.png`) stands for the images that match it, as a shell would list them.

Hidden files and folders, and those that file managers leave, are left out of folders and patterns (see `is_hidden`).
Lists are in natural order: 2.png before 10.png.
"""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Iterable, Iterator
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
# of file managers and operating systems, which keep thumbnails and deleted photos there
_OF_SYSTEMS = (
    "__MACOSX/@eaDir/#recycle/@Recycle/$RECYCLE.BIN/System Volume Information/lost+found/__pycache__/Thumbs.db/"
    "desktop.ini"
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
    return name.startswith(".") or name in SYSTEM_NAMES


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
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if is_hidden(name):
            continue
        if not path.is_dir():
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
    files = list(walk(folder))
    endings = [file.suffix.lower() for file in files]
    unread = [ending for ending in endings if ending in UNREAD_ENDINGS]
    if unread:
        names = ", ".join(sorted(set(unread)))
        warnings.warn(f"{folder}: {len(unread)} files with other endings left out: {names}", stacklevel=3)
    return [file for file in files if is_image(file)]


# Folders and patterns as lists of images


def names_several(source: Any) -> TypeGuard[StrPath]:
    """Whether this is a folder or a pattern, and so a list of images."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = os.fspath(source)
    return os.path.isdir(path) or _is_pattern(path)


def listed(source: StrPath) -> list[str]:
    """The image files that a path, a folder or a pattern names; one path that is neither is returned as it is.

    Raises:
        RequestError: for a folder or a pattern without images.
    """
    path = os.fspath(source)
    if not names_several(path):
        return [path]

    files: set[str] = set()
    sources = [path] if os.path.isdir(path) else matches(path)
    for match in sources:
        if os.path.isdir(match):
            files.update(map(str, images_below(Path(match))))
        elif is_image(match):
            files.add(match)
    if not files:
        endings = " ".join(IMAGE_ENDINGS)
        raise RequestError(f"it holds no images (files ending in {endings}; hidden files are left out)", path)
    return sorted(files, key=natural)


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
    below = pattern[len(base) :]
    matched = []
    for match in glob.glob(glob.escape(base) + below, recursive=True):  # which leaves out names that begin with a dot
        if SYSTEM_NAMES.isdisjoint(Path(match[len(base) :]).parts):
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
    stems_a = [Path(path).stem for path in listed(a)]
    stems_b = [Path(path).stem for path in listed(b)]
    count_a = len(stems_a)
    count_b = len(stems_b)
    if stems_a != stems_b and 1 not in (count_a, count_b):
        raise ValueError(
            f"{os.fspath(a)!r} ({count_a} images) and {os.fspath(b)!r} ({count_b}) are compared image by image, but "
            "their images have different names: pairwise() compares all with all; give two lists to choose pairs"
        )


# Masks


def mask_of(folder: StrPath, image: str) -> str | None:
    """An image's mask in a folder of masks: the PNG file that ends as the image's path does.

    For photos/candle/04.jpg it is the first of masks/photos/candle/04.png, masks/candle/04.png and masks/04.png that
    exists.
    """
    _, *above, name = Path(os.path.abspath(image)).parts
    mask_name = f"{Path(name).stem}.png"
    for start in range(len(above) + 1):
        mask = os.path.join(folder, *above[start:], mask_name)
        if os.path.exists(mask):
            return mask
    return None


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
        masks.append(mask)
        if mask is not None:
            claim(taken, image, mask, folder)
    return masks


def claim(taken: dict[str, str], image: str, mask: str, folder: StrPath) -> None:
    """Note in `taken` that an image has this mask; RequestError if another image has it."""
    owner = taken.setdefault(mask, image)
    if owner == image or is_same_file(owner, image):
        return
    owner_folder = Path(owner).parent.name
    image_folder = Path(image).parent.name
    folders = f"{folder}/{owner_folder} and {folder}/{image_folder}"
    raise RequestError(f"it would be the mask of both {owner} and {image}: put their masks into {folders}", mask)
