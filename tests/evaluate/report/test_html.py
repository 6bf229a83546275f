"""Pages of evaluations, read as files."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric.cli import eval as eval_cli
from idmetric.evaluate.protocols.common.result import Result, Value
from tests.report_parts import make_photos

pytest.importorskip("jinja2")


class Page(HTMLParser):
    """Tags with their attributes and text, scripts apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.words: list[str] = []
        self._raw = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {k: v or "" for k, v in attrs}
        self.tags.append((tag, named))
        self._raw = tag in ("script", "style")
        if tag == "script":
            self.scripts.append((named, ""))

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if self._raw and self.scripts:
            about, text = self.scripts[-1]
            self.scripts[-1] = (about, text + data)
        elif not self._raw:
            self.words.append(data)

    @property
    def visible(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **having: str) -> list[dict[str, str]]:
        return [a for t, a in self.tags if t == tag and all(a.get(k) == v for k, v in having.items())]

    def data(self, name: str) -> Any:
        return json.loads(next(text for about, text in self.scripts if about.get("id") == name))


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of three identities, one with a difficult name."""
    return make_photos(tmp_path_factory.mktemp("eval"), ("mug", "<b>vase<b>", "lamp")).parent


def test_the_numbers_of_an_evaluation_are_those_of_json(album: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    given = ["folder", "--data", str(album / "photos"), "--model", "hsv", "--model", "other=hsv", "--bootstrap", "20"]
    assert eval_cli.main([*given, "--device", "cpu", "--format", "json", "--html", str(album / "new" / "e.html")]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    page = Page((album / "new" / "e.html").read_text(encoding="utf-8"))
    numbers = iter(page.all("td", **{"class": "number"}))
    bounds = iter(page.all("small"))
    for result in found:
        for row in result["rows"]:
            for metric, value in row["metrics"].items():
                cell = next(numbers)
                assert (cell["data-metric"], float(cell["data-value"])) == (metric, value["value"])
                small = next(s for s in bounds if "data-low" in s)
                assert (float(small["data-low"]), float(small["data-high"])) == (value["low"], value["high"])
    assert "Queries by hsv all 9, sorted by the nearest wrong image's similarity" in page.visible
    assert "Pairs by hsv all 36" in page.visible
    pictures = page.data("pictures")
    assert len(pictures) == 9
    assert {img["data-picture"] for img in page.all("img") if "data-picture" in img} == set(pictures)
    plots = [img["src"] for img in page.all("img") if img["alt"].startswith("Plot: ")]
    assert len(plots) == 1
    assert all(src.startswith("data:image/svg+xml;base64,") for src in plots)
    assert "<b>vase<b>" in page.visible
    assert not page.all("b")


def test_an_evaluation_shows_papers_values_and_notes() -> None:
    pytest.importorskip("matplotlib")
    from idmetric.evaluate.report.evaluation import eval_page

    rows: list[dict[str, str | Value]] = [
        {"set": "a", "AUC": Value(0.123456789, 0.1, 0.2, 7, 0.25), "AP": Value(0.5, None, None, 7)}
    ]
    one = Result(
        "nearid", "<i>", rows, {"model": "x"}, {"k": 1}, {"odd": {"margins": [[1.0]], "id": ["z"]}}, ["left <out>"]
    )
    other = Result("nearid", "b", [{"set": "a", "AP": Value(0.25, None, None, 7)}])
    page = Page(eval_page([one, other]))
    assert page.all("td", **{"data-paper": "AUC"})[0]["data-value"] == "0.25"
    assert page.all("td", **{"data-metric": "AUC"})[0]["data-value"] == "0.123456789"
    assert "0.100 – 0.200" in page.visible
    assert "<i>: left <out>" in page.visible
    assert "model=x k=1" in page.visible
    assert not page.all("i")


def test_the_hardest_items_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from idmetric.evaluate.report import evaluation

    rng = np.random.default_rng(0)
    score_, same = rng.random(1000), rng.random(1000) < 0.5
    order, about = evaluation._hardest({"score": score_, "same": same})
    assert len(order) == evaluation.LINES
    own, other = np.array(order)[same[order]].tolist(), np.array(order)[~same[order]].tolist()
    assert order[:4] == [own[0], other[0], own[1], other[1]]
    assert sorted(score_[same])[:100] == score_[own].tolist()
    assert sorted(score_[~same], reverse=True)[:100] == score_[other].tolist()
    assert about == "in turn the least similar of one identity and the most similar of two"
    order, about = evaluation._hardest({"id": ["a", "b", "c"], "mAP": [0.5, None, 0.25]})
    assert (order, about) == ([2, 0, 1], "lowest mAP first")
