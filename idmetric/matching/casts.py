"""Casts: the subjects that should be in each image.

cast={"story/1.png": ["cat"], "story/2.png": ["cat", "duck"], "story/3.png": []}
cast={"clip.mp4": ["cat"], "clip.mp4 @ 2s-4.5s": ["cat", "duck"], "clip.mp4 @ 130": []}   # a clip, a part, a frame
cast="cast.csv"        # columns image,subjects; names separated by ; or by commas in quotes

An image that is not listed has all subjects. A cast is never read from labels of regions: what a detector did not find
has no label.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from idmetric.matching.clips import Moment
from idmetric.matching.listed_paths import by_path
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath
from idmetric.tables import cell_name, first_few, read_table

Cast = Mapping[str, Sequence[str]]  # image, clip, or part of a clip -> names of subjects
_PART = re.compile(r"(.+) @ ([0-9.]+)s-([0-9.]+)s")


def cast_of(cast: Cast | None, moments: Sequence[Moment], subjects: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each subject should be in each image, (T, S); without a cast, all should be in all images.

    Args:
        moments: the images and frames. subjects: their names.

    Raises:
        RequestError: for images or subjects that the request does not have, and parts of clips without a length.
    """
    if not cast or not subjects:
        return _rows([None] * len(moments), subjects)

    for key, names in cast.items():
        unknown = sorted(set(names) - set(subjects))
        if unknown:
            raise RequestError(
                f"the cast of {key} has {', '.join(unknown)}: the subjects are called {', '.join(subjects)}"
            )
    listed = _listed(cast, moments)
    unlisted = [moment.name for moment, names in zip(moments, listed, strict=True) if names is None]
    if len(unlisted) == len(moments):
        names_of_cast = ", ".join(first_few(list(cast), 3))
        raise RequestError(
            f"none of the images ({', '.join(first_few(unlisted, 3))}) is among the ones with a cast "
            f"({names_of_cast}): compare their paths"
        )
    if unlisted:
        warnings.warn(
            f"{len(unlisted)} of {len(moments)} images are not listed with a cast, and all subjects are expected "
            f"there: {', '.join(first_few(unlisted, 3))}",
            stacklevel=4,
        )
    return _rows(listed, subjects)


def _rows(listed: Sequence[Sequence[str] | None], subjects: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each subject is listed for each image, (T, S); all are for an image that is not listed."""
    rows = np.ones((len(listed), len(subjects)), dtype=bool)
    for row, members in zip(rows, listed, strict=True):
        if members is not None:
            row[:] = [subject in members for subject in subjects]
    return rows


def _listed(cast: Cast, moments: Sequence[Moment]) -> list[Sequence[str] | None]:
    """The names for each image: its own entry, else that of the part of the clip it lies in, else of the whole clip."""
    whole: dict[str, Sequence[str]] = {}
    clips = list(dict.fromkeys(moment.clip for moment in moments if moment.clip))
    parts: dict[str, list[tuple[float, float, Sequence[str]]]] = {clip: [] for clip in clips}
    for key, names in cast.items():
        part = _PART.fullmatch(key)
        if part is None:
            whole[key] = names
            continue
        clip, start, end = part[1], _seconds(part[2], key), _seconds(part[3], key)
        if start >= end:
            raise RequestError(f"the cast of {key!r} is for no time: write the start before the end")
        for label, is_listed in zip(clips, by_path({clip: [True]}, clips, "cast"), strict=True):
            if is_listed:
                parts[label].append((start, end, names))

    of_clips = dict(zip(clips, by_path(whole, clips, "cast"), strict=True))
    of_images = by_path(whole, [moment.name for moment in moments], "cast")
    listed: list[Sequence[str] | None] = []
    for moment, of_image in zip(moments, of_images, strict=True):
        members: Sequence[str] | None = of_image
        if members is None and moment.clip:
            members = of_clips[moment.clip]
            for start, end, part_members in parts[moment.clip]:
                if start <= moment.seconds < end:
                    members = part_members
        listed.append(members)
    return listed


def _seconds(text: str, key: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"the cast of {key!r} is of no time: write it as 'clip.mp4 @ 2s-4.5s'") from None


# Files


def read_cast(path: StrPath) -> Cast:
    """The cast in a CSV file with the columns image,subjects; RequestError naming the file."""
    name = os.fspath(path)
    cast: dict[str, list[str]] = {}
    try:
        table = read_table(name, needed=("image", "subjects"))
        for number, row in table.records():
            if row["image"] is None:
                raise RequestError(f"{name}: {cell_name(number, 'image')} is empty")
            members = cast.setdefault(str(row["image"]), [])  # several rows of one image add up
            names = row["subjects"]
            if not isinstance(names, list):
                names = re.split("[;,]", str(names or ""))
            members.extend(str(member).strip() for member in names if str(member).strip())
    except RequestError:
        raise
    except OSError as error:
        raise RequestError(f"cannot read the cast {name}: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"cannot read the cast {name}: {error}") from error
    return cast
