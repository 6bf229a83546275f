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
Parts = tuple[str, ...]  # the names on a path


def path_parts(path: str) -> Parts:
    """The names on a path, equal for all spellings of it; that of an absolute path begins with "/".

    >>> path_parts("./photos\\\\a.png") == path_parts("photos/x/../a.png ")
    True
    """
    text = os.path.normpath(path.strip().replace("\\", "/"))
    names = tuple(name for name in text.split("/") if name)
    return ("/", *names) if text.startswith("/") else names


def by_path(listed: Mapping[str, Sequence[T]], images: Sequence[str], what: str) -> list[list[T] | None]:
    """The values that are listed for each image, joined if its path is listed in several spellings; None without any.

    Args:
        what: the listed values, for messages.

    Raises:
        RequestError: if two images would share theirs.
    """
    spellings: dict[Parts, list[str]] = {}
    for path in listed:
        spellings.setdefault(path_parts(path), []).append(path)

    values: list[list[T] | None] = []
    owners: dict[Parts, str] = {}  # a listed path -> the file that it means
    for image in images:
        absolute = path_parts(os.path.abspath(image))
        ends = [absolute[start:] for start in range(len(absolute)) if absolute[start:] in spellings]
        if not ends:
            values.append(None)
            continue
        longest = ends[0]
        owner = owners.setdefault(longest, image)
        if os.path.abspath(owner) != os.path.abspath(image):
            raise RequestError(
                f"the {what} of {spellings[longest][0]} would be those of both {owner} and {image}: give their paths "
                "with more folders"
            )
        joined: list[T] = []
        for path in spellings[longest]:
            joined.extend(listed[path])
        values.append(joined)
    return values
