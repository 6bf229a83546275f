"""Which image a path in a file of regions or casts means.

A listed path may be the end of an image's path (`01/a.png`), or all of it; of several such ends the longest one counts.
`./`, `..`, backslashes and blanks around a path make no difference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from idmetric.metric.errors import RequestError

T = TypeVar("T")


def path_parts(path: str) -> tuple[str, ...]:
    """The names on a path, equal for all spellings of it; that of an absolute path begins with "/".

    >>> path_parts("./photos\\\\a.png") == path_parts("photos/x/../a.png ")
    True
    """
    text = os.path.normpath(path.strip().replace("\\", "/"))
    names = tuple(name for name in text.split("/") if name)
    return ("/", *names) if text.startswith("/") else names


def by_path(listed: Mapping[str, Sequence[T]], images: Sequence[str], what: str) -> dict[str, list[T]]:
    """The values that are listed for each image, by its name; joined if its path is listed in several spellings.

    Args:
        what: the listed values, for messages.

    Raises:
        RequestError: if two images would share theirs.
    """
    joined: dict[tuple[str, ...], list[T]] = {}
    for path, path_values in listed.items():
        joined.setdefault(path_parts(path), []).extend(path_values)

    values: dict[str, list[T]] = {}
    owners: dict[tuple[str, ...], str] = {}  # a listed path -> the file that it means
    for image in images:
        absolute = path_parts(os.path.abspath(image))
        ends = (absolute[start:] for start in range(len(absolute)))
        longest = next((end for end in ends if end in joined), None)
        if longest is None:
            continue
        owner = owners.setdefault(longest, os.path.abspath(image))
        if owner != os.path.abspath(image):
            name = "/".join(longest)
            raise RequestError(
                f"the {what} of {name} would be those of both {owner} and {image}: give their paths with more folders"
            )
        values[image] = joined[longest]
    return values
