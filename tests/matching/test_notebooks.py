"""What a notebook shows of a match: small tables with pictures, and a plot."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idmetric
from idmetric import IDSim
from idmetric.page import Picture, notebook_table
from idmetric.scoring.scores import Records

EVIL = "<script>alert(1)</script>&\"'.png"


class Tags(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"

    def count(self, tag: str) -> int:
        return [name for name, _ in self.tags].count(tag)


def is_small_and_self_contained(html: str) -> None:
    """No script, no address, no color of text or background that a dark notebook would not have."""
    tags = Tags(html)
    assert {name for name, _ in tags.tags} <= {"div", "table", "thead", "tbody", "tr", "th", "td", "img", "span"}
    for name, attributes in tags.tags:
        assert set(attributes) <= {"style", "src", "alt", "title"}
        assert not re.search(
            r"url\(|(?<!-)color:\s*(?!inherit)|background:(?!transparent)", attributes.get("style") or ""
        )
        if name == "img":
            assert (attributes["src"] or "").startswith("data:image/")
    assert len(html) < 120_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    pixels = np.random.default_rng(0).integers(0, 256, (14, 6, 6, 3), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).resize((120, 90)).save(folder / f"{number}.png")
    return folder


def test_names_are_escaped() -> None:
    is_small_and_self_contained(
        notebook_table([EVIL], [[Picture("data:image/png;base64,", EVIL)], [EVIL * 3]], 2, [EVIL])
    )


def test_a_table_of_records_shows_its_columns() -> None:
    html = Records([{"a": 0.25, "b": None}] * 11, ("a", "b"))._repr_html_()
    assert Tags(html).text.split() == ["a", "b", *["0.2500"] * 10, "10", "of", "11", "rows"]


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
