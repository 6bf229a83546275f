"""One process at a time holds a lock, and none where the file system has no locks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from idmetric.metric.files.lock import locked
from idmetric.metric.files.output import OutputError


def test_a_lock_keeps_others_out_until_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path, ValueError("busy")) as held:
        assert held
        with pytest.raises(ValueError, match="busy"), locked(path, ValueError("busy")):
            pass
    with locked(path, ValueError("busy")) as held:
        assert held


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_nobody_is_kept_out(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path / ".lock", ValueError("busy")) as held:
        assert not held


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    lock = locked(tmp_path / "none" / ".lock", ValueError("busy"))
    with pytest.raises(OutputError, match="its folder is not there"), lock:
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
