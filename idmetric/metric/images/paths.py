"""Which image files a path, a folder or a pattern names, and which mask belongs to each: the same in every command.

- A file stands for itself, whatever its name.
- A folder stands for the images in and below it. Links to folders are followed, unless they lead back to a folder
  above.
- A pattern (`gen/*.png`, `gen/**/*.png`) stands for what matches it, as a shell would list it.

Hidden files and folders (names that begin with a dot, as macOS's `._a.png`) and `__MACOSX` are left out of folders and
patterns. Lists are in natural order: 2.png before 10.png.
"""

from __future__ import annotations

import glob
import os
import re
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from idmetric.metric.files.output import file_id

# of a folder; a file that is named, or in a manifest, may end in anything
IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif", ".heic",
)  # fmt: skip

_NUMBERS = re.compile("([0-9]+)")
ABSENT = "there is no such file: check the path and the working directory"
_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters: C:// is a path


class InputError(ValueError):
    """A path, folder or pattern that cannot be used. `source` names it, `reason` says why and how to fix it."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source!r}: {reason}")
        self.source, self.reason = source, reason


def is_address(path: str) -> bool:
    """Whether this is a URL, which is never fetched."""
    return _ADDRESS.match(path) is not None


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or folder; PermissionError if that cannot be seen."""
    try:
        os.stat(path)
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


# Folders and patterns


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
        own_id = _folder_id(path)
        if own_id in ids_above:
            continue
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name, reverse=True)
        for entry in entries:
            if not is_hidden(entry.name):
                leads_to_folder = os.path.isdir(entry) if entry.is_symlink() else entry.is_dir()
                waiting.append((path / entry.name, leads_to_folder, ids_above | {own_id}))


def _folder_id(folder: Path) -> tuple[int, int] | str:
    found = os.stat(folder)
    return (found.st_dev, found.st_ino) if found.st_ino else os.path.realpath(folder)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is left out of folders and patterns."""
    return name.startswith(".") or name == "__MACOSX"


def is_image(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name ends as an image's does."""
    return os.path.splitext(path)[1].lower() in IMAGE_ENDINGS


def names_several(source: Any) -> bool:
    """Whether this is a folder or a pattern, and so a list of images."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = os.fspath(source)
    return isinstance(path, str) and (os.path.isdir(path) or _is_pattern(path))


def listed(source: str | os.PathLike[str]) -> list[str]:
    """The image files that a path, a folder or a pattern names; one path that is neither is returned as it is.

    Files with other endings are listed only where a pattern matches no other.

    Raises:
        InputError: for a folder without images, or a pattern that matches none; as `existing`.
    """
    path = existing(os.fspath(source))
    if not names_several(path):
        return [path]
    images: list[str] = []
    try:
        matched = matches(path)
        for one in [path] if os.path.isdir(path) else matched:
            if os.path.isdir(one):
                above = Path(one).parents if matched else ()
                images += [str(file) for file in walk(Path(one), above) if is_image(file)]
            elif is_image(one):
                images.append(one)
    except OSError as error:
        raise InputError(str(error.filename or path), _unlisted(error)) from error
    if images := images or [one for one in matched if not os.path.isdir(one)]:
        return sorted(dict.fromkeys(images), key=natural)
    if os.path.isdir(path):
        endings = " ".join(IMAGE_ENDINGS)
        raise InputError(path, f"the folder holds no images (files ending in {endings}; hidden files are left out)")
    raise InputError(path, "nothing matches this pattern (hidden files are left out), and no file has this name")


def _unlisted(error: OSError) -> str:
    advice = ": change its mode or owner (chmod, chown)" if isinstance(error, PermissionError) else ""
    return f"the folder cannot be listed: {error.strerror}{advice}"


def all_listed(sources: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The files of several paths, folders and patterns, each once."""
    found: dict[str, str] = {}
    for source in sources:
        for path in listed(source):
            found.setdefault(os.path.realpath(path) if ".." in path else os.path.normpath(path), path)
    return list(found.values())


def natural(path: str) -> tuple[Any, ...]:
    """Sort key of paths, in which numbers in names count as numbers."""
    parts = [[int(x) if k % 2 else x for k, x in enumerate(_NUMBERS.split(part))] for part in Path(path).parts]
    return parts, path


def matches(pattern: str) -> list[str]:
    """Files and folders that a pattern matches, without hidden ones, in natural order; empty for other paths."""
    if not _is_pattern(pattern):
        return []
    base = _base(pattern)
    parts = Path(pattern[len(base) :].strip("/" + os.sep)).parts
    if "**" not in parts:
        found = glob.glob(os.path.join(glob.escape(base), *parts))
        return sorted((path for path in found if not is_hidden(os.path.basename(path))), key=natural)

    found = []
    for path in walk(Path(base or ".")):  # glob follows links in circles
        names = path.relative_to(base or ".").parts
        if any(_fits(names[:k], parts) for k in range(1, len(names) + 1)):  # the file, or one of its folders
            found.append(os.path.join(base, *names))
    return sorted(found, key=natural)


def check_partners(a: Any, b: Any) -> None:
    """Refuse to compare two folders or patterns image by image (ValueError) unless their images have equal names."""
    if not (names_several(a) and names_several(b)):
        return
    sides = [(listed(x), _base(os.fspath(x)) or ".") for x in (a, b)]
    left, right = ([os.path.splitext(os.path.relpath(path, base))[0] for path in files] for files, base in sides)
    if left != right and 1 not in (len(left), len(right)):
        raise ValueError(
            f"{os.fspath(a)!r} ({len(left)} images) and {os.fspath(b)!r} ({len(right)}) are compared image by image, "
            "but their images have different names: pairwise() compares all with all; give two lists to choose pairs"
        )


def _is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not is_address(path) and not os.path.lexists(path)


def _base(pattern: str) -> str:
    """The folders that a pattern, or a folder's path, begins with; they may have brackets in their names."""
    head = pattern.rstrip("/" + os.sep) or pattern
    while head and not os.path.isdir(head):
        head = os.path.dirname(head)
    return head


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_fits(names[k:], parts[1:] or ["*"]) for k in range(len(names)))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])


# Masks


def mask_of(folder: str | os.PathLike[str], image: str | os.PathLike[str]) -> str | None:
    """An image's mask in a folder of masks: the file that ends as the image's path does, whatever its own ending.

    For photos/candle/04.jpg it is the first of masks/photos/candle/04.png, masks/candle/04.png and masks/04.png that
    exists, with any ending of images, in any case and Unicode form. Of several in one folder, 04.jpg.png comes before
    04.jpg, and both before other endings. InputError for two that are as good.
    """
    *above, name = Path(os.path.abspath(image)).parts[1:]
    stem = os.path.splitext(name)[0]

    def fit(mask: str) -> tuple[bool, ...]:
        own = os.path.basename(mask)
        own_stem = os.path.splitext(own)[0]
        return _folded(own_stem) == _folded(name), _folded(own) == _folded(name), own_stem in (name, stem), own == name

    for k in range(len(above) + 1):
        places = _descended(os.fspath(folder), above[k:])
        near = {
            os.path.join(place, own)
            for place in places
            for key in (name, stem)
            for own in _entries(place).get(_folded(key), ())
        }
        masks = [path for path in near if is_image(path) and os.path.isfile(path)]
        masks = [path for path in masks if file_id(path) != file_id(image)]  # the folder may hold the images too
        best = sorted(path for path in masks if fit(path) == max(map(fit, masks)))
        if len(best) > 1:
            raise InputError(os.fspath(image), f"both {best[0]} and {best[1]} may be its mask: keep one of them")
        if best:
            return best[0]
    return None


def absent_mask(folder: str | os.PathLike[str], image: str | os.PathLike[str]) -> tuple[str, str]:
    """Name and reason for an error about an image without a mask there."""
    return str(Path(folder, f"{Path(image).stem}.png")), f"there is no such file, the mask of {os.fspath(image)}"


def masks_of(folder: str | os.PathLike[str], images: Iterable[str]) -> list[str | None]:
    """The masks of images in a folder, see `mask_of`; None for an image without one."""
    taken: dict[str, str] = {}
    masks = []
    for image in images:
        masks.append(mask_of(folder, image))
        if masks[-1] is not None:
            claim(taken, image, masks[-1], folder)
    return masks


def claim(taken: dict[str, str], image: str, mask: str, folder: str | os.PathLike[str]) -> None:
    """Note in `taken` that an image has this mask; InputError if another image has it."""
    other = taken.setdefault(os.path.realpath(mask), image)
    if other == image or (file_id(image) is not None and file_id(other) == file_id(image)):
        return
    shared = os.path.commonpath([os.path.abspath(os.path.dirname(path)) for path in (other, image)])
    ends = [Path(os.path.relpath(path, shared)) for path in (other, image)]
    alike = ends[0].with_suffix("") == ends[1].with_suffix("")
    one, two = (Path(folder, f"{end}.png" if alike else end.with_suffix(".png")) for end in ends)
    raise InputError(mask, f"it would be the mask of both {other} and {image}: name their masks {one} and {two}")


# Names


def existing(path: str) -> str:
    """A path as the disk spells it, if only the case of the ending or the Unicode form of names differs.

    InputError if that fits two files.
    """
    if os.path.lexists(path) or is_address(path):
        return path
    found = _descended("", Path(path).parts)
    if len(found) > 1:
        raise InputError(path, f"there is no such file, but both {found[0]} and {found[1]}: choose one")
    return found[0] if found else path


def _descended(folder: str, parts: Sequence[str]) -> list[str]:
    """The paths below a folder that may be meant by these names, each as it is spelled if that exists."""
    places = [folder]
    for part in parts:
        exact = [path for place in places if os.path.lexists(path := os.path.join(place, part))]
        places = exact or [
            os.path.join(place, name)
            for place in places
            for name in _entries(place).get(_folded(part), ())
            if _folded(name) == _folded(part)
        ]
    return places


def _folded(name: str) -> str:
    """A name in one Unicode form, its ending in small letters."""
    stem, ending = os.path.splitext(unicodedata.normalize("NFC", name))
    return stem + ending.lower()


def _entries(folder: str) -> dict[str, list[str]]:
    """The names in a folder, by `_folded` names with and without their endings; empty if there is no such folder."""
    path = os.path.abspath(folder)
    try:
        changed = os.stat(path).st_mtime_ns
        may_change_again = time.time_ns() - changed < 2_000_000_000  # within the clock's tick
        return (_listing.__wrapped__ if may_change_again else _listing)(path, changed)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InputError(path, _unlisted(error)) from error


@lru_cache(256)
def _listing(folder: str, changed: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        for key in {_folded(name), _folded(os.path.splitext(name)[0])}:
            found.setdefault(key, []).append(name)
    return found
