"""Files below a folder, through links to folders too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All files below a folder, sorted by the names on the way; hidden ones and __MACOSX are passed over.

    Links to folders are followed, but for those that lead back to a folder above. A link that leads nowhere counts as a
    file, so that reading it says so.

    Raises:
        OSError: naming a folder that cannot be listed.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        if entry.is_dir():
            yield from files(folder / entry.name, above | {real})
        elif entry.is_file() or entry.is_symlink():
            yield folder / entry.name
