"""One process at a time holds a lock, and none where the file system has no locks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from idmetric.io.lock import locked


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
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none" / ".lock", ValueError("busy")):
        pass
