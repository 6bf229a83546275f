"""Commands that tests run in their own process."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest


class Runner:
    """Runs one command; the words may be of any type, and the first may be several, as typed in a shell.

    Args:
        main: takes the words, returns the exit status. first: words before those of each run.
    """

    def __init__(self, main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], *first: Any) -> None:
        self._main, self._capsys, self._first = main, capsys, first

    def __call__(self, *words: Any) -> int:
        """The exit status."""
        typed = shlex.split(words[0]) + list(words[1:]) if words and isinstance(words[0], str) else words
        try:
            return self._main([str(word) for word in (*self._first, *typed)])
        except SystemExit as stop:
            return int(stop.code or 0)

    def all(self, *words: Any) -> tuple[int, str, str]:
        """The exit status, stdout and stderr."""
        self._capsys.readouterr()
        status = self(*words)
        return status, *self._capsys.readouterr()

    def fails(self, text: str, *words: Any, status: int = 1) -> str:
        """Check the exit status, and that a text is in stderr, which is returned."""
        found, _, err = self.all(*words)
        assert found == status, err
        assert text in err
        return err

    def says(self, text: str, *words: Any, status: int = 1) -> str:
        """Check the exit status, that stdout is empty, and that a text is in stderr, which is returned."""
        found, out, err = self.all(*words)
        assert (found, out) == (status, ""), err
        assert text in err
        return err

    def prints(self, text: str, *words: Any, status: int = 0) -> str:
        """Check the exit status, and that a text is in stdout, which is returned."""
        found, out, err = self.all(*words)
        assert found == status, err
        assert text in out
        return out
