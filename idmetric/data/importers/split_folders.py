"""Folders that name splits, above or below the folders of identities.

root/Train/rex/1.jpg, root/Test/rex/2.jpg      one identity rex, splits train and test
root/rex/train/1.jpg, root/rex/test/2.jpg      the same
root/test/1.jpg, root/rex/1.jpg                an identity that is called test, next to others; a warning says so

Folders are splits if the same level of every image's path has one of the words of `split_words`. A folder with such a
name that holds images alone, next to a folder with another name, is an identity. Anything else is refused, because
photos of one animal below two splits would become two identities.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.split import split_word
from idmetric.tables import first_few


def split_level(root: Path, images: Sequence[PurePosixPath]) -> int | None:
    """Which folder on the paths of all images, from 0, names their split; None if none does.

    Args:
        images: paths relative to `root`.

    Raises:
        ManifestError: naming a folder called like a split that is neither the split of its images nor an identity.
    """
    folders_of_images = [path.parts[:-1] for path in images]
    shortest = min(map(len, folders_of_images), default=0)
    if shortest > 1:  # a folder for the split, and one for the identity
        for level in range(shortest):
            if all(split_word(folders[level]) for folders in folders_of_images):
                return level
    _check_identities(root, folders_of_images)
    return None


def _check_identities(root: Path, folders_of_images: Sequence[tuple[str, ...]]) -> None:
    """Warn of identities that are called like a split, and refuse other folders with such names."""
    names_in: dict[tuple[str, ...], set[str]] = defaultdict(set)  # folder -> names of the folders in it
    for folders in folders_of_images:
        for level, name in enumerate(folders):
            names_in[folders[:level]].add(name)

    identities = []
    for above, names in sorted(names_in.items()):
        splits = sorted(filter(split_word, names))
        for name in splits:
            folder = PurePosixPath(*above, name)
            others = sorted(names - {*splits})
            if (*above, name) in names_in or not others:
                advice = "sort all images into folders of splits with a folder of each identity in them, or rename it"
                raise ManifestError(
                    f"{root / folder}: this name is that of a split, but not every image lies below a split "
                    f"and an identity: {advice}"
                )
            identities.append(str(folder))
    if identities:
        warnings.warn(
            f"{root}: taken as identities, because they stand next to other identities, though their names are those "
            f"of splits: {', '.join(first_few(identities, 5))}",
            stacklevel=2,
        )
