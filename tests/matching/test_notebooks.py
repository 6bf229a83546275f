"""What a notebook shows of a match: small tables with pictures, and a plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import idmetric
from idmetric import IDSim
from tests.scoring.test_display import Tags, folder, is_small_and_self_contained

__all__ = ["folder"]


def test_a_match_shows_its_subjects_and_the_worst_images_first(folder: Path) -> None:
    pytest.importorskip("scipy")
    images = [str(folder / f"{number}.png") for number in range(12)]
    found = idmetric.match(IDSim("tiny", device="cpu"), {"zero": images[0], "one": images[1]}, images, threshold=0.5)
    html = found._repr_html_()
    is_small_and_self_contained(html)
    tags = Tags(html)
    assert tags.count("img") == 10
    assert tags.text.split("worst_image")[0].split()[:3] == ["subject", "n", "coverage"]
    assert "10 of 12 rows" in tags.text
    shown = [attributes["title"] for name, attributes in tags.tags if name == "img"]
    worst = found.badness.max(axis=1).argsort(kind="stable")[::-1]
    assert shown[0] == images[worst[0]]
    assert f"missing {found.nearest[worst[0]].max():.4f}" in tags.text
    is_small_and_self_contained(idmetric.consistency(IDSim("tiny", device="cpu"), images)._repr_html_())


def test_a_plot_of_a_match_has_a_line_for_each_subject(folder: Path) -> None:
    pytest.importorskip("scipy")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    images = [str(folder / f"{number}.png") for number in range(3)]
    found = idmetric.match(IDSim("tiny", device="cpu"), {"zero": images[0], "one": images[1]}, images, threshold=0.5)
    lines = found.plot().get_lines()
    for number, line in enumerate(lines[::2]):
        np.testing.assert_array_equal(line.get_ydata(), found.nearest[:, number])
        assert line.get_label() == ("zero", "one")[number]
    assert [line.get_ydata()[0] for line in lines[1::2]] == [0.5, 0.5]
