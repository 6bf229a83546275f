"""Which image files a path, a folder or a pattern names, and which mask belongs to each: the same in every command.

- A file stands for itself, whatever its name.
- A folder stands for the images in and below it. Links to folders are followed, unless they lead back to a folder
  above.
- A pattern (`gen/*.png`, `gen/**/*.png`) stands for what matches it, as a shell would list it.

Hidden files and folders, and those that file managers leave, are left out of folders and patterns
(`idmetric.metric.paths.is_hidden`). Lists are in natural order: 2.png before 10.png.
"""

from __future__ import annotations

import glob
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, TypeGuard

from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, file_id, is_same_file

# The files in a folder, without those that operating systems, file managers and editors leave there.
#
# One rule for every reader of folders: `is_hidden`. A file that is named itself, and a folder that is named as the
# place
# to look in, are used whatever their names.

# in lower case; names that begin with a dot need no entry (.DS_Store, ._a.png, .ipynb_checkpoints, .Trash-1000)
_LEFT_BY_PROGRAMS = {
    "__macosx",  # archives of macOS
    "icon\r",  # a folder's icon on macOS
    "$recycle.bin",  # Windows
    "recycler",
    "system volume information",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "lost+found",  # Linux
    "@eadir",  # Synology
    "#recycle",
    "#snapshot",
    "@tmp",
    "@recycle",  # QNAP
    "@recently-snapshot",
    "~snapshot",  # NetApp
    "__pycache__",
}


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is left out of folders and patterns.

    Hidden ones, which begin with a dot, and what other programs leave (`@eaDir`, `#recycle`, `Thumbs.db`), in any case.
    """
    return name.startswith(".") or name.lower() in _LEFT_BY_PROGRAMS


def walk(folder: Path, above: Iterable[Path] = ()) -> Iterator[Path]:
    """All files below a folder, sorted by the names on the way, without hidden ones; links to folders are followed.

    A link that leads nowhere, a pipe and a device count as files, so that reading them reports it.

    Args:
        above: folders that links do not lead back to, as they do not to those on the way.
    """
    waiting = [(folder, True, frozenset(map(_folder_id, above)))]  # not recursive: folders may be thousands deep
    while waiting:
        path, is_folder, ids_above = waiting.pop()
        if not is_folder:
            yield path
            continue
        folder_id = _folder_id(path)
        if folder_id in ids_above:
            continue
        with os.scandir(path) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name, reverse=True)
        for entry in entries:
            if not is_hidden(entry.name):
                # of a link that leads to itself, entry.is_dir() raises an error
                leads_to_folder = os.path.isdir(entry) if entry.is_symlink() else entry.is_dir()
                waiting.append((path / entry.name, leads_to_folder, ids_above | {folder_id}))


def matching(folder: StrPath, *patterns: str) -> list[Path]:
    """Files and folders in a folder that match one of several patterns of `Path.glob`, sorted, without hidden ones."""
    folder = Path(folder)
    paths = set()
    for pattern in patterns:
        for path in folder.glob(pattern):
            if not below_hidden(path.relative_to(folder)):
                paths.add(path)
    return sorted(paths)


def below_hidden(path: PurePath) -> bool:
    """Whether a part of a path within a folder is hidden."""
    return any(map(is_hidden, path.parts))


def _folder_id(folder: Path) -> tuple[int, int] | str:
    status = os.stat(folder)
    if not status.st_ino:  # a file system without numbers of files, where all folders would count as one
        return os.path.realpath(folder)
    return status.st_dev, status.st_ino


# of a folder; a file that is named, or in a manifest, may end in anything
IMAGE_ENDINGS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".jfif",
    ".avif",
    ".heic",
    ".heif",
    ".hif",
    ".jpe",
    ".jp2",
    ".j2k",
    ".jpx",
    ".mpo",
    ".apng",
    ".dib",
    ".pnm",
    ".pbm",
    ".tga",
    ".psd",
)
RAW_ENDINGS = (".dng", ".nef", ".nrw", ".cr2", ".cr3", ".arw", ".sr2", ".srw", ".raf", ".orf", ".rw2", ".pef")
# pictures that are not read
_OTHER_ENDINGS = (*RAW_ENDINGS, ".svg", ".eps", ".ai", ".pdf", ".exr", ".hdr", ".jxl", ".xcf", ".psb", ".qoi")
VIDEO_ENDINGS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")

_NUMBERS = re.compile("([0-9]+)")
ABSENT = "the file does not exist: check the path and the working directory"
_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters: C:// is a path


def is_address(path: str) -> bool:
    """Whether this is a URL, which is never fetched."""
    return _ADDRESS.match(path) is not None


def exists(path: StrPath) -> bool:
    """Whether there is a file or folder; PermissionError if that cannot be seen."""
    try:
        os.stat(path)
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


def with_slashes(path: str) -> str:
    """The path of a table, which may be from Windows: slashes in place of backslashes, unless a file is called so."""
    if "\\" not in path or os.path.lexists(path):
        return path
    return path.replace("\\", "/")


# Folders and patterns


def is_image(path: StrPath) -> bool:
    """Whether a file's name ends as an image's does."""
    return os.path.splitext(path)[1].lower() in IMAGE_ENDINGS


def images_below(folder: Path, above: Iterable[Path] = ()) -> list[Path]:
    """The images that `walk` finds; one warning names the endings of pictures that are not read."""
    images = []
    unread_endings = []
    for file in walk(folder, above):
        ending = file.suffix.lower()
        if is_image(file):
            images.append(file)
        elif ending in _OTHER_ENDINGS:
            unread_endings.append(ending)
    if unread_endings:
        endings = ", ".join(sorted(set(unread_endings)))
        files = "1 file" if len(unread_endings) == 1 else f"{len(unread_endings)} files"
        warnings.warn(f"{folder}: {files} with other endings left out: {endings}", stacklevel=3)
    return images


def is_embedding_file(source: object) -> TypeGuard[StrPath]:
    """Whether this is the path of a file of `Embedding.save`, by its ending."""
    return isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(".idm")


def names_several(source: Any) -> bool:
    """Whether this is a folder or a pattern, and so a list of images."""
    path = os.fspath(source) if isinstance(source, os.PathLike) else source
    if not isinstance(path, str):
        return False
    return os.path.isdir(path) or _is_pattern(path)


def listed(source: StrPath) -> list[str]:
    """The image files that a path, a folder or a pattern names; one path that is neither is returned as it is.

    Files with other endings are listed only where a pattern matches no other.

    Raises:
        RequestError: for a folder without images, or a pattern that matches none.
    """
    path = os.fspath(source)
    if not names_several(path):
        return [path]

    is_folder = os.path.isdir(path)
    files: list[str] = []
    try:
        if is_folder:
            files += map(str, images_below(Path(path)))
        for match in matches(path):
            if os.path.isdir(match):
                folder = Path(match)
                files += map(str, images_below(folder, folder.parents))
            else:
                files.append(match)
    except OSError as error:
        raise RequestError(_unlisted(error), str(error.filename or path)) from error

    if not files and is_folder:
        endings = " ".join(IMAGE_ENDINGS)
        reason = f"the folder holds no images (files ending in {endings}; hidden files are left out)"
        raise RequestError(reason, path)
    if not files:
        reason = "nothing matches this pattern (hidden files are left out), and no file has this name"
        raise RequestError(reason, path)
    images = [file for file in files if is_image(file)]
    return sorted(set(images or files), key=natural)


def _unlisted(error: OSError) -> str:
    reason = f"the folder cannot be listed: {error.strerror}"
    if isinstance(error, PermissionError):
        reason += ": change its mode or owner (chmod, chown)"
    return reason


def all_listed(sources: Iterable[StrPath]) -> list[str]:
    """The files of several paths, folders and patterns, each once."""
    files: dict[str, str] = {}  # by one spelling of each path
    for source in sources:
        for path in listed(source):
            spelling = os.path.realpath(path) if ".." in path else os.path.normpath(path)
            files.setdefault(spelling, path)
    return list(files.values())


def natural(path: str) -> tuple[Any, ...]:
    """Sort key of paths, in which numbers in names count as numbers."""
    key = []
    for name in Path(path).parts:
        pieces: list[Any] = _NUMBERS.split(name)  # text and numbers in turn, text at both ends
        pieces[1::2] = map(int, pieces[1::2])
        key.append(pieces)
    return key, path


def matches(pattern: str) -> list[str]:
    """Files and folders that a pattern matches, without hidden ones, in natural order; empty for other paths."""
    if not _is_pattern(pattern):
        return []
    base = pattern_folder(pattern)
    parts = Path(pattern[len(base) :].strip("/" + os.sep)).parts
    if "**" not in parts:
        paths = glob.glob(os.path.join(glob.escape(base), *parts))
        matched = []
        for match in paths:
            names = Path(match).parts[-len(parts) :]
            # a part without a wildcard names its folder or file
            if not any(is_hidden(name) and name != part for name, part in zip(names, parts, strict=True)):
                matched.append(match)
        return sorted(matched, key=natural)

    # glob follows links in circles
    matched = []
    root = Path(base or ".")
    for path in walk(root):
        names = path.relative_to(root).parts
        # the file itself, or one of its folders
        if any(_fits(names[:count], parts) for count in range(1, len(names) + 1)):
            matched.append(os.path.join(base, *names))
    return sorted(matched, key=natural)


def check_partners(a: Any, b: Any) -> None:
    """Refuse to compare two folders or patterns image by image (ValueError) unless their images have equal names."""
    if not (names_several(a) and names_several(b)):
        return
    names_a = _names_below(a)
    names_b = _names_below(b)
    if names_a != names_b and 1 not in (len(names_a), len(names_b)):
        raise ValueError(
            f"{os.fspath(a)!r} ({len(names_a)} images) and {os.fspath(b)!r} ({len(names_b)}) are compared image by "
            "image, but their images have different names: pairwise() compares all with all; give two lists to choose "
            "pairs"
        )


def _names_below(source: StrPath) -> list[str]:
    """The images of a folder or pattern, as paths from its folder, without endings."""
    base = pattern_folder(os.fspath(source)) or "."
    names = [os.path.relpath(path, base) for path in listed(source)]
    return [os.path.splitext(name)[0] for name in names]


def _is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not is_address(path) and not os.path.lexists(path)


def pattern_folder(pattern: str) -> str:
    """The folders that a pattern, or a folder's path, begins with, "" for the working directory.

    They may have brackets in their names.
    """
    head = pattern.rstrip("/" + os.sep) or pattern
    while head and not os.path.isdir(head):
        head = os.path.dirname(head)
    return head


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the names on a path match the parts of a pattern; "**" stands for any number of folders."""
    if not parts:
        return not names
    if not names:
        return False
    part, *rest = parts
    if part == "**":
        rest = rest or ["*"]
        return any(_fits(names[skipped:], rest) for skipped in range(len(names)))
    return fnmatchcase(names[0], part) and _fits(names[1:], rest)


# Masks


def mask_of(folder: StrPath, image: StrPath) -> str | None:
    """An image's mask in a folder of masks: the file that ends as the image's path does, whatever its own ending.

    For photos/candle/04.jpg it is the first of masks/photos/candle/04.png, masks/candle/04.png and masks/04.png that
    exists, with any ending of images. Of several in one folder, 04.jpg.png comes before 04.jpg, and both before other
    endings. RequestError for two that are as good.
    """
    path = os.path.abspath(image)
    *above, name = Path(path).parts[1:]
    stem, _ = os.path.splitext(name)

    # the longest end of the image's path first
    for start in range(len(above) + 1):
        mask_folder = os.path.join(folder, *above[start:])
        entries = _entries(mask_folder)
        same_stem = entries.get(stem, [])
        same_name = [name] if name in same_stem else []
        for mask_names in (entries.get(name, []), same_name, same_stem):
            masks = []
            for mask_name in mask_names:
                mask = os.path.join(mask_folder, mask_name)
                is_this_image = file_id(mask) in (None, file_id(image))  # the folder may hold the images too
                if is_image(mask_name) and not is_this_image:
                    masks.append(mask)
            if len(masks) > 1:
                reason = f"both {masks[0]} and {masks[1]} may be its mask: keep one of them"
                raise RequestError(reason, os.fspath(image))
            if masks:
                return masks[0]
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
        if mask is not None:
            claim(taken, image, mask, folder)
        masks.append(mask)
    return masks


def claim(taken: dict[str, str], image: str, mask: str, folder: StrPath) -> None:
    """Note in `taken` that an image has this mask; RequestError if another image has it."""
    owner = taken.setdefault(os.path.realpath(mask), image)
    if owner == image or is_same_file(owner, image):
        return

    # 04.jpg.png in a folder of the image's folder's name is the best name of a mask
    names = []
    for path in (owner, image):
        end = Path(path).parts[-2:]
        names.append(os.path.join(folder, *end) + ".png")
    advice = f"name their masks {names[0]} and {names[1]}"
    raise RequestError(f"it would be the mask of both {owner} and {image}: {advice}", mask)


def _entries(folder: str) -> dict[str, list[str]]:
    """The names in a folder, by names without their endings; empty if the folder does not exist."""
    path = os.path.abspath(folder)
    try:
        changed = os.stat(path).st_mtime_ns
        if time.time_ns() - changed < 2_000_000_000:  # it may change again within the clock's tick
            return _listing.__wrapped__(path, changed)
        return _listing(path, changed)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RequestError(_unlisted(error), path) from error


@lru_cache(256)
def _listing(folder: str, changed: int) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        stem, _ = os.path.splitext(name)
        names.setdefault(stem, []).append(name)
    return names
