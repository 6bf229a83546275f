"""Which image a path in a file of regions or casts means.

A listed path may be the end of an image's path (`01/a.png`), or all of it. One path may be written in several ways:
`./a.png`, with `..`, backslashes, blanks around names, percent-encoding or another case, as a file: address, or as
Label Studio writes the files of its storage. All of these are one image.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TypeVar
from urllib.parse import unquote

from idmetric.metric.errors import RequestError

T = TypeVar("T")
Parts = tuple[str, ...]  # the names on a path, in one spelling
_UPLOAD = re.compile("[0-9a-f]{8}-(.+)")  # Label Studio puts a part of a hash before the name of an uploaded file


def path_parts(path: str) -> Parts:
    """The names on a path, equal for all spellings of it; that of an absolute path begins with "/".

    >>> path_parts("./Photos\\\\a%20b.PNG") == path_parts("photos/x/../a b.png ")
    True
    """
    text = path.rpartition("?d=")[2]  # Label Studio: /data/local-files/?d=photos/a.png
    text = unquote(text.removeprefix("file://")).replace("\\", "/")
    text = unicodedata.normalize("NFC", text).casefold().strip()
    names: list[str] = ["/"] if text.startswith("/") else []
    for name in text.split("/"):
        name = name.strip()
        if name == ".." and names and names[-1] != "/":
            names.pop()
        elif name not in ("", ".", ".."):
            names.append(name)
    return tuple(names)


def by_path(listed: Mapping[str, Sequence[T]], images: Sequence[str], what: str) -> list[list[T] | None]:
    """The values that are listed for each image, joined if its path is listed in several spellings; None without any.

    Args:
        what: the listed values, for messages.

    Raises:
        RequestError: if two images would share theirs, and for paths that may or may not mean one image.
    """
    spellings: dict[Parts, list[str]] = {}
    for path in listed:
        spellings.setdefault(path_parts(path), []).append(path)

    order = {path: number for number, path in enumerate(listed)}
    paths_of = [sorted(_paths_of(image, spellings, what), key=order.__getitem__) for image in images]
    if not all(paths_of):
        uploads = _uploads(spellings)
        for number, image in enumerate(images):
            if not paths_of[number]:
                paths_of[number] = _upload_of(image, uploads, what)

    owners: dict[str, dict[str, str]] = {}  # a listed path -> the files that it may mean, as the request calls them
    for image, paths in zip(images, paths_of, strict=True):
        for path in paths:
            owners.setdefault(path, {}).setdefault(_real_path(image), image)
    values: list[list[T] | None] = []
    for image, paths in zip(images, paths_of, strict=True):
        joined: list[T] = []
        is_listed = False
        for path in paths:
            if _is_owner(image, path, list(owners[path].values()), what):
                joined.extend(listed[path])
                is_listed = True
        values.append(joined if is_listed else None)
    return values


def _paths_of(image: str, spellings: Mapping[Parts, list[str]], what: str) -> list[str]:
    """The listed paths that may mean an image: its absolute path, and the longest listed end of it."""
    absolute = path_parts(os.path.abspath(image))
    real = path_parts(_real_path(image))
    paths: list[str] = []
    for parts in dict.fromkeys((absolute, real)):
        if parts[:1] == ("/",):
            paths += spellings.get(parts, [])

    ends = [absolute[start:] for start in range(len(absolute)) if absolute[start:] in spellings]
    ends = [end for end in ends if end[:1] != ("/",)]
    if not ends:
        return paths
    longest, *shorter = ends
    for end in shorter:
        # seen from the folder that the longest end begins in, it may be another file
        root = PurePath(os.path.abspath(image)).parts[: -len(longest)]
        other_file = os.path.join(*root, *spellings[end][0].split("/"))
        if not os.path.exists(other_file.rpartition(" @ ")[0] or other_file):
            raise RequestError(
                f"{spellings[longest][0]!r} and {spellings[end][0]!r}, which have {what}, may both be {image}: write "
                "its path in one way, or leave one of them out"
            )
    return paths + spellings[longest]


def _uploads(spellings: Mapping[Parts, list[str]]) -> dict[str, list[str]]:
    """Names of the files that were uploaded to Label Studio -> the listed paths of their copies there."""
    uploads: dict[str, list[str]] = {}
    for parts, paths in spellings.items():
        upload = _UPLOAD.fullmatch(parts[-1]) if parts else None
        if upload:
            uploads.setdefault(upload[1], []).extend(paths)
    return uploads


def _upload_of(image: str, uploads: Mapping[str, list[str]], what: str) -> list[str]:
    parts = path_parts(image)
    paths = uploads.get(parts[-1], []) if parts else []
    if len({path_parts(path) for path in paths}) > 1:
        raise RequestError(
            f"{paths[0]!r} and {paths[1]!r}, which have {what}, are copies that Label Studio made of files called "
            f"{parts[-1]!r}: write the path of each image"
        )
    return paths


def _is_owner(image: str, path: str, owners: Sequence[str], what: str) -> bool:
    """Whether an image is the one of several that a listed path means, letter by letter; RequestError if none is."""
    if len(owners) == 1:
        return True
    exact = [owner for owner in owners if _ends_in(owner, path)]
    if len(exact) != 1:
        raise RequestError(
            f"the {what} of {path} would be those of both {owners[0]} and {owners[1]}: give their paths with more "
            "folders"
        )
    return _real_path(image) == _real_path(exact[0])


def _real_path(image: str) -> str:
    try:
        return os.path.realpath(image)
    except ValueError:  # a name that no file can have
        return os.path.abspath(image)


def _ends_in(image: str, path: str) -> bool:
    parts = PurePath(os.path.normpath(path)).parts
    return PurePath(os.path.abspath(image)).parts[-len(parts) :] == parts
