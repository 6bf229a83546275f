"""The pages of `idmetric eval study build`, in Chromium without a window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idmetric.data.manifest.table import Manifest, Row
from idmetric.protocols.study.study import Study, new_study
from idmetric.protocols.study.votes import collect
from idmetric.report.study import write_pages
from tests.browser_parts import Open, faults_of, overflows
from tests.report_parts import picture

pytest.importorskip("jinja2")

TITLE = "<b>Cups</b> & \"mugs\" <script>alert('title')</script>"


def make(folder: Path, task: Any) -> Study:
    """A study of six questions on two pages, two of them sentinels."""
    folder.mkdir(exist_ok=True)
    rows = []
    for k in range(6):
        for view in range(2):
            name = f"{k}-{view}.png"
            picture(40 * k + view, (60, 40)).save(folder / name)
            rows.append(Row(f"s{k}", name, dataset="d", category=f"c{k % 2}"))
    data = Manifest.from_rows(rows, folder)
    study = new_study(data, task, 4, per_page=2, sentinels=1, side=48, title=TITLE)
    write_pages(study, folder)
    return study


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    return make(folder, "pairs"), folder


@pytest.fixture(scope="module")
def triplets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    folder = tmp_path_factory.mktemp("triplets")
    return make(folder, "triplets"), folder


def shown(page: Any) -> list[str]:
    """The addresses of the images of the question that is to be seen."""
    return list(page.eval_on_selector_all("#shown img", "all => all.map(i => i.src)"))


def sources(page: Any) -> dict[str, list[str]]:
    """Question -> addresses of its images."""
    found = json.loads(page.inner_text("#record") or page.evaluate("document.getElementById('record').textContent"))
    return {q["id"]: [found["pictures"][k] for k in q["images"]] for q in found["questions"]}


def download(page: Any, folder: Path) -> Path:
    with page.expect_download() as waiting:
        page.click("#download")
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_a_page_is_answered_by_keys_resumed_and_downloaded(
    visit: Open,
    pairs: tuple[Study, Path],
    tmp_path: Path,
) -> None:
    study, folder = pairs
    page = visit(folder / "page-1.html")
    assert page.inner_text("h1") == TITLE
    assert page.locator("#ask").is_hidden()
    page.keyboard.press("ArrowLeft")  # nothing is asked yet
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.inner_text("#place").startswith("Question 1 of 3")
    assert page.evaluate("document.activeElement.id") == "place"
    images = sources(page)
    by_images = {frozenset(uris): name for name, uris in images.items()}

    right = {q.id: q.sentinel or ("same" if k % 2 else "different") for k, q in enumerate(study.pages[1])}
    order = []
    for k in range(3):
        if k == 2:  # another tab of the same browser continues here
            page = page.context.new_page()
            page.goto((folder / "page-1.html").as_uri())
            for _ in range(50):  # browser processes share their storage with a delay
                if page.inner_text("#place"):
                    break
                page.wait_for_timeout(100)
                page.reload()
            assert page.inner_text("#place").startswith("Question 3 of 3")
        order.append(by_images[frozenset(shown(page))])
        page.keyboard.press("ArrowLeft" if right[order[-1]] == "same" else "ArrowRight")
    assert sorted(order) == sorted(images)
    assert page.locator("#done").is_visible()
    assert page.locator("#ask").is_hidden()

    file = download(page, tmp_path)
    content = json.loads(file.read_text())
    assert content["answers"] == right
    assert (content["study"], content["page"], content["revision"]) == (study.id, 1, 1)
    assert sorted(content) == ["answers", "page", "participant", "revision", "study"]
    votes = collect([file], study)
    assert not votes.refused
    assert votes.participants == {content["participant"]}

    # back, another answer, and a second download that replaces the first
    page.click("#review")
    assert page.locator('[aria-pressed="true"][data-choice]').get_attribute("data-choice") == right[order[2]]
    page.click("#back")
    page.click("#next")
    chosen = "different" if right[order[2]] == "same" else "same"
    page.click(f"[data-choice={chosen}]")
    second = json.loads(download(page, tmp_path).read_text())
    assert second["answers"] == {**right, order[2]: chosen}
    assert (second["participant"], second["revision"]) == (content["participant"], 2)

    page.click("#another")
    assert page.locator("#intro").is_visible()
    page.click("#start")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert json.loads(download(page, tmp_path).read_text())["participant"] != content["participant"]


@pytest.mark.slow
def test_sides_and_order_differ_between_participants_and_answers_do_not(
    visit: Open,
    triplets: tuple[Study, Path],
    tmp_path: Path,
) -> None:
    _, folder = triplets
    left: dict[str, set[int]] = {}
    orders = set()
    page = visit(folder / "page-1.html")
    images = sources(page)
    for _ in range(6):
        page.click("#start")
        order = []
        for _ in range(3):
            uris = shown(page)
            [name] = [name for name, own in images.items() if set(own) == set(uris)]
            assert uris[0] == images[name][0]  # the reference keeps its place
            order.append(name)
            left.setdefault(name, set()).add(images[name].index(uris[1]))
            # always the question's own left image, on whichever side it is
            page.click("[data-choice=left]" if uris[1] == images[name][1] else "[data-choice=right]")
        orders.add(tuple(order))
        assert set(json.loads(download(page, tmp_path).read_text())["answers"].values()) == {"left"}
        page.click("#another")
    assert len(orders) > 1
    assert any(places == {1, 2} for places in left.values())


def test_answers_that_were_tampered_with_are_begun_again(
    visit: Open,
    pairs: tuple[Study, Path],
) -> None:
    page = visit(pairs[1] / "page-2.html")
    page.click("#start")
    page.keyboard.press("ArrowLeft")
    for broken in ("{", '{"order": ["x"], "answers": {"<b>": 1}}', "null"):
        page.evaluate("text => Object.keys(localStorage).forEach(k => localStorage.setItem(k, text))", broken)
        page.reload()
        assert page.locator("#intro").is_visible()


def test_without_storage_a_page_works_until_it_is_closed(
    visit: Open,
    pairs: tuple[Study, Path],
    tmp_path: Path,
) -> None:
    page = visit(pairs[1] / "page-1.html")
    script = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('blocked'); } })"
    page.context.add_init_script(script)
    page.reload()
    assert page.locator("#lost").is_visible()
    page.click("#start")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert len(json.loads(download(page, tmp_path).read_text())["answers"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "width", "scheme"),
    [("pairs", 390, "dark"), ("pairs", 1440, "light"), ("triplets", 390, "light"), ("triplets", 1440, "dark")],
)
def test_pages_are_accessible_and_fit(
    visit: Open,
    request: pytest.FixtureRequest,
    task: str,
    width: int,
    scheme: str,
) -> None:
    page = visit(request.getfixturevalue(task)[1] / "page-1.html", width, 844, color_scheme=scheme)
    for step in ("#start", "[data-choice]", "[data-choice]", "[data-choice]"):
        assert faults_of(page) == []
        assert not overflows(page)
        page.locator(step).first.click()
    assert page.locator("#done").is_visible()
    assert faults_of(page) == []
