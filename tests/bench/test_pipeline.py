"""benchmarks/pipeline.py: each section runs, and compares with what it says."""

from __future__ import annotations

import pytest

from benchmarks import pipeline


@pytest.mark.parametrize(
    ("section", "base", "commands"),
    [
        ("score", "decode + resize", ["score without copies", "score"]),
        ("generator", "embedding", ["eval generator", "eval generator --html"]),
        pytest.param("dedupe", "embedding by tiny", ["gallery dedupe --model tiny"], marks=pytest.mark.slow),
        ("match", "decode + resize", ["match"]),
    ],
)
def test_each_section_prints_its_commands_over_its_base(
    section: str,
    base: str,
    commands: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests keep theirs
    pipeline.main(["--only", section, "--images", "52", "--size", "64", "48", "--frames", "3", "--repeats", "1"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == [base, *commands]
    assert all(row[2] == base and float(row[3].split()[0]) > 0 for row in rows[1:])
