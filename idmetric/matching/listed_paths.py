"""Which image a path in a file of regions or casts means.

A listed path may be the end of an image's path (`01/a.png`), or all of it; of several such ends the longest one counts.
`./`, `..`, backslashes and blanks around a path make no difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from idmetric.metric.errors import RequestError
from idmetric.metric.files import first_few

T = TypeVar("T")


def path_parts(path: str) -> tuple[str, ...]:
    """The names on a path, equal for all spellings of it; that of an absolute path begins with "/".

    >>> path_parts("./photos\\\\a.png") == path_parts("photos/x/../a.png ")
    True
    """
    text = os.path.normpath(path.strip().replace("\\", "/"))
    names = tuple(name for name in text.split("/") if name)
    if text.startswith("/"):
        return ("/", *names)
    return names


def by_path(listed: Mapping[str, Sequence[T]], images: Sequence[str], what: str) -> dict[str, list[T]]:
    """The values that are listed for each image, by its name; joined if its path is listed in several spellings.

    Args:
        what: the listed values, for messages.

    Raises:
        RequestError: if two images would share theirs.
    """
    joined: dict[tuple[str, ...], list[T]] = {}
    for path, path_values in listed.items():
        parts = path_parts(path)
        joined.setdefault(parts, []).extend(path_values)

    values: dict[str, list[T]] = {}
    owners: dict[tuple[str, ...], str] = {}  # a listed path -> the file that it means
    for image in images:
        file = os.path.abspath(image)
        parts = path_parts(file)
        while parts and parts not in joined:
            parts = parts[1:]
        if not parts:
            continue
        owner = owners.setdefault(parts, file)
        if owner != file:
            name = "/".join(parts)
            raise RequestError(
                f"the {what} of {name} would be those of both {owner} and {file}: give their paths with more folders"
            )
        values[image] = joined[parts]
    return values


def names_text(names: Iterable[str]) -> str:
    """The first names, for messages."""
    return ", ".join(first_few(list(names), 3)) or "none"


def reason_of(error: OSError | ValueError) -> str:
    """Why a file cannot be read, without its name."""
    return getattr(error, "strerror", "") or str(error)
