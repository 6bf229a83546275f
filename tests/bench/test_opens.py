"""benchmarks/opens.py: each command opens each image file once, and what `score` calls for each candidate."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import opens


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, opens.Counts]:
    folder = tmp_path_factory.mktemp("photos")
    opens.write_photos(folder)
    return opens.counts_of(list(opens.COMMANDS), folder)


@pytest.mark.parametrize("name", opens.COMMANDS)
def test_each_command_opens_each_file_once(name: str, counts: dict[str, opens.Counts]) -> None:
    opened = counts[name].opened
    assert len(opened) >= 5  # a reference and four images, at least
    assert set(opened.values()) == {1}


def test_a_candidate_of_score_takes_at_most_130_calls(tmp_path: Path) -> None:
    calls = opens.calls_of_candidate(tmp_path)
    assert calls["metric/images.py: read_image"] == 1
    assert 50 < sum(calls.values()) <= 130
