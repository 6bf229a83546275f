from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest

from idmetric.metric.files import accept, from_text, shown


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        (None, int | None, None),
        (3, int | None, 3),
        ([1, 2.5], tuple[int, float], (1, 2.5)),
        ([], tuple[str, ...], ()),
        ("a/b", Path, Path("a/b")),
        ("x", Literal["x", "y"], "x"),
        ({"a": 1}, dict[str, Any], {"a": 1}),
        (False, bool, False),
    ],
)
def test_values_that_fit_are_converted(value: Any, hint: Any, expected: Any) -> None:
    found = accept("name", value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "wanted"),
    [
        (True, int, "a whole number"),
        (1.5, int, "a whole number"),
        ("1", float, "a finite number"),
        (float("nan"), float, "a finite number"),
        (10**400, float, "a finite number"),
        ([1.0, float("inf")], tuple[float, ...], "a list of numbers"),
        ([1], tuple[int, int], "a list of 2 numbers"),
        (None, tuple[str, ...], "a list of values"),
        (1, bool, "true or false"),
        (1, str | None, "text or nothing"),
        ("z", Literal["x", "y"], "one of x, y"),
        ([], dict[str, Any], "an object"),
    ],
)
def test_other_values_are_named_with_what_is_needed(value: Any, hint: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"name = {shown(value)}: {wanted} is needed")):
        accept("name", value, hint)


def test_text_of_a_command_line_becomes_a_value_or_stays_text() -> None:
    assert from_text("none", int | None) is None
    assert from_text("none", str) == "none"
    assert from_text(".5", float) == 0.5
    assert from_text("2", Literal[1, 2]) == 2
    assert from_text("true", bool) is True
    assert from_text('{"a": [1]}', dict[str, Any]) == {"a": [1]}
    assert from_text("many", int) == "many"
    assert from_text("{", dict[str, Any]) == "{"
