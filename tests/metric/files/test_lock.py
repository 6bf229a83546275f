"""One process at a time holds a lock."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from idmetric.metric.files import OutputError, locked

_HOLD = """
import sys, time, warnings
from pathlib import Path
from idmetric.metric.files import locked
with locked(Path(sys.argv[1]), SystemExit("busy")):
    print("holds", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def another_process(path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock until a line is written to it."""
    command = [sys.executable, "-W", "ignore", "-c", _HOLD, str(path), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def fails_with(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the file system refuse locks."""

    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)


def test_a_lock_keeps_others_out_until_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path, ValueError("busy")):
        with pytest.raises(ValueError, match="busy"), locked(path, ValueError("busy")):
            pass
        with another_process(path) as other:
            assert other.wait() == 1
            assert other.stderr.read() == "busy\n"
    with locked(path, ValueError("busy")):
        pass


def test_the_lock_of_a_killed_process_is_free_and_its_file_stays(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with another_process(path) as other:
        assert line(other) == "holds\n"
        with pytest.raises(ValueError, match="busy"), locked(path, ValueError("busy")):
            pass
        other.kill()
        other.wait()
    assert path.exists()
    with locked(path, ValueError("busy"), wait=True):
        pass


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(errno.ENOSYS, monkeypatch)
    path = tmp_path / ".lock"
    with pytest.raises(OutputError, match=re.escape(str(path))), locked(path, ValueError("busy")):
        pass


def test_a_lock_that_is_a_link_creates_no_file_where_it_leads(tmp_path: Path) -> None:
    target, text = tmp_path / "authorized_keys", tmp_path / "notes.txt"
    text.write_text("mine")
    for name, leads_to in (("dangling", target), ("file", text)):
        lock = tmp_path / name
        lock.symlink_to(leads_to)
        with pytest.raises(OSError, match="should be a lock file and is a link"), locked(lock, ValueError("busy")):
            pass
    assert not target.exists()
    assert text.read_text() == "mine"


def test_a_pipe_as_a_lock_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    lock = locked(tmp_path / ".lock", ValueError("busy"))
    with pytest.raises(OSError, match=r"\.lock' is a pipe or a device"), lock:
        pass
