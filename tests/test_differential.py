"""The numbers of the earlier version, as benchmarks/differential.py froze them, are those of this version."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from typing import Any

import pytest
from differential import FROZEN, ROOMS, cases_of, difference, differences, judged
from differential_cases import Case, plain


@cache
def frozen(room: str) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((FROZEN / f"{room}.json").read_text(encoding="utf-8"))
    return contents


def parameters() -> list[Any]:
    found = []
    for room in ROOMS:
        for case in cases_of(room):
            if case.new is not None:
                marks = [pytest.mark.slow] if case.slow else []
                found.append(pytest.param(room, case, id=f"{room}/{case.name}", marks=marks))
    return found


@pytest.mark.parametrize(("room", "case"), parameters())
@pytest.mark.filterwarnings("ignore")
def test_numbers_are_those_of_the_earlier_version(room: str, case: Any) -> None:
    missing = [module for module in case.needs if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    results = {name: plain(value) for name, value in case.new().items()}
    found = differences(frozen(room)[case.name], results, case.relative)
    wrong = {name: value for name, value in found.items() if value > case.tolerance}
    shown = {name: (frozen(room)[case.name].get(name), results.get(name)) for name in wrong}
    assert not wrong, shown


@pytest.mark.parametrize("room", ROOMS)
def test_a_case_that_stays_has_numbers_and_one_that_is_gone_a_reason(room: str) -> None:
    cases = cases_of(room)
    assert [case.name for case in cases if case.new is None and not case.gone] == []
    assert list(frozen(room)) == [case.name for case in cases if case.new is not None]


def test_differences_are_seen() -> None:
    assert difference([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert difference([1.0, 2.0], [1.0, 2.5], relative=True) == 0.25
    assert difference(float("nan"), float("nan")) == 0
    unequal = [(1.0, float("nan")), (1, 2), ("a", "b"), ([1.0], [1.0, 1.0]), (None, 0.0), (1.0, "1.0")]
    assert [difference(old, new) for old, new in unequal] == [float("inf")] * 6
    assert differences({"a": 1, "b": 1}, {"a": 1, "c": 1}) == {"a": 0, "b": float("inf"), "c": float("inf")}


def test_only_equal_results_and_features_that_went_for_a_reason_pass() -> None:
    def verdict(old: dict[str, Any], new: dict[str, Any] | None, gone: str = "") -> str:
        return judged(Case("case", dict, dict, 0.1, gone=gone), old, new)[0]

    results = {"results": {"distance": 1.0}}
    assert verdict(results, {"results": {"distance": 1.05}}) == "ok"
    assert verdict(results, {"results": {"distance": 1.2}}) == "FAIL"
    assert verdict(results, {"results": {"distances": 1.0}}) == "FAIL"
    assert verdict(results, {"error": "Traceback"}) == "FAIL"
    assert verdict({"error": "Traceback"}, results) == "FAIL"
    assert verdict(results, None) == "FAIL"
    assert verdict(results, None, gone="nobody used it") == "gone"
