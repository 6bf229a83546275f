from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.report import plots
from idmetric.evaluate.report.plots import (
    Scored,
    draw,
    on_front,
    roc,
    trade_off,
)

pytest.importorskip("matplotlib")


@pytest.fixture
def scored() -> Scored:
    """Random pairs, some with equal scores."""
    rng = np.random.default_rng(1)
    same = rng.random(80) < 0.3
    return Scored(rng.normal(same, 1).round(1), same)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_same_numbers_give_the_same_file(ending: str, scored: Scored, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        roc({"a model": scored, "another": Scored(-np.asarray(scored.score), scored.same)}, file)
    if ending == "png":
        shown = [np.asarray(Image.open(file).convert("RGB")) for file in files]
        assert len(np.unique(shown[0].reshape(-1, 3), axis=0)) > 10  # something is drawn
        np.testing.assert_array_equal(*shown)
    else:
        assert files[0].read_text().count("<path") > 20  # something is drawn
        assert files[0].read_text() == files[1].read_text()
        assert files[0].stat().st_size < 400_000


def test_all_plots_that_results_allow_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = {"dataset": ["one", "two"] * 20, "score": rng.normal(size=40), "same": [True, True, False, False] * 10}
    steps = [(i, f, c) for i in ("a", "b", "c") for f in (0.0, 0.5, 1.0) for c in (0.0, 0.5, 1.0)]
    grid = {
        "instance": [i for i, _, _ in steps], "factor": ["light" if f else "none" for _, f, _ in steps],
        "factor_change": [f for _, f, _ in steps], "identity_change": [c for _, _, c in steps],
        "score": [1 - 0.2 * f - 0.5 * c + 0.01 * rng.normal() for _, f, c in steps],
    }  # fmt: skip
    parts = {"score": rng.random(9), "oracle": rng.random(9)}
    slopes = {"identity": Value(0.5, 0.4, 0.6, 3), "context": Value(0.2, None, None, 3)}
    rows = [{"bench": "sensitivity", "which": "light", **slopes}]
    results = [Result("p", m, rows, items={"pairs": pairs, "grid": grid, "parts": parts}) for m in ("x", "y z")]
    written = draw(results, tmp_path, "p", "svg")
    assert {p.name for p in written} == {
        "p.one.roc.svg", "p.two.roc.svg", "p.oracle.svg", "p.sensitivity.svg", "p.trends.svg",
    }  # fmt: skip
    assert all(p.stat().st_size > 1000 for p in written)
    assert draw([Result("p", "x", [])], tmp_path, "none") == []


def test_a_missing_matplotlib_is_named(scored: Scored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"idmetric\[eval\]"):
        roc({"m": scored}, tmp_path / "roc.png")


def test_the_pareto_front_is_that_of_a_loop() -> None:
    x, y = np.random.default_rng(0).integers(0, 6, (2, 40))
    points = list(zip(x, y, strict=True))
    for point, is_on_front in zip(points, on_front(x, y), strict=True):
        no_worse = [other for other in points if other[0] >= point[0] and other[1] >= point[1]]
        better = [other for other in no_worse if other != point]
        assert is_on_front == (not better)


def test_names_of_near_methods_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: drawn.append(figure))
    found = {f"a-method-with-a-name-{k}": (Value(0.5, 0.4, 0.6, 9), Value(0.5, 0.4, 0.6, 9)) for k in range(8)}
    trade_off({"tiny": found, "other": found}, tmp_path / "a.png", ("identity", "diversity"), copying={})
    [figure] = drawn
    figure.savefig(tmp_path / "a.png")
    boxes = [text.get_window_extent() for axes in figure.axes for text in axes.get_legend().get_texts()]
    assert len(boxes) == 16
    for k, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:k])
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_copies_are_left_off_the_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: drawn.append(figure))
    scores = {"copy": (0.9, 0.9), "good": (0.8, 0.5), "blurred": (0.4, 0.1), "varied": (0.5, 0.6)}
    found = {m: (Value(a, None, None, 9), Value(b, None, None, 9)) for m, (a, b) in scores.items()}
    trade_off({"tiny": found}, tmp_path / "a.png", ("identity", "diversity"), copying={"tiny": ["copy"]})
    trade_off({"tiny": {"copy": found["copy"]}}, tmp_path / "a.png", ("x", "y"), copying={"tiny": ["copy"]})
    [front] = [line for line in drawn[0].axes[0].lines if line.get_linestyle() == "--"]
    assert np.c_[front.get_data()].tolist() == [[0.5, 0.6], [0.8, 0.5]]
    assert [line for line in drawn[1].axes[0].lines if line.get_linestyle() == "--"] == []
