"""Casts: the subjects that should be in each image.

cast={"story/1.png": ["cat"], "story/2.png": ["cat", "duck"], "story/3.png": []}
cast={"clip.mp4": ["cat"], "clip.mp4 @ 130": []}   # a clip, and one of its frames
cast="cast.csv"        # columns image,subjects; names separated by ; or by commas in quotes

An image that is not listed has all subjects.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from idmetric.matching.listed_paths import by_path, names_text, reason_of
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath
from idmetric.tables import read_table

Cast = Mapping[str, Sequence[str]]  # image, clip, or frame of a clip -> names of subjects


def cast_of(cast: Cast | StrPath | None, names: Sequence[str], subjects: Sequence[str]) -> dict[str, list[str]]:
    """The subjects that should be in each image, by its name; an image that is not listed has no entry.

    Args:
        names: of the images, of clips and of their frames. subjects: their names.

    Raises:
        RequestError: for images or subjects that the request does not have, and for a file that cannot be read.
    """
    if isinstance(cast, str | os.PathLike):
        cast = _read(os.fspath(cast))
    if not cast:
        return {}
    for image, members in cast.items():
        unknown = sorted(set(members) - set(subjects))
        if unknown:
            known = ", ".join(subjects)
            raise RequestError(f"the cast of {image} has {', '.join(unknown)}: the subjects are called {known}")
    by_name = by_path(cast, names, "cast")
    if not by_name:
        raise RequestError(f"none of the images ({names_text(names)}) has a cast ({names_text(cast)} have)")
    return by_name


def _read(path: str) -> Cast:
    """The cast in a CSV file; several rows of one image add up. RequestError naming the file."""
    cast: dict[str, list[str]] = defaultdict(list)
    try:
        table = read_table(path, needed=("image", "subjects"))
        for number, row in table.records():
            if row["image"] is None:
                raise ValueError(f"row {number} names no image")
            members = cast[str(row["image"])]
            for name in re.split("[;,]", str(row["subjects"] or "")):
                if name.strip():
                    members.append(name.strip())
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read the cast {path}: {reason_of(error)}") from error
    return cast
