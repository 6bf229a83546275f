"""The page of `idmetric gallery report`, in Chromium without a window."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric.cli.gallery import main
from tests.browser_parts import Open, faults_of

pytest.importorskip("jinja2")
pytest.importorskip("scipy")

NASTY = ('it\'s "quoted" $(touch pwned) `x`.png', "two\nlines.png", "-rf *.png", "back\\slash & <b>.png")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names, and no /bin/sh")


def picture(seed: int) -> Image.Image:
    """Shapes of many sizes, so that there is detail everywhere."""
    rng = np.random.default_rng(seed)
    found = np.zeros((160, 200, 3))
    for side in (4, 10, 24, 80):
        grid = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        found += np.asarray(grid.resize((200, 160)), float) / 4
    return Image.fromarray(found.astype(np.uint8))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures, each with a smaller copy that has a difficult name, and ten more; their gallery and its page."""
    root = tmp_path_factory.mktemp("gallery")
    folder = root / "photos"
    folder.mkdir()
    for k, name in enumerate(NASTY):
        picture(k).save(folder / f"{k}.png")
        picture(k).resize((150, 120)).save(folder / name)
    for k in range(10):
        picture(100 + k).save(folder / f"other{k}.png")
    given = ["report", str(folder), "--gallery", str(root / "index"), "--model", "tiny", "--device", "cpu"]
    assert main([*given, "--threshold", "0.2", "--output", str(root / "page.html"), "--quiet"]) == 0
    return root


@pytest.fixture
def photos(root: Path) -> Iterator[Path]:
    """The pictures; at the end they are all there again."""
    kept = {path: path.read_bytes() for path in (root / "photos").iterdir()}
    yield root / "photos"
    for path, content in kept.items():
        path.write_bytes(content)


@pytest.fixture
def index(root: Path) -> Path:
    return root / "index"


@pytest.fixture
def report(root: Path) -> Path:
    return root / "page.html"


def record(page: Path) -> Any:
    text = page.read_text(encoding="utf-8")
    found = re.search('<script type="application/json" id="record">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def saved(page: Any, button: str) -> str:
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_ticks_change_the_sum_and_the_list(visit: Open, report: Path, photos: Path) -> None:
    page = visit(report)
    sizes = {name: (photos / name).stat().st_size for name in NASTY}
    assert page.inner_text("#sum") == f"4 files to remove, {sum(sizes.values()) / 1e6:.2f} MB saved"
    assert set(saved(page, "#list").splitlines()) == {str(photos / n) for n in NASTY if "\n" not in n}
    assert "leaves out 1" in page.inner_text("#caution")

    label = next(k for k, image in enumerate(record(report)["images"]) if image["path"].endswith(NASTY[0]))
    page.uncheck(f'[data-remove="{label}"]')
    rest = sum(size for name, size in sizes.items() if name != NASTY[0])
    assert page.inner_text("#sum") == f"3 files to remove, {rest / 1e6:.2f} MB saved"
    assert str(photos / NASTY[0]) not in saved(page, "#list").splitlines()


def test_a_group_that_keeps_nothing_is_marked(visit: Open, report: Path) -> None:
    page = visit(report)
    group = page.locator(".group").first
    assert group.locator(".none").is_hidden()
    for tick in group.locator("[data-remove]").all():
        tick.check()
    assert group.locator(".none").is_visible()


@pytest.mark.parametrize("button", ["#remove", "#move"])
def test_the_script_removes_exactly_the_ticked_files(
    visit: Open, report: Path, photos: Path, tmp_path: Path, button: str
) -> None:  # fmt: skip
    page = visit(report)
    page.fill("#folder", "it's -gone")
    before = {path.name: path.read_bytes() for path in photos.iterdir()}
    (tmp_path / "script.sh").write_text(saved(page, button), encoding="utf-8")
    subprocess.run(["/bin/sh", str(tmp_path / "script.sh")], cwd=tmp_path, check=True)

    assert {path.name for path in photos.iterdir()} == set(before) - set(NASTY)
    assert not (tmp_path / "pwned").exists()
    if button == "#move":
        moved = {path.name.partition("-")[2]: path.read_bytes() for path in (tmp_path / "it's -gone").iterdir()}
        assert moved == {name: before[name] for name in NASTY}


def test_a_click_shows_the_nearest_images(visit: Open, report: Path, index: Path) -> None:
    from idmetric import IDSim
    from idmetric.gallery import Gallery

    gallery = Gallery(index, IDSim("tiny", device="cpu"))
    vectors = dict(zip((item.place for item in gallery.items), gallery.vectors().astype(float), strict=True))
    images = record(report)["images"]
    k = 3
    far = {n: 1 - float(vectors[images[k]["path"]] @ vectors[i["path"]]) for n, i in enumerate(images) if n != k}
    expected = sorted(far, key=lambda n: far[n])[:12]

    page = visit(report)
    page.click(f'.group [data-image="{k}"]')
    shown = page.eval_on_selector_all("#found .see", "all => all.map(one => Number(one.dataset.image))")
    assert shown == [k, *expected]
    texts = page.eval_on_selector_all("#found .facts", "all => all.map(one => one.textContent)")
    assert [float(text) for text in texts[1:]] == pytest.approx([far[n] for n in expected], abs=6e-5)


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_the_window_and_shows_its_pictures(visit: Open, report: Path, width: int) -> None:
    page = visit(report, width=width, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 27)"
    assert page.eval_on_selector_all(".group .see img", "all => all.every(one => one.naturalWidth > 0)")


def test_missing_files_become_placeholders(visit: Open, photos: Path, index: Path, tmp_path: Path) -> None:
    (photos / "0.png").unlink()
    given = ["report", "--gallery", str(index), "--device", "cpu", "--threshold", "2"]
    assert main([*given, "--output", str(tmp_path / "page.html"), "--quiet"]) == 4
    page = visit(tmp_path / "page.html")
    assert page.locator(".group").count() == 3
    assert "no picture" in page.inner_text(".cluster .hole")


def test_totals_and_scripts_cover_groups_that_are_not_shown(
    visit: Open, index: Path, photos: Path, tmp_path: Path
) -> None:
    from idmetric import IDSim
    from idmetric.gallery import Gallery
    from idmetric.gallery.clusters import near_duplicates
    from idmetric.report.gallery import gallery_page

    gallery = Gallery(index, IDSim("tiny", device="cpu"))
    groups, signature = near_duplicates(gallery), gallery.metric.signature("cls")
    for most, number in ((5, 2), (1, 0)):
        text = gallery_page(gallery, groups, None, signature=signature, most=most)
        assert f"shows {2 * number or 1} of 18 images" in text or f"shows {2 * number + 1} of 18 images" in text
        assert f"Not shown: {4 - number} duplicate groups" in text
        (tmp_path / "few.html").write_text(text, encoding="utf-8")
        page = visit(tmp_path / "few.html")
        assert page.inner_text("#copies-title") == "Duplicates 4 groups"
        sizes = {name: (photos / name).stat().st_size for name in NASTY}
        assert page.inner_text("#sum") == f"4 files to remove, {sum(sizes.values()) / 1e6:.2f} MB saved"
        assert all(f"'{path}'" in saved(page, "#remove") for path in map(str, photos.glob("back*")))
        page.uncheck("#unseen")
        assert page.inner_text("#sum").startswith(f"{number} files to remove")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(report: Path, visit: Open, scheme: str) -> None:
    page = visit(report, color_scheme=scheme)
    assert faults_of(page) == []


def test_outliers_of_an_identity_are_marked(visit: Open, index: Path, tmp_path: Path) -> None:
    from idmetric import IDSim
    from idmetric.gallery import Gallery
    from idmetric.report.gallery import gallery_page
    from idmetric.scoring.records import Records

    gallery = Gallery(index, IDSim("tiny", device="cpu"))
    places = [item.place for item in gallery.items if "other" in item.place][:7]
    far = [0.0, 0.1, 0.11, 0.12, 0.9, 0.1, 0.11]  # from the center, which is the first
    rows = [
        {"group": 1, "name": "who", "image": p, "distance": d, "center": d == 0}
        for p, d in zip(places, far, strict=True)
    ]
    groups = Records(rows, ("group", "image", "distance", "center"))
    text = gallery_page(gallery, Records([], ()), groups, signature=gallery.metric.signature("cls"))
    (tmp_path / "clusters.html").write_text(text, encoding="utf-8")
    page = visit(tmp_path / "clusters.html")
    marked = page.locator(".outlier .see")
    assert marked.count() == 1
    assert record(tmp_path / "clusters.html")["images"][int(marked.get_attribute("data-image"))]["path"] == places[4]
    assert page.locator(".cluster li").last.locator(".see").get_attribute("data-image") == marked.get_attribute(
        "data-image"
    )
