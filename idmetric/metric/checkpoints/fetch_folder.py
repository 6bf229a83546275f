"""A whole folder of a Hub repository."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from idmetric.metric.checkpoints.folder import Files
from idmetric.metric.checkpoints.hub import file_names

_CONFIG = "config.json"  # of each repository that is fetched as a folder


def fetch_folder(files: Files, patterns: Sequence[str]) -> Path:
    """A local folder as it is, or that of a Hub repository with the files that match `patterns`, downloaded once.

    Without a network the folder in the cache is returned as it is.

    Raises:
        CheckpointError: as `Files`.
    """
    if files.local:
        return Path(files.name)
    folder = files[_CONFIG].parent
    for name in file_names(files.name, files.hub, files.advice, folder):
        if any(fnmatch(name, pattern) for pattern in patterns):
            _ = files[name]
    return folder
