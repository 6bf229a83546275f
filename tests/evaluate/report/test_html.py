"""Pages of scores and evaluations, read as files."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric.cli import eval as eval_cli
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.pages.pictures import data_uri, jpeg_uri, room
from tests.report_parts import EVERYTHING, NAMES, make_folder, make_photos, picture, score

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

    @property
    def cards(self) -> list[dict[str, str]]:
        return self.all("li", **{"class": "card"})

    def picture(self, name: str) -> Image.Image:
        """The picture of an element."""
        [shown] = [img for img in self.all("img") if img.get("id") == name]
        return Image.open(io.BytesIO(base64.b64decode(shown["src"].split(",")[1])))

    def data(self, name: str) -> Any:
        return json.loads(next(text for about, text in self.scripts if about.get("id") == name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, Any]:
    status, out = score(folder, *EVERYTHING, "--format", "json", "--html", "page.html")
    assert status == 3
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def page(folder: Path, printed: dict[str, Any]) -> Page:
    return Page((folder / "page.html").read_text(encoding="utf-8"))


def page_of(folder: Path, *given: str) -> Page:
    """The page of a run."""
    score(folder, *given, "--html", "own.html")
    return Page((folder / "own.html").read_text(encoding="utf-8"))


# Scores


def test_the_numbers_of_the_page_are_those_of_json(page: Page, printed: dict[str, Any]) -> None:
    cards = page.cards
    assert len(cards) == len(printed["rows"]) == len(NAMES) + 1
    for card, row in zip(cards, printed["rows"], strict=True):
        assert card["data-path"] == row["image"]
        assert float(card["data-distance"]) == row["distance"]
        assert float(card["data-probability"]) == row["probability"]
        assert int(card["data-rank"]) == row["rank"]
        assert card["data-copy"] == str(int(row["copy"]))
        assert f"{row['distance']:.4f}" in page.visible
        assert f"P(same) {row['probability']:.4f}" in page.visible
    assert page.data("scores") == printed
    assert [c["data-distance"] for c in cards] == sorted((c["data-distance"] for c in cards), key=float)
    for name, value in printed["signature"].items():
        assert f"{name}={value}" in page.visible
    assert f"{printed['baseline']['mean']:.4f}" in page.visible
    assert f"{printed['baseline']['max']:.4f}" in page.visible
    distances = [row["distance"] for row in printed["rows"]]
    others = [row["distance"] for row in printed["rows"] if not row["copy"]]
    means = f"Mean {np.mean(distances):.4f} Mean, no copies {np.mean(others):.4f} "
    assert means in page.visible
    for apart in printed["baseline"]["distances"].values():
        assert f"nearest other reference {apart:.4f}" in page.visible
    ticks = re.search(r'class="ticks">(.*?)</div>', page.text)
    assert ticks is not None
    assert all(re.fullmatch(r"\d\.\d{4}", tick) for tick in re.findall(r">([^<]+)</span>", ticks[1]))


def test_copies_and_unreadable_images_are_named_with_their_reasons(page: Page, printed: dict[str, Any]) -> None:
    assert [c["data-path"] for c in page.all("li", **{"data-copy": "1"})] == [str(Path("gen") / "copied.png")]
    assert "copied.png repeats the pixels of ref2.png" in page.visible  # a warning, kept also where --quiet hides it
    assert len(printed["skipped"]) == 2
    for lost in printed["skipped"]:
        assert lost["image"] in page.visible
        assert lost["reason"] in page.visible


def test_names_of_files_never_become_part_of_the_page(page: Page) -> None:
    runnable = [text for about, text in page.scripts if "type" not in about]
    assert len(runnable) == 1
    assert {about["id"] for about, _ in page.scripts if "type" in about} == {"scores"}
    for about, text in page.scripts:
        if "type" in about:
            assert "<" not in text  # which alone can end a script, in more ways than one
    digest = base64.b64encode(hashlib.sha256(runnable[0].encode()).digest()).decode()
    [policy] = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert f"script-src 'sha256-{digest}'" in policy["content"]
    assert policy["content"].startswith("default-src 'none'; img-src data:;")
    assert "alert" not in runnable[0]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    alts = {img["alt"] for img in page.all("img") if img.get("src")}
    for name in NAMES:
        assert any(name in alt for alt in alts), name
    assert "<b>broken<b>" in page.visible
    assert "49" not in " ".join(alts)


def test_nothing_is_fetched_and_every_picture_has_an_alternative(page: Page) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "poster", "action", "data"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
        if tag == "img":
            assert "alt" in attributes
    assert not re.search(r"@import|url\(", page.text.split("</style>")[0])
    shown = [img for img in page.all("img") if img.get("src")]
    assert len(shown) == len(NAMES) + 1 + 3
    for img in shown:
        head, data = img["src"].split(",", 1)
        assert head == "data:image/webp;base64"
        Image.open(io.BytesIO(base64.b64decode(data))).load()


def test_the_threshold_on_the_page_is_the_one_in_force(folder: Path, page: Page) -> None:
    def chips(shown: Page) -> list[tuple[str, float]]:
        return [(b["data-label"], float(b["data-threshold"])) for b in shown.all("button") if "data-threshold" in b]

    assert chips(page) == [("calibration.json, 5 % of pairs", 0.125)]
    assert "P(same) rests on images of unrecorded origin" in page.visible
    given = page_of(folder, *EVERYTHING, "--threshold", "0.0625")
    assert given.all("input", id="threshold")[0]["value"] == "0.0625"
    assert chips(given) == [("option --threshold", 0.0625)]
    assert chips(page_of(folder, "--ref", "ref0.png", "--ref", "ref1.png", "gen/sample2.png")) == []


def test_one_reference_has_no_real_photos_to_compare_with(folder: Path) -> None:
    alone = page_of(folder, "ref0.png", "gen/sample2.png")
    assert "How far real photos of the subject are from each other is shown with two" in alone.visible


def test_the_page_says_whether_to_believe_the_probability_or_the_real_photos(folder: Path) -> None:
    examples = Path(__file__).parents[3] / "examples" / "images"
    photos = [word for name in ("a", "b", "c") for word in ("--ref", str(examples / f"mug_{name}.png"))]
    asked = (*photos, str(examples / "mug_other.png"), "--model", "tiny", "--calibration", "stored")
    shown = page_of(folder, *asked)
    assert "P(same) 0.92" in shown.visible
    assert "1 image is farther than every real photo although P(same) is above 0.5: believe the real" in shown.visible
    assert "believe the real" not in page_of(folder, *asked[:-2]).visible


def test_a_reference_among_the_images_is_no_copy(folder: Path) -> None:
    (folder / "link.png").symlink_to("ref2.png")
    own = page_of(folder, "ref2.png", "ref2.png", "gen/copied.png", "link.png", "--include-refs")
    cards = own.cards
    assert [(c["data-path"], c["data-copy"], "data-itself" in c) for c in cards] == [
        ("ref2.png", "0", True), ("link.png", "0", True), (str(Path("gen") / "copied.png"), "1", False)
    ]  # fmt: skip
    assert "Copies 1 " in own.visible
    assert own.visible.count("the reference itself") == 2
    (folder / "link.png").unlink()


def test_pairs_keep_each_its_reference(folder: Path) -> None:
    (folder / "pairs.csv").write_text("a,b\nref0.png,gen/sample2.png\nref1.png,gen/sample2.png\nref0.png,ref1.png\n")
    status, out = score(folder, "--pairs", "pairs.csv", "--format", "json", "--html", "pairs.html")
    assert status == 0
    pairs = Page((folder / "pairs.html").read_text(encoding="utf-8"))
    captions = [img["alt"] for img in pairs.all("img") if img.get("id", "").startswith("r")]
    rows = sorted(json.loads(out)["rows"], key=lambda row: row["rank"])  # printed in the order of the file
    for card, row in zip(pairs.cards, rows, strict=True):
        assert captions[int(card["data-reference"])] == f"Reference {Path(row['reference']).name}"
        assert float(card["data-distance"]) == row["distance"]


@pytest.mark.skipif(sys.platform != "linux", reason="names that are no text need Linux")
def test_a_name_that_is_no_text_is_shown_with_question_marks(folder: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/strange-\xff.png"
    Path(os.fsdecode(name)).write_bytes((folder / "ref1.png").read_bytes())
    status, _ = score(folder, "ref0.png", os.fsdecode(name), "--format", "json", "--html", "strange.html")
    assert status == 0
    assert "strange-?.png" in Page((folder / "strange.html").read_text(encoding="utf-8")).visible


def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("absent/page.html", "gen"):
        status, out = score(folder, "ref0.png", "gen/sample2.png", "--html", place)
        assert (status, out) == (1, "")
        assert f"cannot write {place!r}: " in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        score(folder, "ref0.png", "gen/sample2.png", "--html", "x.html", "--output", "./x.html")
    assert stop.value.code == 2
    assert "--html and --output name one file" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert score(folder, "ref0.png", "gen/sample2.png", "--html", "x.html") == (1, "")
    assert "pip install 'idmetric[eval]'" in capsys.readouterr().err
    assert not (folder / "x.html").exists()


def test_pictures_show_what_the_model_saw(folder: Path) -> None:
    mask = np.zeros((40, 60), np.uint8)
    mask[:20, :30] = 255
    (folder / "masks").mkdir(exist_ok=True)
    for name in ("ref0", "sample2"):
        Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    masked = page_of(folder, "ref0.png", "gen/sample2.png", "--mask-dir", "masks")
    pixels = np.asarray(masked.picture("r0"))
    assert pixels[-8:, -8:].max() < 30  # black outside the subject
    cropped = page_of(folder, "ref0.png", "gen/sample2.png", "--mask-dir", "masks", "--outside", "crop")
    assert cropped.picture("r0").size == (30, 20)


# Size


def noisy(seed: int) -> Image.Image:
    """A picture that compresses badly: blots under strong noise."""
    rng = np.random.default_rng(seed)
    blots = np.asarray(picture(seed, (800, 600)), np.int16)
    return Image.fromarray((blots + rng.integers(-90, 90, blots.shape)).clip(0, 255).astype(np.uint8))


def test_pictures_keep_to_their_room() -> None:
    def kept(picture: Image.Image, limit: int) -> tuple[int, tuple[int, int]]:
        head, data = data_uri(picture, limit).split(",", 1)
        assert head == "data:image/webp;base64"
        content = base64.b64decode(data)
        return len(content), Image.open(io.BytesIO(content)).size

    for count, side in ((1, 300), (500, 200), (3000, 48)):
        size, shape = kept(noisy(0), room(count))
        assert size <= room(count)
        assert max(shape) >= side
    assert kept(picture(0), room(1))[1] == picture(0).size
    assert kept(noisy(0).resize((5000, 3)), 100)[1] == (48, 1)


def test_jpeg_pictures_keep_to_their_room_and_show_as_much_as_fits() -> None:
    def kept(picture: Image.Image, limit: int) -> tuple[int, tuple[int, int]]:
        head, data = jpeg_uri(picture, limit).split(",", 1)
        assert head == "data:image/jpeg;base64"
        content = base64.b64decode(data)
        return len(content), Image.open(io.BytesIO(content)).size

    plain = Image.new("RGB", (1200, 600), "teal")
    assert kept(plain, 12_000)[1] == (300, 150)  # blocks of 4 x 4: about 283 pixels at .15 bytes each
    assert kept(plain.resize((300, 150)), 12_000)[1] == (300, 150)
    size, shape = kept(noisy(0), 12_000)
    assert size <= 12_000
    assert max(shape) >= 100
    assert kept(noisy(0).resize((5000, 3)), 100)[1] == (48, 1)


# Evaluations


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
