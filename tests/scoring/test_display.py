"""What a notebook shows of a result: a small table with pictures, a plot, and the page as a file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim, score
from idmetric.page import Picture, notebook_table
from idmetric.scoring.records import Records
from idmetric.scoring.scores import Scores

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


@pytest.fixture(scope="module")
def scores(folder: Path) -> Scores:
    images = [str(folder / f"{number}.png") for number in range(14)]
    return score(IDSim("tiny", device="cpu"), images[:2], images[2:], threshold=0.5)


def test_a_notebook_shows_the_first_ten_scores_with_pictures(scores: Scores) -> None:
    html = scores._repr_html_()
    is_small_and_self_contained(html)
    tags = Tags(html)
    assert (tags.count("tr"), tags.count("img")) == (1 + 10, 2 * 10)
    for row in scores.rows[:10]:
        assert f"{row['distance']:.4f}" in tags.text
    assert "10 of 12 rows" in tags.text
    assert f"mean {scores.summary['mean']:.4f} over 12" in tags.text
    assert "IDSim:tiny" in tags.text


def test_names_are_escaped_and_absent_files_have_no_picture() -> None:
    row = {"distance": 0.5, "image": EVIL, "reference": "gone.png", "rank": 1}
    html = Scores([row], tuple(row), {"model": EVIL})._repr_html_()
    is_small_and_self_contained(html)
    assert (Tags(html).count("img"), EVIL in Tags(html).text) == (0, True)
    is_small_and_self_contained(
        notebook_table([EVIL], [[Picture("data:image/png;base64,", EVIL)], [EVIL * 3]], 2, [EVIL])
    )


def test_scores_of_images_in_memory_are_shown_by_their_names(folder: Path) -> None:
    images = [Image.open(folder / f"{number}.png") for number in range(3)]
    html = score(IDSim("tiny", device="cpu"), images[0], images[1:])._repr_html_()
    assert "image[1]" in Tags(html).text
    assert Tags(html).count("img") == 0


def test_a_table_of_records_shows_its_columns() -> None:
    html = Records([{"a": 0.25, "b": None}] * 11, ("a", "b"))._repr_html_()
    assert Tags(html).text.split() == ["a", "b", *["0.2500"] * 10, "10", "of", "11", "rows"]


def test_a_plot_has_the_distances_the_threshold_and_the_real_photos(scores: Scores) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    ax = scores.plot()
    points, *lines = ax.get_lines()
    assert points.get_xdata().tolist() == [row["distance"] for row in scores.rows]
    assert scores.baseline is not None
    assert {line.get_xdata()[0] for line in lines} == {scores.baseline.max, 0.5}
    assert scores.plot(ax) is ax
