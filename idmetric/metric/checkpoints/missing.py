"""Why a folder lacks one of a model's files, and how to fix it."""

from __future__ import annotations

from pathlib import Path

from idmetric.metric.checkpoints import training_run
from idmetric.metric.checkpoints.errors import CheckpointError


def missing_file(folder: Path, filename: str) -> CheckpointError:
    """The error for a folder that was given as a model and lacks a file.

    Args:
        folder: of a run that has not ended or one of its folders, a folder of the Hub's cache, or any other.
        filename: the file that it lacks.
    """
    for run in (folder, folder.parent):
        if (run / training_run.RECORD).is_file():
            return CheckpointError(_unfinished(folder, run))

    advice = ""
    if (folder / "snapshots").is_dir():
        advice = "; give the folder of one commit in its snapshots/"
    elif (folder / f"{filename}.index.json").is_file():
        advice = f", but a {filename}.index.json: save the model again, with all weights in one file"
    return CheckpointError(f"{str(folder)!r} is not a model folder: it has no {filename}{advice}")


def _unfinished(folder: Path, run: Path) -> str:
    text = (
        f"{str(folder)!r} holds no model, as its training is unfinished: resume it by the same `idmetric train` command"
    )
    files = training_run.checkpoints(run)
    if not files:
        return f"{text} (no checkpoint is written yet)"
    return f"{text}, or add --export DIR to write the model of {files[max(files)]} to DIR"
