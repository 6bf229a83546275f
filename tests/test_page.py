"""The page of every command: escaped, self-contained, and used in Chromium without a window."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.metric.files import OutputError
from idmetric.page import (
    Group,
    Page,
    PageTable,
    Picture,
    Plot,
    axis_of,
    check_page,
    jpeg_of,
    render,
    room,
    short,
    thumbnail,
    write_page,
)
from tests.browser_parts import Open, browser, faults_of, overflows, visit

__all__ = ["browser", "visit"]

pytest.importorskip("jinja2")

EVIL = "<script>alert(1)</script>&\"'</title>{{ 7 * 7 }}<img src=x onerror=alert(2)>"
THRESHOLD = 0.30
DRAWN = """async () => { const all = [...document.querySelectorAll("img")];
    for (const img of all) { img.loading = "eager"; await img.decode(); }
    return all.filter(img => img.naturalWidth > 0).length }"""


def photo(seed: int, size: tuple[int, int] = (60, 40)) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def example(name: str = "mug", threshold: float | None = THRESHOLD) -> Page:
    """A page with every part that a page can have, under this name everywhere."""
    reference = Picture(thumbnail(photo(0), 2_000), f"{name} reference", 0.21, lines=[name], path=name)
    cards = [Picture(thumbnail(photo(9), 2_000), f"{name} copy", 0.05, "copy", "unsure", beside=reference)]
    for number in range(6):
        distance = round(0.1 * (number + 1), 1)
        card = Picture(thumbnail(photo(1 + number), 2_000), f"{name} {number}", distance, path=name, beside=reference)
        if threshold is not None:
            passes = distance <= threshold
            verdict = ("pass", "good") if passes else ("fail", "bad")
            card = Picture(card.uri, card.name, distance, *verdict, judged=True, beside=reference)  # type: ignore[arg-type]
        cards.append(card)
    return Page(
        title=name,
        facts={"model": name, name: "x"},
        warnings=[f"{name} is a copy"],
        tables=[PageTable(name, ("", "images", name), [(name, 7, 0.25), ("none", None, None)])],
        plots=[Plot(name, name, cards, name, {f"{name} a": 0.2, f"{name} b": 0.4}, note=name)],
        threshold=threshold,
        threshold_source=name,
        groups=[
            Group(name, [reference], note=name, small=True),
            Group("Images", cards),
            Group("Left out", [Picture("", name, lines=[name])]),
        ],
        notes=[name],
    )


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)
        elif self.cdata_elem != "style":
            self.words.append(data)

    @property
    def visible(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


# As a file


def test_markup_in_every_name_is_text() -> None:
    evil, plain = render(example(EVIL)), render(example())
    tags = Tags(evil)
    assert [tag for tag, _ in tags.tags if tag != "wbr"] == [tag for tag, _ in Tags(plain).tags if tag != "wbr"]
    assert not [attributes for _, attributes in tags.tags if any(name.startswith("on") for name in attributes)]
    assert tags.scripts == Tags(plain).scripts
    assert "alert" not in tags.scripts[0]
    for part in (f"{EVIL} is a copy", f"{EVIL} 3", f"{EVIL} reference"):
        assert part in tags.visible
    assert any(attributes["alt"] == f"{EVIL} copy" for attributes in tags.all("img"))


def test_the_policy_runs_the_one_script_and_loads_nothing() -> None:
    text = render(example())
    tags = Tags(text)
    [script] = tags.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = [meta["content"] for meta in tags.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    assert f"'sha256-{digest}'" in policy
    for tag, attributes in tags.tags:
        for name in ("src", "href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert set(re.findall(r"url\((.{11})", text)) == {"data:image/"}
    assert "@import" not in text


def test_a_picture_beside_many_is_in_the_page_once_more() -> None:
    page = example()
    uri = page.groups[0].pictures[0].uri
    assert render(page).count(uri) == 2  # among the references, and in the style
    assert render(page) == render(page)


def test_pages_that_cannot_be_written_are_refused_and_bytes_that_are_no_text_become_marks(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent" / "page.html"):
        with pytest.raises(OutputError, match=re.escape(str(place))):
            check_page(place)
    write_page(render(Page("strange-\udcff.png")), tmp_path / "page.html")
    assert "strange-?.png" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("size", "limit"), [((800, 600), 60_000), ((1200, 600), 12_000), ((5000, 3), 100)])
def test_thumbnails_keep_to_their_bytes_and_show_as_much_as_fits(size: tuple[int, int], limit: int) -> None:
    noise = np.random.default_rng(0).integers(-90, 90, (*size[::-1], 3))
    noisy = Image.fromarray((np.asarray(photo(0, size), np.int64) + noise).clip(0, 255).astype(np.uint8))
    head, data = thumbnail(noisy, limit).split(",", 1)
    content = base64.b64decode(data)
    side = max(Image.open(io.BytesIO(content)).size)
    assert head == "data:image/jpeg;base64"
    assert len(content) <= limit or side <= 48
    assert side >= min(48, max(size))
    assert len(content) > limit / 3 or side <= 48


def test_small_pictures_stay_and_a_page_of_many_stays_small() -> None:
    assert Image.open(io.BytesIO(base64.b64decode(thumbnail(photo(0), room(1)).split(",")[1]))).size == (60, 40)
    assert jpeg_of(photo(0)).startswith(b"\xff\xd8")
    assert room(1) == 60_000
    assert 2_000 * room(2_000) * 4 / 3 < 25e6


@pytest.mark.parametrize("values", [[0.0, 0.71], [0.0, 1e-9], [0.0, 13.2], [-0.2, 0.3], [0.0, 0.0]])
def test_an_axis_holds_its_values_between_round_ends(values: list[float]) -> None:
    axis = axis_of(values)
    assert axis.low <= min(values) <= max(values) <= axis.high
    assert (axis.ticks[0][0], axis.ticks[-1][0]) == (0, 100)
    assert 2 <= len(axis.ticks) <= 7
    assert axis_of(values, 1e6).high == axis.high  # a threshold far away does not squeeze the others
    assert axis_of([0.0, 0.71], 1.2).high >= 1.2


def test_folders_that_all_paths_share_are_left_out() -> None:
    assert short(["a/b/c.png", "a/b/d/e.png"]) == ["c.png", str(Path("d") / "e.png")]
    assert short(["c.png", "/d.png"]) == ["c.png", "/d.png"]
    assert short([]) == []


# In a browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    pages = {"plain": example(), "evil": example(EVIL), "open": example(threshold=None)}
    paths = {}
    for name, page in pages.items():
        paths[name] = root / f"{name}.html"
        write_page(render(page), paths[name])
    return paths


def test_the_threshold_judges_cards_and_dots_by_slider_field_and_button(visit: Open, files: dict[str, Path]) -> None:
    page = visit(files["plain"])

    def check(threshold: float, passes: int, source: str = "") -> None:
        assert page.inner_text("#count") == f"{passes} of 6 pass at {threshold:.4f}{source}"
        verdicts = page.locator("[data-value] .verdict").all_inner_texts()
        assert verdicts == ["pass"] * passes + ["fail"] * (6 - passes)
        assert page.locator("circle.good").count() == page.locator("li.good").count() == passes
        assert page.locator(".card.unsure .verdict").all_inner_texts() == ["copy"]

    check(THRESHOLD, 3, " (mug)")  # equal passes
    slider = page.locator("#slider")
    slider.focus()
    page.keyboard.press("Home")
    check(0.0, 0)
    page.keyboard.press("End")
    check(float(slider.get_attribute("max")), 6)
    page.fill("#threshold", "0.5")
    check(0.5, 5)
    page.focus("#start")
    page.keyboard.press("Enter")
    check(THRESHOLD, 3, " (mug)")
    cut, dot = page.locator(".cut").bounding_box(), page.locator("circle.good").last.bounding_box()
    assert cut["x"] + cut["width"] / 2 == pytest.approx(dot["x"] + dot["width"] / 2, abs=1.5)


@pytest.mark.parametrize("scripts", [False, True])
def test_without_a_threshold_there_is_no_slider_and_no_verdict(
    visit: Open, files: dict[str, Path], scripts: bool
) -> None:
    page = visit(files["open"], java_script_enabled=scripts)
    assert page.locator("#slider").count() == page.locator("[data-value]").count() == 0
    assert page.locator(".verdict").all_inner_texts() == ["copy"]


def test_without_a_script_everything_can_be_read(visit: Open, files: dict[str, Path]) -> None:
    page = visit(files["plain"], java_script_enabled=False)
    assert page.locator("#slider").is_hidden()
    assert page.locator("[data-value] .verdict").all_inner_texts() == ["pass"] * 3 + ["fail"] * 3
    assert "0.3000" in page.inner_text("#p2-4")


def test_a_card_is_enlarged_next_to_its_reference_by_the_keyboard(visit: Open, files: dict[str, Path]) -> None:
    page = visit(files["plain"], java_script_enabled=False)
    card = page.locator("#p2-2")
    card.locator("a.frame").focus()
    page.keyboard.press("Enter")
    frame, beside = card.locator("img").bounding_box(), card.locator(".beside").bounding_box()
    assert frame["width"] > 400
    assert beside["width"] == pytest.approx(frame["width"], abs=2)
    assert beside["x"] >= frame["x"] + frame["width"]
    card.locator(".close").press("Enter")
    assert card.locator("img").bounding_box()["width"] < 400


@pytest.mark.parametrize("width", [390, 820, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_are_accessible_in_both_schemes(
    visit: Open, files: dict[str, Path], width: int, scheme: str
) -> None:
    for name in ("plain", "evil"):
        page = visit(files[name], width, 900, color_scheme=scheme)
        assert not overflows(page)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, back[4:-1].split(","))) < 200) == (scheme == "dark")
        assert page.evaluate(DRAWN) == 8
        if name == "plain":
            assert faults_of(page) == []
