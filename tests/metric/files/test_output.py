"""Files are replaced atomically: by all of their new content, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.metric.files import replacing


def _write_half(path: Path) -> None:
    path.write_text("half of the n", encoding="utf-8")
    raise RuntimeError("stopped")


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError, match="stopped"), replacing(path) as temporary:
        _write_half(temporary)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]

    with replacing(path) as temporary:
        temporary.write_text("new", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [path]
