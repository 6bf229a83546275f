"""The first screen of pages of generators: what it says in words."""

from __future__ import annotations

from itertools import combinations

import pytest

from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.report.verdict import ModelVerdict, verdict


def number(value: float, spread: float | None = 0.02) -> Value:
    low, high = (None, None) if spread is None else (value - spread, value + spread)
    return Value(value, low, high, 24)


def of(
    identity: dict[str, float],
    copies: dict[str, float] | None = None,
    spread: float | None = 0.02,
    p: float = 0.01,
    subjects: int = 24,
) -> ModelVerdict:
    """The verdict on methods with these identities and shares of copies; differences have this spread and p."""
    rows: list[Row] = [
        {"method": name, "group": "all", "identity": number(value), "same": number(value, None),
         "real": number(0.7), "copies": number((copies or {}).get(name, 0.0)), "diversity": number(0.9 - value)}
        for name, value in identity.items()
    ]  # fmt: skip
    rows += [{"method": name, "group": "subject: dog", "identity": number(0.9)} for name in identity]
    result = Result("generator", "tiny", rows)
    for a, b in combinations(identity, 2):
        apart = number(identity[a] - identity[b], spread)
        result.keep("tests", a=[a], b=[b], metric=["identity"], difference=[apart.value], low=[apart.low],
                    high=[apart.high], p=[p], p_holm=[p], subjects=[subjects], pairs=[24],
                    tests=[len(identity) * (len(identity) - 1) // 2])  # fmt: skip
    found = verdict(result)
    assert found is not None
    return found


def test_the_best_method_is_named_with_its_lead_and_interval() -> None:
    found = of({"far": 0.2, "near": 0.6, "mid": 0.5})
    assert found.headline == "near keeps identity best"
    assert (found.best, found.badge) == (["near"], "best")
    assert found.details == [
        "near reaches 0.600, mid 0.500; on equal prompts and seeds, it leads by 0.100 (95\u00a0% interval 0.080 to "
        "0.120, p = 0.010).",
        "Real photos of the subjects reach 0.700 among themselves.",
    ]
    assert list(found.rows) == ["near", "mid", "far"]
    assert list(found.columns) == ["identity", "same", "copies", "diversity"]


def test_methods_that_the_test_cannot_tell_apart_share_the_first_place() -> None:
    """The interval excludes 0 here, as it does by chance in many small comparisons: the test decides."""
    found = of({"a": 0.60, "b": 0.61, "c": 0.2}, spread=0.005, p=0.06)
    assert found.headline == "No clear winner: b and a, c are too close to call"
    assert (found.best, found.badge) == (["b", "a", "c"], "tied")
    assert found.details[0].endswith("it leads by 0.010 (95\u00a0% interval 0.005 to 0.015, p = 0.060).")


def test_so_few_subjects_show_no_winner_and_the_page_says_how_many_would() -> None:
    found = of({"a": 0.9, "b": 0.1}, spread=0.001, p=0.25, subjects=3)
    assert found.headline == "Too few subjects for a winner: a has the highest identity"
    assert (found.best, found.badge) == (["a"], "highest")
    assert found.details[1] == (
        "No winner can be shown: the smallest p of 3 subjects in 1 comparison is 0.250; 6 subjects would do."
    )


def test_methods_that_were_not_compared_have_no_winner() -> None:
    rows: list[Row] = [
        {"method": name, "group": "all", "identity": number(value)} for name, value in (("a", 0.6), ("b", 0.7))
    ]
    apart = verdict(Result("generator", "tiny", rows))
    assert apart is not None
    assert apart.headline == "No clear winner: b has the highest identity"
    assert apart.badge == "highest"
    assert apart.details == ["b reaches 0.700, a 0.600; the two were not compared on equal prompts and seeds."]
    assert "(no interval, p = 0.010)" in of({"a": 0.6, "b": 0.7}, spread=None).details[0]


def test_a_method_that_copies_is_named_and_never_best() -> None:
    found = of({"copy": 0.9, "near": 0.6, "far": 0.2}, {"copy": 0.75})
    assert found.best == ["near"]
    assert list(found.rows) == ["near", "far", "copy"]
    assert found.details[-1] == (
        "Images that copy references or training images raise the identity of copy (75\u00a0%)."
    )
    rare = of({"50% cfg": 0.6, "near": 0.5}, {"50% cfg": 0.125})
    assert rare.details[-1].endswith("of 50% cfg (12.5\u00a0%).")
    alone = of({"copy": 0.9, "near": 0.6}, {"copy": 0.75})
    assert alone.headline == "near is the only method without copies: its identity is 0.600"
    assert of({"a": 0.9, "b": 0.8}, {"a": 1.0, "b": 0.5}).headline.startswith("Every method copies")


def test_the_highest_identity_leaves_out_methods_that_copy_and_says_so() -> None:
    """The highest identity was .725 next to a method with .812."""
    for p, subjects, start in ((0.25, 3, "Too few subjects for a winner"), (0.01, 24, "")):
        found = of({"copy": 0.812, "near": 0.725, "far": 0.2}, {"copy": 1.0}, p=p, subjects=subjects)
        if start:
            assert found.headline == f"{start}: near has the highest identity of the methods that do not copy"
            assert found.card == "Highest identity without copies"
        else:
            assert found.card == "Best identity without copies"
    assert of({"a": 0.6, "b": 0.7}, subjects=3).card == "Highest identity"
    assert of({"a": 0.6, "b": 0.5}).card == "Best identity"
    assert of({"a": 0.9, "b": 0.8}, {"a": 1.0, "b": 0.5}).card == ""
    tied = of({"copy": 0.9, "a": 0.6, "b": 0.59}, {"copy": 1.0}, p=0.5)
    assert (tied.badge, tied.card) == ("tied", "Highest identity without copies")


def test_a_number_of_a_method_behind_in_identity_is_not_praised() -> None:
    result = Result("generator", "tiny", [
        {"method": name, "group": "all", "identity": number(identity), "diversity": number(diversity)}
        for name, identity, diversity in (("near", 0.8, 0.2), ("wild", 0.3, 0.888))
    ])  # fmt: skip
    for metric, difference in (("identity", 0.5), ("diversity", -0.688)):
        result.keep("tests", a=["near"], b=["wild"], metric=[metric], difference=[difference], low=[None], high=[None],
                    p=[0.01], p_holm=[0.01], subjects=[8], pairs=[24], tests=[1])  # fmt: skip
    found = verdict(result)
    assert found is not None
    assert (found.behind, found.ahead_elsewhere) == (["wild"], ["wild"])
    assert found.family == "Tested: 1 comparison, of near with wild."


def test_differences_hold_in_both_directions() -> None:
    pairs = of({"a": 0.6, "b": 0.61, "c": 0.2}).pairs
    assert list(pairs) == ["identity"]
    for (a, b), value in pairs["identity"].items():
        other = pairs["identity"][b, a]
        assert (other.low, other.high) == (-(value.high or 0), -(value.low or 0))
        assert (other.difference, other.p_holm) == (-value.difference, value.p_holm)
    assert len(pairs["identity"]) == 6


def test_the_range_of_bars_holds_zero_and_all_intervals() -> None:
    assert of({"a": 0.5, "b": -0.25}).columns["identity"] == pytest.approx((-0.27, 0.52))
    assert of({"a": 0.5, "b": 0.25}).columns["identity"] == pytest.approx((0, 0.52))
    assert of({"a": 0.0, "b": 0.0}).columns["same"] == (0, 1)


def test_other_protocols_have_no_verdict() -> None:
    assert verdict(Result("folder", "tiny", [{"dataset": "a", "mAP": number(0.5)}])) is None
