"""The examples in docstrings run and print what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "idmetric"


def with_examples() -> list[str]:
    """Modules that contain an example which is not skipped."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if any(">>> " in line and "doctest: +SKIP" not in line and "import idmetric" not in line for line in lines):
            found.append(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", with_examples())
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed


def test_examples_exist() -> None:
    assert len(with_examples()) >= 5
