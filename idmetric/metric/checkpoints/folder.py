"""The files of a model folder or a Hub repository, fetched when they are asked for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.revision import ADVICE, Hub, commit_of
from idmetric.metric.checkpoints.training_run import RECORD
from idmetric.metric.files import StrPath


class Files:
    """The files of a model folder, or of the Hub repository `owner/name`, each fetched when first asked for.

    >>> path = Files("folder")["config.json"]  # doctest: +SKIP

    All files of a repository come from one commit: that of the first one fetched.

    Args:
        source: the folder or `owner/name`.
        published: it is a repository, even if there is a folder of that name.
        advice: alternative to a local folder, for messages.

    Raises:
        CheckpointError: if a folder lacks the file, or has no such revision, or the repository cannot be reached.
    """

    def __init__(self, source: StrPath, hub: Hub = Hub(), *, published: bool = False, advice: str = ADVICE) -> None:
        self.name = os.fspath(source)
        self.advice = advice
        self.local = not published and Path(self.name).is_dir()
        if self.local and hub.revision is not None:
            raise CheckpointError(f"{self.name!r} is a local folder, which has no revision {hub.revision!r}")
        self.hub = hub

    def __getitem__(self, filename: str) -> Path:
        if not self.local:
            from idmetric.metric.checkpoints.hub import fetch

            path = fetch(self.name, filename, self.hub, self.advice)
            revision = commit_of(path) or self.hub.revision
            self.hub = replace(self.hub, revision=revision)
            return path

        path = Path(self.name, filename)
        if path.is_file():
            return path
        advice = ""
        if any((folder / RECORD).is_file() for folder in (Path(self.name), Path(self.name).parent)):
            advice = ", as its training is unfinished: resume it, or write its model by `idmetric train` with --export"
        raise CheckpointError(f"{self.name!r} is not a model folder: it has no {filename}{advice}")

    def optional(self, filename: str) -> Path | None:
        """The file, or None if it does not exist (without a network: if it is not in the cache).

        Raises:
            CheckpointError: if the repository cannot be reached for another reason.
        """
        if self.local:
            path = Path(self.name, filename)
            if path.is_file():
                return path
            return None
        from idmetric.metric.checkpoints.hub import is_absent

        try:
            return self[filename]
        except CheckpointError as error:
            if is_absent(error.__cause__):
                return None
            raise
