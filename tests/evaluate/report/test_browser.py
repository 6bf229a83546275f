"""Pages as people use them: in Chromium, without a window."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.cli import eval as eval_cli
from idmetric.evaluate.protocols.common.protocol import column_of
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from tests.browser_parts import Open, faults_of, overflows
from tests.report_parts import make_photos

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    root = tmp_path_factory.mktemp("evaluation")
    photos = make_photos(root, ("mug", "vase", "lamp"))
    given = ["folder", "--data", str(photos), "--model", "hsv", "--model", "tiny", "--bootstrap", "20"]
    assert eval_cli.main([*given, "--device", "cpu", "--html", str(root / "page.html")]) == 0
    return root / "page.html"


SUBJECTS = ("mug", "vase", "lamp")


def detailed(seed: int) -> Image.Image:
    """A picture in which copies are found."""
    small = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8) // (1 + seed % 3)
    return Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three methods and two models: near mixes references in, far shows others, repeat copies."""
    pytest.importorskip("matplotlib")
    root = tmp_path_factory.mktemp("generators")

    def save(picture: Image.Image, *parts: str) -> None:
        path = root.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)

    for s, subject in enumerate(SUBJECTS):
        for k in range(2):
            reference = detailed(10 * s + k)
            save(reference, "references", subject, f"{k}.png")
            other = detailed(100 + 10 * s + 5 * k)
            save(Image.blend(other, reference, 0.4), "out", "near", subject, f"on_a_desk_{k}.png")
            save(other, "out", "far", subject, f"on_a_desk_{k}.png")
            save(reference.resize((90, 90)), "out", "repeat", subject, f"on_a_desk_{k}.png")
    save(detailed(0), "training", "mug", "0.png")  # a reference
    save(detailed(300), "training", "vase", "0.png")
    given = ["generator", "--data", str(root / "out"), "--pattern", "{method}/{subject}/{prompt}_{seed}.png"]
    given += ["--references", str(root / "references"), "--training", str(root / "training"), "--threshold", "0.5"]
    given += ["--device", "cpu", "--bootstrap", "20", "--model", "hsv", "--model", "tiny"]
    assert eval_cli.main([*given, "--html", str(root / "page.html")]) == 0
    return root / "page.html"


@pytest.fixture(scope="module")
def close(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page without images, of nine methods with long names and almost the same numbers."""
    pytest.importorskip("matplotlib")
    from idmetric.evaluate.report.evaluation import eval_page

    rows: list[Row] = [
        {"method": f"a-method-with-a-name-{k}", "group": "all",
         **{name: Value(0.6 + 0.01 * k * sign, 0.5, 0.8, 40) for name, sign in METRICS.items()}}
        for k in range(9)
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("close") / "page.html"
    path.write_text(eval_page([Result("generator", "tiny", rows)]), encoding="utf-8")
    return path


METRICS = {"identity": 1, "same": 1, "real": 0, "copies": -1, "diversity": -1, "CLIP-T": 1}


DRAWN = """async () => { const all = [...document.querySelectorAll('main img')];
    for (const img of all) { img.loading = 'eager'; await img.decode(); }
    return all.every(img => img.naturalWidth > 0) ? all.length : 0 }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_button(visit: Open, evaluation: Path, scheme: str) -> None:
    page = visit(evaluation, color_scheme=scheme)
    back = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(back)
    assert (sum(map(int, first[4:-1].split(","))) < 200) == (scheme == "dark")
    for _ in range(2):
        page.click("#theme")
        assert page.evaluate(back) != first
        first = page.evaluate(back)


def test_an_evaluation_sorts_by_its_headings(visit: Open, evaluation: Path) -> None:
    page = visit(evaluation)
    values = "rows => rows.map(r => Number(r.cells[2].dataset.value))"
    for expected in (True, False):
        page.click("#results th:nth-child(3) button")
        found = page.eval_on_selector_all("#results tbody tr", values)
        assert found == sorted(found, reverse=expected)
        assert page.get_attribute("#results th:nth-child(3)", "aria-sort") == (
            "descending" if expected else "ascending"
        )
    page.click("#results th:nth-child(1) button")
    assert page.locator("#results tbody th").all_inner_texts() == ["hsv", "tiny"]
    # plots; of two models 9 queries with 4 images each, and 36 pairs
    assert page.evaluate(DRAWN) == 1 + 2 * (9 * 5 + 2 * 36)


def test_an_evaluation_shows_a_model_at_a_time_and_folds_long_lists(visit: Open, evaluation: Path) -> None:
    page = visit(evaluation)
    for model in ("tiny", "hsv"):
        page.select_option("#model", model)
        sections = page.locator("section[data-model]:visible")
        assert sections.count() == 2
        assert {sections.nth(k).get_attribute("data-model") for k in range(2)} == {model}
    pairs = page.locator("section[data-model=hsv]").nth(1)
    rows, button = pairs.locator("tbody tr:visible"), pairs.locator("button.more")
    assert (rows.count(), button.inner_text()) == (20, "Show all 36")
    pairs.locator("th button", has_text="score").click()
    scores = [float(text) for text in rows.locator("td.number").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 20  # the others stay folded
    button.focus()
    page.keyboard.press("Enter")
    assert rows.count() == 36
    assert button.get_attribute("aria-expanded") == "true"
    button.click()
    assert rows.count() == 20


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_says_which_method_is_best(visit: Open, generators: Path, width: int, height: int) -> None:
    page = visit(generators, width, height)
    page.select_option("#model", "tiny")
    [verdict] = page.locator(".verdict:visible").all()
    assert (
        verdict.locator("h2")
        .inner_text()
        .startswith("Too few subjects for a winner: near has the highest identity of the methods that do not copy")
    )
    words = verdict.inner_text()
    assert "3 subjects in 1 comparison is 0.250; 6 subjects would do" in words
    for part in ("95\u00a0% interval", "raise the identity of repeat (100\u00a0%)"):
        assert part in words
    assert re.search(r"Highest identity without copies\n0\.\d{3}", words)
    warnings = page.locator(".warnings")
    assert "trained on 1 of 6 references" in warnings.inner_text()
    for part in (verdict, warnings):
        box = part.bounding_box()
        assert 0 <= box["y"] < height
    order = [page.locator(f"{part}:visible").first.bounding_box()["y"] for part in
             (".verdict", ".warnings", "#choose", ".scenes", ".cards", ".matrix", ".items")]  # fmt: skip
    assert order == sorted(order)
    if width > 1000:
        assert page.locator(".bars:visible").bounding_box()["y"] < height
    text = page.inner_text("body")
    for stale in ("lowest lowest", "Small print", "where they were asked for"):
        assert stale not in text
    assert not overflows(page)


def test_the_summary_has_all_numbers_as_bars_and_sorts(visit: Open, close: Path) -> None:
    page = visit(close, 1440, 900)
    heads = [text.split("\n")[0] for text in page.locator(".bars thead th").all_inner_texts()]
    assert heads == ["method", "identity", "same", "copies", "diversity", "CLIP-T"]
    for name in heads[1:]:
        about = str(column_of(name, "generator"))
        button = page.locator(".bars thead button", has_text=re.compile(f"^{name}$"))
        assert button.get_attribute("title") == about
        assert about in page.locator("#legend dd").all_text_contents()
    page.locator(".bars thead button", has_text="copies").click()
    values = page.eval_on_selector_all(".bars tbody tr", "rows => rows.map(r => Number(r.cells[3].dataset.value))")
    assert values == sorted(values, reverse=True)
    cell = page.locator(".bars tbody td").first
    bar, line = (cell.locator(part).bounding_box() for part in (".bar > span", ".bar > i"))
    assert line["x"] < bar["x"] + bar["width"] < line["x"] + line["width"]


@pytest.mark.parametrize("width", [390, 1024, 1280, 1440])
def test_the_summary_fits_its_card(visit: Open, close: Path, generators: Path, width: int) -> None:
    for path in (close, generators):
        page = visit(path, width, 900)
        card = page.locator(".even .scroll").first
        assert card.evaluate("card => card.scrollWidth <= card.clientWidth")
        box = card.bounding_box()
        for cell in card.locator("tbody td").all():
            edges = cell.bounding_box()
            assert box["x"] <= edges["x"]
            assert edges["x"] + edges["width"] <= box["x"] + box["width"] + 0.5
        heads = [cell.get_attribute("data-head") for cell in card.locator("tbody tr").first.locator("td").all()]
        assert {"same", "copies", "diversity"} <= set(heads)
        assert not overflows(page)


def test_one_image_of_each_subject_comes_first(visit: Open, generators: Path) -> None:
    """Worst images and scenes: the lowest of each subject, also of one method."""
    page = visit(generators)
    page.select_option("#model", "hsv")
    cards = page.locator(".card:visible")
    for method in ("", "near"):
        page.select_option("#method", method)
        captions = [card.locator(".name").inner_text() for card in cards.all()]
        assert {caption.split(",")[0] for caption in captions[:3]} == set(SUBJECTS)
        numbers = [float(text.replace("−", "-")) for text in cards.locator(".distance").all_inner_texts()]
        lowest = {}
        for caption, number in zip(captions, numbers, strict=True):
            subject = caption.split(",")[0]
            lowest[subject] = min(number, lowest.get(subject, 1.0))
        assert numbers[:3] == sorted(lowest.values())
    titles = page.locator(".scenes:visible > li:visible h3").all_inner_texts()
    assert {title.split(",")[0] for title in titles[:3]} == set(SUBJECTS)


def test_side_by_side_marks_copies_and_shows_what_they_repeat(visit: Open, generators: Path) -> None:
    page = visit(generators)
    page.select_option("#model", "tiny")
    scenes = page.locator(".scenes:visible > li:visible")
    assert scenes.count() == 6
    for scene in scenes.all():
        subject, _, seed = scene.locator("h3").inner_text().split(", ")
        names = [text.split()[0] for text in scene.locator("figcaption").all_inner_texts()]
        assert names == ["Reference", "near", "far", "repeat"]  # each under its picture, whatever is scrolled
        copy = scene.locator("figure[data-method=repeat]")
        assert copy.locator(".badge").inner_text() == "copy"
        inset = copy.locator(".inset")
        assert inset.get_attribute("alt").endswith(f"references/{subject}/{seed.removeprefix('seed ')}.png")
        assert inset.evaluate("img => img.naturalWidth") > 0
        assert scene.locator("figure:not([data-method=repeat]) .badge").count() == 0


def test_images_are_filtered_by_method_and_text(visit: Open, generators: Path) -> None:
    page = visit(generators)
    page.select_option("#model", "tiny")
    cards = page.locator(".card:visible")
    numbers = [float(text.replace("−", "-")) for text in cards.locator(".distance").all_inner_texts()]
    assert len(numbers) == 18
    page.select_option("#method", "near")
    assert cards.count() == 6
    assert {text.split("\n")[1] for text in cards.all_inner_texts()} == {"near"}
    assert page.locator(".items:visible tbody tr:visible").count() == 3
    page.fill("#filter", "VASE")
    assert cards.count() == 2
    assert page.locator(".scenes:visible > li:visible").count() == 2
    page.select_option("#method", "")
    assert cards.count() == 6
    assert page.evaluate(DRAWN) > 0
    assert not overflows(visit(generators, 390, 844))


def test_a_phone_shows_every_number_of_the_summary_with_its_name(visit: Open, generators: Path) -> None:
    page = visit(generators, 390, 844)
    page.select_option("#model", "tiny")
    table = page.locator(".bars:visible")
    names = ["identity", "same", "copies", "diversity"]
    assert [cell.get_attribute("data-head") for cell in table.locator("tbody tr").first.locator("td").all()] == names
    for cell in table.locator("td").all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        shown = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert shown == f'"{cell.get_attribute("data-head")}"'


def test_a_full_bar_of_copies_does_not_look_like_success(visit: Open, generators: Path) -> None:
    page = visit(generators)
    colors = {
        name: page.locator(f".bars:visible td[data-head='{name}'] .bar > span").first.evaluate(
            "bar => getComputedStyle(bar).backgroundColor"
        )
        for name in ("identity", "copies")
    }
    assert colors["copies"] != colors["identity"]


def test_pairs_are_a_matrix_of_signs(visit: Open, generators: Path) -> None:
    page = visit(generators)
    page.select_option("#model", "tiny")
    section = page.locator("section:visible", has_text="Pairs of methods")
    family = "Tested: 1 comparison, of near with far; not tested, because of copies: repeat."
    assert family in re.sub(r"of far with near", "of near with far", section.inner_text())
    matrix = section.locator(".matrix").first
    assert matrix.locator("th").all_inner_texts() == ["identity", "near", "far", "near", "far"]
    rows = [row.locator("td").all_inner_texts() for row in matrix.locator("tbody tr").all()]
    assert [[text[:1] for text in row] for row in rows] == [["", "≈"], ["≈", ""]]
    assert rows[0][1].replace("+", "−") == rows[1][0]  # a difference has its sign in both directions
    assert "near less far: 0." in matrix.locator("td").nth(1).get_attribute("title")


def test_a_long_list_shows_its_rest_on_demand(visit: Open, generators: Path) -> None:
    page = visit(generators)
    page.select_option("#model", "tiny")
    rows, button = page.locator(".items:visible tbody tr:visible"), page.locator(".more:visible")
    assert (rows.count(), button.all_inner_texts()) == (6, ["Show all 9"])
    button.click()
    assert (rows.count(), button.inner_text()) == (9, "Show the first 6")
    page.select_option("#method", "far")
    assert (rows.count(), button.count()) == (3, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["evaluation", "generators"])
def test_pages_are_accessible(visit: Open, evaluation: Path, generators: Path, which: str, scheme: str) -> None:
    paths = {"evaluation": evaluation, "generators": generators}
    page = visit(paths[which], 1440 if scheme == "light" else 390, color_scheme=scheme)
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    assert faults_of(page) == []
