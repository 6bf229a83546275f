"""Output of commands: stdout or a file, checked before the work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from idmetric.cli.streams import drop_stdout
from idmetric.io.output import OutputError, check, refuse_inputs, replacing


class UsageError(Exception):
    """The command cannot do what it was asked for; the message says why and how to fix it."""


class LostOutputError(Exception):
    """A result could not be written to the place that was asked for; the message says where it is."""


def check_output(output: str | None) -> None:
    """Check, before the work, that `write` can write there.

    Raises:
        UsageError: if it cannot.
    """
    if output is not None:
        try:
            check(output)
        except OSError as error:
            raise UsageError(_says(error, output)) from error


def check_stdout(output: str | None) -> None:
    """Check that stdout is open, if results go to it.

    Raises:
        UsageError: if the shell has closed it.
    """
    if output is None and sys.stdout is None:
        raise UsageError("stdout is closed: name a file with --output")


def write(text: str, output: str | None = None, instead: str = "name a file with --output") -> None:
    """Write to stdout, or atomically to a file; if the file fails after all the work, to stdout.

    Args:
        instead: what the user can do if stdout cannot be written.

    Raises:
        LostOutputError: if it cannot be written there.
        BrokenPipeError: if nobody reads stdout any more.
    """
    if output is None:
        _print(text, instead)
        return
    try:
        with replacing(Path(output)) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # file names may not be UTF-8
    except OSError as error:
        _print(text, instead)
        raise LostOutputError(f"{_says(error, output)}; the result is on stdout instead") from error


def check_not_read(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Check, before the work, that no output is an input.

    Raises:
        UsageError: naming the first that is.
    """
    try:
        refuse_inputs(outputs, inputs)
    except OSError as error:
        raise UsageError(str(error)) from error


def _print(text: str, instead: str) -> None:
    stream = sys.stdout
    if stream is None:
        raise LostOutputError(f"stdout is closed: {instead}")
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_stdout()
        raise LostOutputError(f"cannot write to stdout: {error}; {instead}") from error


def _says(error: OSError, output: str) -> str:
    return str(error) if isinstance(error, OutputError) else f"cannot write {output!r}: {error}"
