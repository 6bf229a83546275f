"""The page of `match`: order, words, numbers, boxes, limits, names of strangers; and in a browser.

IDMETRIC_SCREENSHOTS=docs/images pytest tests/matching/test_page.py -k screenshot   # renews the docs' picture
"""

from __future__ import annotations

import html
import io
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim
from idmetric.matching import Match, Region, Subject, match
from idmetric.matching.page import subjects as page_of_subjects
from idmetric.stream.subjects import embed_subject
from tests.browser_parts import Open, faults_of, overflows
from tests.matching.scenes import ANN, REX, SIDE, STRANGER, references, scene

pytest.importorskip("jinja2")
SCENES = [(ANN, REX), (ANN, ANN), (ANN, STRANGER), (ANN, REX, STRANGER)]
HOSTILE = "<img src=x onerror=alert(1)>"
CLIP = 40  # frames; the subject rex is replaced in one of them
REPLACED = 26


@pytest.fixture(scope="module")
def roster() -> tuple[IDSim, list[Subject]]:
    metric = IDSim("tiny", device="cpu")
    return metric, [embed_subject(metric, references(badge), name=name) for name, badge in (("ann", ANN), ("rex", REX))]


@pytest.fixture(scope="module")
def stills(roster: tuple[IDSim, list[Subject]], tmp_path_factory: pytest.TempPathFactory) -> Match:
    folder = tmp_path_factory.mktemp("stills")
    paths, boxes = [], []
    for number, badges in enumerate(SCENES):
        picture, scene_boxes = scene(badges, number)
        path = folder / f"{number} {HOSTILE[:10]}&.png"
        picture.save(path)
        paths.append(str(path))
        boxes.append(scene_boxes)
    return match(*roster, paths, regions=boxes, threshold=0.25)


@pytest.fixture(scope="module")
def clip(roster: tuple[IDSim, list[Subject]]) -> Match:
    """A clip of two subjects, without regions in frame 12."""
    frames, boxes = [], []
    for number in range(CLIP):
        picture, frame_boxes = scene((ANN, STRANGER) if number == REPLACED else (ANN, REX), number)
        frames.append(picture)
        boxes.append([] if number == 12 else frame_boxes)
    result = match(*roster, frames, regions=boxes, threshold=0.25)
    table = replace(
        result.table,
        times=tuple(f"walk.mp4 @ {number}" for number in range(CLIP)),
        clips=("walk.mp4",) * CLIP,
        seconds=tuple(number / 8 for number in range(CLIP)),
    )
    return replace(result, table=table)


def cards_of(text: str) -> dict[int, str]:
    """The HTML of each image, by its number, in the order of the page."""
    parts = re.split(r'<li class="panel image" id="t(\d+)">', text)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def plain(markup: str) -> str:
    """The text of some HTML."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", markup.replace("<wbr>", ""))).split())


def test_images_are_sorted_by_their_worst_subject_the_missing_before_all(stills: Match) -> None:
    def badness(time: int) -> tuple[bool, float]:
        missing = [
            stills.nearest[time, number] for number, state in enumerate(stills.states[time]) if state == "missing"
        ]
        return bool(missing), max(missing or stills.nearest[time])

    expected = sorted(range(len(SCENES)), key=badness, reverse=True)
    order = list(cards_of(stills.to_html()))
    assert order == expected
    assert stills.table.times[order[0]] == stills.worst["image"]


def test_states_are_in_words_and_numbers_are_those_of_the_table(stills: Match) -> None:
    cards = cards_of(stills.to_html())
    for time, card in cards.items():
        text = plain(card)
        ann, rex = stills.nearest[time]
        words = {"matched": "matched at", "doubled": "doubled; its region at", "missing": "missing; nearest region at"}
        for name, state, distance in zip(("ann", "rex"), stills.states[time], (ann, rex), strict=True):
            assert f"{name} : {words[state]} {distance:.4f}" in text
        cells = [plain(cell) for cell in re.findall("<td.*?</td>", card)]
        count = len(stills.table.regions[time])
        assert cells == [f"{distance:.4f}" for distance in stills.by_region[time, :, :count].ravel()]
    assert plain(cards[3]).count("surplus") == 1
    assert "1 also ann" in plain(cards[1])


def test_the_summary_has_coverage_mean_and_worst_of_each_subject(stills: Match) -> None:
    text = stills.to_html()
    rows = re.findall("<tr.*?</tr>", text[: text.index("</table>")], re.DOTALL)[1:]
    assert len(rows) == 3
    for row, record in zip(rows, stills.summary, strict=True):
        values = [f"{record[key]:.4f}" for key in ("coverage", "mean", "worst")]
        assert plain(row).startswith(" ".join([record["subject"], *values]))
    assert f"Worst: rex in {Path(stills.worst['image']).name}" in plain(text)


def test_the_nearest_cell_has_the_strongest_color(stills: Match) -> None:
    colors, numbers = [], []
    for cell, number in re.findall(r'style="--near:(\d+)%">([\d.]+)</td>', stills.to_html()):
        colors.append(int(cell))
        numbers.append(float(number))
    by_number = np.array(colors)[np.argsort(numbers)]
    assert (np.diff(by_number) <= 0).all()
    assert by_number[0] > by_number[-1] == 0


def test_boxes_lie_where_regions_do(roster: tuple[IDSim, list[Subject]]) -> None:
    picture, _ = scene((ANN, REX))
    mask = Image.new("L", picture.size)
    mask.paste(255, (SIDE, 0, 2 * SIDE, SIDE // 2))
    result = match(*roster, picture, regions=[[(0, 0.25, 0.5, 1), mask]], cut=None, threshold=0.25)
    boxes = re.findall(r'style="left:([\d.]+)%;top:([\d.]+)%;width:([\d.]+)%;height:([\d.]+)%;"', result.to_html())
    assert [tuple(map(float, box)) for box in boxes] == [(0, 25, 50, 75), (50, 0, 50, 50)]


def test_both_boxes_of_a_doubled_subject_have_its_color(roster: tuple[IDSim, list[Subject]]) -> None:
    metric, (ann, rex) = roster
    picture, boxes = scene((ANN, ANN))
    result = match(metric, [rex, ann], picture, regions=boxes, threshold=1.5)  # all is within it
    assert result.states == [["missing", "doubled"]]
    assert re.findall(r'<div class="box (\w+)', result.to_html()) == ["s1", "s1"]


def test_names_of_strangers_are_text(stills: Match) -> None:
    table = replace(
        stills.table,
        times=tuple(f"{number}{HOSTILE}" for number in range(len(SCENES))),
        subjects=("ann", HOSTILE),
    )
    hostile = replace(stills, table=table, skipped={HOSTILE: HOSTILE}, signature={**stills.signature, "cut": HOSTILE})
    text = hostile.to_html()
    assert "<img src=x" not in text
    assert text.count(html.escape(HOSTILE)) >= 5  # image, subject, reason, signature
    assert html.escape(f"{HOSTILE} in 0{HOSTILE}: matched at ") in matrix_of(text)


def test_a_page_of_skipped_images_alone_lists_the_first_hundred(roster: tuple[IDSim, list[Subject]]) -> None:
    paths = [f"absent/{number}.png" for number in range(130)]
    empty = match(*roster, paths, on_error="skip")
    text = plain(empty.to_html())
    assert "No images" in text
    assert "absent/99.png: " in text
    assert "absent/100.png" not in text
    assert "and 30 more" in text


def test_a_page_of_many_images_says_how_many_it_leaves_out(stills: Match, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_of_subjects, "IMAGES", 2)
    monkeypatch.setattr(page_of_subjects, "OPEN", 1)
    monkeypatch.setattr(page_of_subjects, "REGIONS", 2)
    text = stills.to_html()
    assert len(cards_of(text)) == 2
    assert "2 of 4; the other 2 are less bad" in plain(text)
    assert "1 more images" in plain(text)
    monkeypatch.setattr(page_of_subjects, "IMAGES", 4)
    crowded = plain(cards_of(stills.to_html())[3])
    assert "2 of 3 regions" in crowded
    assert "2 surplus" not in crowded  # the subjects' regions stay


def test_rules_and_empty_images_in_words(roster: tuple[IDSim, list[Subject]], stills: Match, clip: Match) -> None:
    def words(result: Match, time: int) -> str:
        return plain(cards_of(result.to_html())[time])

    time = next(time for time, states in enumerate(stills.states) if states[1] == "missing")
    nearest = f"missing; nearest region at {stills.nearest[time, 1]:.4f}"
    assert f"{nearest}; counts as" not in words(stills, time)
    assert f"{nearest}; counts as 1.0000" in words(replace(stills, missing="zero"), time)
    assert words(clip, 12).count("missing; no region to compare") == 2

    swapped = replace(stills, assignments=(replace(stills.assignments[0], swapped=(1,)), *stills.assignments[1:]))
    assert f"matched at {stills.nearest[0, 1]:.4f}; swapped" in words(swapped, 0)
    assert "swapped" not in words(stills, 0)

    picture, boxes = scene((ANN,))
    photos = {"ann": references(ANN, 2), "rex": references(REX, 2)}  # too few for thresholds
    alone = match(roster[0], photos, picture, regions=boxes, distance="patch")  # without a calibration
    assert f"ann : region at {alone.nearest[0, 0]:.4f}" in words(alone, 0)
    assert f"rex : no region left; nearest region at {alone.nearest[0, 1]:.4f}" in words(alone, 0)


# Subjects by images


STORY = [(ANN, REX), (ANN,), (REX, ANN), (ANN, ANN), (REX,), ()]
STORY_CAST = [("ann", "rex"), ("ann",), ("ann", "rex"), ("ann", "rex"), ("ann",), ("ann",)]


@pytest.fixture(scope="module")
def story(roster: tuple[IDSim, list[Subject]], tmp_path_factory: pytest.TempPathFactory) -> Match:
    """Panels with a cast each; the labels of the regions are the subjects in the order of the first panel."""
    folder = tmp_path_factory.mktemp("story")
    paths, regions, cast = [], [], {}
    for number, badges in enumerate(STORY, start=1):
        picture, boxes = scene(badges or (None,), number)
        path = folder / f"panel{number}.png"
        picture.save(path)
        paths.append(str(path))
        labels = ("ann", "rex") if len(badges) == 2 and badges[1] != badges[0] else ("", "")
        regions.append([Region(box, label=label) for box, label in zip(boxes, labels, strict=False)])
        cast[path.name] = STORY_CAST[number - 1]
    return match(*roster, paths, regions=regions, threshold=0.25, cast=cast)


def matrix_of(text: str) -> str:
    """The table of subjects by images, and its legend; empty if the page has none."""
    parts = re.findall(r'<section class="panel" aria-labelledby="matrix-title">.*?</section>', text, re.DOTALL)
    return "".join(parts)


def cells_of(text: str) -> list[list[tuple[str, str, str]]]:
    """Class, title and text of the cells, for each subject."""
    rows = re.findall("<tr>.*?</tr>", matrix_of(text), re.DOTALL)[1:]
    cell = r'<td class="(.*?)" style="--strength:[\d.]+%" title="(.*?)" aria-label="\2">(.*?)</td>'
    cells = []
    for row in rows:
        cells.append([(kind, html.unescape(title), plain(inner)) for kind, title, inner in re.findall(cell, row)])
    return cells


def test_the_matrix_has_the_state_of_each_subject_in_each_image_in_order(story: Match) -> None:
    ann, rex = cells_of(story.to_html())
    assert [kind for kind, _, _ in ann] == ["matched", "matched", "swapped", "doubled", "missing", "missing"]
    assert [kind for kind, _, _ in rex] == [
        "matched",
        "absent outside",
        "swapped",
        "missing",
        "unexpected outside",
        "absent outside",
    ]
    assert [symbol.split()[0] for _, _, symbol in ann] == ["✓", "✓", "⇄", "2×", "✗", "✗"]
    assert [symbol.split()[0] for _, _, symbol in rex] == ["✓", "·", "⇄", "✗", "!", "·"]
    nearest = story.nearest
    assert [symbol.split()[1] for _, _, symbol in rex] == [f"{value:.2f}" for value in nearest[:5, 1]] + ["–"]
    assert rex[3][1] == f"rex in panel4.png: missing; nearest region at {nearest[3, 1]:.4f}"
    assert ann[2][1] == f"ann in panel3.png: matched at {nearest[2, 0]:.4f}; swapped"
    assert ann[5][1] == "ann in panel6.png: missing; no region to compare"


def test_the_matrix_has_a_head_for_each_image_and_explains_its_symbols(story: Match) -> None:
    matrix = matrix_of(story.to_html())
    head = re.findall('<th scope="col" title="(.*?)"><a href="#t(\\d+)"><img src="(.*?)"', matrix)
    assert [(title, time) for title, time, _ in head] == [(f"panel{time + 1}.png", str(time)) for time in range(6)]
    numbers = [plain(cell).split()[0] for cell in re.findall('<th scope="col" title.*?</th>', matrix)]
    assert numbers == ["1", "2", "3", "4", "5", "6"]
    assert all(len(picture) < 1_500 for _, _, picture in head)
    legend = plain(matrix[matrix.index('<p class="line-key') :])
    assert legend.startswith("✓ matched ✗ missing ⇄ swapped 2× doubled ! unexpected · absent Numbers: ")
    assert "Stronger color: farther from the threshold." in legend


@pytest.mark.parametrize(
    ("nearest", "threshold", "state", "strength"),
    [
        (0.1, 0.3, "matched", 100),
        (0.25, 0.3, "matched", 25),
        (0.3, 0.3, "matched", 0),
        (0.4, 0.3, "missing", 20),
        (0.8, 0.3, "missing", 100),
        (None, 0.3, "missing", 100),
        (0.1, None, "", 100),
        (0.45, None, "", 50),
        (0.8, None, "", 0),
        (None, None, "", 0),
        (0.1, 0.1, "matched", 100),
    ],
)
def test_a_color_is_as_strong_as_the_distance_is_far_from_the_threshold(
    nearest: float | None, threshold: float | None, state: str, strength: float
) -> None:
    row = {"nearest": nearest, "threshold": threshold, "state": state, "swapped": False}
    assert page_of_subjects.MatrixCell.of(row, 0.1, 0.8).strength == pytest.approx(strength)


def test_without_thresholds_the_matrix_has_distances_alone(roster: tuple[IDSim, list[Subject]], tmp_path: Path) -> None:
    pictures, boxes = zip(*(scene((ANN, REX), number) for number in range(2)), strict=True)
    photos = {"ann": references(ANN, 2), "rex": references(REX, 2)}  # too few for thresholds
    paths = [tmp_path / "1.png", tmp_path / "2.png"]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    cast = {"1.png": ["ann"], "2.png": ["ann", "rex"]}
    result = match(roster[0], photos, paths, regions=list(boxes), distance="patch", cast=cast)
    text = result.to_html()
    distances = [[f"{value:.2f}" for value in row] for row in result.nearest.T]
    assert [[symbol for _, _, symbol in row] for row in cells_of(text)] == distances
    assert [kind for kind, _, _ in cells_of(text)[1]] == ["unjudged outside", "unjudged"]
    assert cells_of(text)[1][0][1].endswith("; outside the cast")
    assert "Stronger color: nearer. Gray: outside the cast." in plain(matrix_of(text))


def test_the_matrix_is_of_several_images_and_subjects(stills: Match, clip: Match) -> None:
    assert matrix_of(stills.to_html())
    of_frames = matrix_of(clip.to_html())
    numbers = [plain(cell).split()[0] for cell in re.findall('<th scope="col" title.*?</th>', of_frames)]
    assert numbers == [str(frame) for frame in range(CLIP)]  # as in "walk.mp4 @ 0"
    one_image = page_of_subjects.Matrix.of(replace(stills.table, clips=("",)), [], 0, 1)
    one_subject = page_of_subjects.Matrix.of(replace(stills.table, subjects=("ann",)), [], 0, 1)
    assert one_image is None
    assert one_subject is None


def test_the_matrix_has_a_limit_and_says_how_many_it_leaves_out(
    story: Match, clip: Match, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_of_subjects, "COLUMNS", 4)
    text = story.to_html()
    assert [len(row) for row in cells_of(text)] == [4, 4]
    assert "4 of 6; the other 2 are in the numbers above" in plain(matrix_of(text))
    assert matrix_of(clip.to_html()) == ""  # a clip of 40 frames has its timeline

    monkeypatch.setattr(page_of_subjects, "IMAGES", 2)  # without a card there is no link
    matrix = matrix_of(story.to_html())
    linked = set(re.findall(r'href="#t(\d+)"', matrix))
    assert linked == {str(time) for time in cards_of(story.to_html()) if time < 4}
    assert [len(row) for row in cells_of(story.to_html())] == [4, 4]


def test_a_card_says_that_subjects_are_swapped(story: Match) -> None:
    cards = cards_of(story.to_html())
    assert '<b class="badge">swapped</b>' in cards[2]
    assert cards[2].count('<span class="swapped">matched at') == 2
    assert [time for time in cards if 'class="badge"' in cards[time]] == [2]
    assert [time for time in cards if 'class="swapped"' in cards[time]] == [2]


def test_the_timeline_has_a_point_for_each_subject_of_each_frame(clip: Match) -> None:
    text = clip.to_html()
    points = re.findall(r'<a class="point s(\d).*?" href="#t(\d+)" style="left:([\d.]+)%;bottom:([\d.]+)%"', text)
    assert len(points) == 2 * (CLIP - 1)
    highest = float(re.findall(r'bottom:100.0%"><small>([\d.]+)', text)[0])
    for subject, time, x, y in points:
        assert float(x) == pytest.approx(100 * int(time) / (CLIP - 1), abs=0.02)
        assert float(y) == pytest.approx(100 * clip.nearest[int(time), int(subject)] / highest, abs=0.02)
    lines = re.findall('<polyline points="(.*?)"', text)
    assert [len(line.split()) for line in lines] == [12, CLIP - 13] * 2  # frame 12 has no regions
    ann = [100 - float(point.split(",")[1]) for point in f"{lines[0]} {lines[1]}".split()]  # downwards
    assert ann == pytest.approx([float(y) for subject, _, _, y in points if subject == "0"], abs=0.02)
    missing = re.findall(r'class="point s1 missing.*?" href="#t(\d+)"', text)
    assert missing == [str(REPLACED)]


def test_files_are_named_by_their_ending(stills: Match, tmp_path: Path) -> None:
    stills.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == stills.to_html()
    stills.write(tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 2 * len(SCENES)
    with pytest.raises(ValueError, match=r"ends in none of .csv, .json, .jsonl, .html"):
        stills.write(tmp_path / "page.htm")


# In a browser


@pytest.fixture(scope="module")
def pages(stills: Match, clip: Match, story: Match, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    numbers = ("xverse-ip", "umo-id-conf", "vistory-cross", "vistory-self", "vistory-occm", "nexus", "msrvtt-subject")
    story.write(folder / "story.html", [story.published(name) for name in numbers])
    stills.write(folder / "stills.html")
    clip.write(folder / "clip.html")
    return folder


@pytest.mark.parametrize("name", ["stills", "clip", "story"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_a_page_fits_and_is_accessible(visit: Open, pages: Path, name: str, scheme: str, width: int) -> None:
    page = visit(pages / f"{name}.html", width, color_scheme=scheme)
    assert not overflows(page)
    assert faults_of(page) == []
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert not overflows(page)
    assert faults_of(page) == []


LONG_SOURCE = "a_calibration_of_my_own.json, 5 % of pairs"


@pytest.mark.parametrize("width", [1280, 1024, 390])
def test_the_summary_fits_its_card_and_the_matrix_scrolls_in_its_own(
    visit: Open, story: Match, tmp_path: Path, width: int
) -> None:
    names = ("Annabella Montgomery", "rex")
    times = tuple(f"the_long_way_home_chapter_1_panel_{number}.png" for number in range(len(STORY)))
    table = replace(story.table, subjects=names, times=times)
    replace(story, table=table, threshold_sources=(LONG_SOURCE,) * 2).write(tmp_path / "page.html")
    page = visit(tmp_path / "page.html", width)
    assert not overflows(page)
    summary = page.locator(".summary .scroll")
    assert summary.evaluate("card => card.scrollWidth <= card.clientWidth")

    if width == 390:
        scroll = page.locator(".scroll:has(> .cells)")
        assert scroll.evaluate("card => card.scrollWidth > card.clientWidth")
        name = page.locator(".cells tbody th").first
        left = name.bounding_box()["x"]
        scroll.evaluate("card => { card.scrollLeft = 150; }")
        assert name.bounding_box()["x"] == left


@pytest.mark.parametrize("width", [1280, 1024, 390])
def test_published_numbers_fit_their_card(visit: Open, pages: Path, width: int) -> None:
    page = visit(pages / "story.html", width)
    card = page.locator(".scroll:has(> .published)").first
    assert card.evaluate("card => card.scrollWidth <= card.clientWidth")
    panel = page.locator("section:has(.published)")
    values = panel.locator("details table")
    assert not values.is_visible()
    panel.locator("summary").click()
    assert values.is_visible()
    assert not overflows(page)


def test_a_click_on_a_cell_of_the_matrix_shows_the_image(visit: Open, pages: Path) -> None:
    page = visit(pages / "story.html", 1280)
    for number, time in ((4, 3), (2, 1)):
        page.locator(f".cells tbody tr:nth-child(2) td:nth-child({number + 1}) a").click()
        assert in_view(page, time)


def in_view(page: Any, time: int) -> bool:
    box = page.locator(f"#t{time}").bounding_box()
    return box is not None and -1 <= box["y"] < page.viewport_size["height"] - 100


@pytest.mark.parametrize("scripts", [True, False])
def test_a_click_on_the_timeline_shows_the_frame(visit: Open, pages: Path, clip: Match, scripts: bool) -> None:
    page = visit(pages / "clip.html", 1440, java_script_enabled=scripts)
    worst = int(np.argsort(-clip.badness.max(1), kind="stable")[0])
    assert worst == 12
    assert not in_view(page, 12)
    page.click(".worst-at small")
    assert in_view(page, 12)

    page.click(f'.point.missing[href="#t{REPLACED}"]')
    assert in_view(page, REPLACED)
    last = list(cards_of(clip.to_html()))[-1]  # folded
    page.click(f'.point.s1[href="#t{last}"]')  # drawn above those of ann
    assert in_view(page, last)


def test_the_point_of_the_worst_frame_is_marked(visit: Open, clip: Match, tmp_path: Path) -> None:
    table = replace(clip.table, clips=(*clip.table.clips[:12], "", *clip.table.clips[13:]))  # without the empty frame
    replace(clip, table=table).write(tmp_path / "page.html")
    page = visit(tmp_path / "page.html", 1440)
    point = page.locator(".point.worst")
    assert point.get_attribute("title") == f"rex at {REPLACED / 8:.2f} s: missing; nearest region at " + (
        f"{clip.nearest[REPLACED, 1]:.4f}"
    )
    point.click(position={"x": 5, "y": 5})
    assert in_view(page, REPLACED)


def test_screenshot_of_a_clip(visit: Open, pages: Path, tmp_path: Path) -> None:
    page = visit(pages / "clip.html", 1200, 1560)
    page.wait_for_timeout(300)  # pictures and colors settle
    path = Path(os.environ.get("IDMETRIC_SCREENSHOTS") or tmp_path) / "match-page.webp"
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, "webp", quality=70, method=6)
    assert path.stat().st_size < 150_000
