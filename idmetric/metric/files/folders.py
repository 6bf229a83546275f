"""The files in a folder, without those that operating systems, file managers and editors leave there.

One rule for every reader of folders: `is_hidden`. A file that is named itself, and a folder that is named as the place
to look in, are used whatever their names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from idmetric.metric.files import StrPath

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
