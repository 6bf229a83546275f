"""The promises of docs/security.md name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"


def test_every_promise_names_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for heading in ("Code", "Scores", "Files", "Networks", "Messages, tables, pages"):
        section = text.split(f"### {heading}\n")[1].split("\n#")[0]
        rows = re.findall(r"^\| (?!promise|---)(.+) \| (.+) \|$", section, re.MULTILINE)
        assert rows, heading
        for promise, tests in rows:
            assert re.fullmatch(r"(`tests/[\w/]+\.py::test_\w+`(, )?)+", tests), promise

    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(named) > 40
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert not missing
