"""The page of `idmetric gallery report`, in Chromium without a window."""

from __future__ import annotations

import json
import re
import shutil
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
    assert main([*given, "--threshold", "0.01", "--output", str(root / "page.html"), "--quiet"]) == 0
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


@pytest.fixture(scope="module")
def gallery(root: Path) -> Any:
    from idmetric import IDSim
    from idmetric.gallery import Gallery

    return Gallery(root / "index", IDSim("tiny", device="cpu"))


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


def test_a_page_by_tiny_is_called_a_smoke_test(root: Path) -> None:
    assert "<bdi>IDSim:tiny</bdi> (smoke-test model)" in (root / "page.html").read_text(encoding="utf-8")


def test_the_thresholds_of_the_page_have_their_source(root: Path, index: Path, tmp_path: Path) -> None:
    text = (root / "page.html").read_text(encoding="utf-8")
    assert "Groups of images within the threshold <b>0.0100 (option --threshold)</b>" in text
    assert "--max-distance" not in text
    given = ["report", "--gallery", str(index), "--device", "cpu", "--output", str(tmp_path / "page.html"), "--quiet"]
    assert main([*given, "--max-distance", "0.001"]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "within the threshold <b>0.2425 (stored calibration, 1 % of pairs)</b>" in text
    assert "Near: within the distance <b>0.0010 (option --max-distance)</b>" in text


def test_a_link_and_its_file_cannot_be_ticked(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    shutil.copyfile(photos / "0.png", folder / "z.png")
    (folder / "a.png").symlink_to("z.png")
    given = ["report", str(folder), "--model", "tiny", "--device", "cpu", "--threshold", "0.01", "--quiet"]
    assert main([*given, "--output", str(tmp_path / "page.html")]) == 0
    ((kept, linked),) = record(tmp_path / "page.html")["copies"]
    assert kept["fixed"] == linked["fixed"] == "linked to another file of the group"
    assert kept["keep"] is linked["keep"] is True


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


def test_no_script_is_saved_for_a_group_that_keeps_nothing(visit: Open, report: Path) -> None:
    page = visit(report)
    group = page.locator(".group").nth(1)
    assert group.locator(".none").is_hidden()
    for tick in group.locator("[data-remove]").all():
        tick.check()
    assert group.locator(".none").is_visible()
    assert "Group 2 keeps nothing" in page.inner_text("#caution")
    assert all(page.is_disabled(button) for button in ("#list", "#remove", "#move"))
    group.locator("[data-remove]").first.uncheck()
    assert page.is_enabled("#remove")


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


def test_a_file_stays_if_the_one_that_it_repeats_is_missing(
    visit: Open, report: Path, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "script.sh").write_text(saved(visit(report), "#remove"), encoding="utf-8")
    (photos / "2.png").unlink()
    done = subprocess.run(["/bin/sh", str(tmp_path / "script.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{photos / NASTY[2]} stays: {photos / '2.png'} is missing" in done.stderr
    assert [(photos / name).exists() for name in NASTY] == [False, False, True, False]


def test_paths_are_as_given_and_scripts_run_anywhere(
    visit: Open, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    given = ["report", "photos", "--model", "tiny", "--device", "cpu", "--threshold", "0.2", "--quiet"]
    assert main([*given, "--output", str(tmp_path / "page.html")]) == 0
    assert {Path(image["path"]).parent.name for image in record(tmp_path / "page.html")["images"]} == {"photos"}
    page = visit(tmp_path / "page.html")
    assert page.locator(".group .name").first.inner_text().startswith("photos/")
    script = saved(page, "#move")
    assert "remove 'photos/" in script
    (tmp_path / "script.sh").write_text(script, encoding="utf-8")
    subprocess.run(["/bin/sh", str(tmp_path / "script.sh")], cwd=tmp_path, check=True)
    assert not any((photos / name).exists() for name in NASTY)
    assert len(list((tmp_path / "removed-duplicates").iterdir())) == 4


def test_a_click_shows_the_nearest_images(visit: Open, report: Path, gallery: Any) -> None:
    vectors = dict(zip((item.place for item in gallery.items), gallery.vectors().astype(float), strict=True))
    images = record(report)["images"]
    k = 3
    far = {n: 1 - float(vectors[images[k]["path"]] @ vectors[i["path"]]) for n, i in enumerate(images) if n != k}
    expected = sorted(far, key=lambda n: far[n])[:12]

    page = visit(report)
    page.click(f'.group [data-image="{k}"]')
    shown = page.eval_on_selector_all("#found .see", "all => all.map(one => Number(one.dataset.image))")
    assert shown == [k, *expected]
    assert page.inner_text("#nearest-title") == images[k]["path"]
    texts = page.eval_on_selector_all("#found .facts", "all => all.map(one => one.textContent)")
    assert [float(text) for text in texts[1:]] == pytest.approx([far[n] for n in expected], abs=6e-5)


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_the_window_and_shows_its_pictures(visit: Open, report: Path, width: int) -> None:
    page = visit(report, width=width, color_scheme="dark")
    for view in ("single", "clusters", "copies"):
        page.click(f'[data-view="{view}"]')
        assert [page.is_visible(f"#{name}") for name in ("single", "clusters", "copies")].count(True) == 1
        assert page.is_visible(f"#{view} .see")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.eval_on_selector_all(f"#{view} .see img", "all => all.every(one => one.naturalWidth > 0)")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 27)"


def test_missing_and_changed_files_become_placeholders(visit: Open, photos: Path, index: Path, tmp_path: Path) -> None:
    (photos / "0.png").unlink()
    picture(77).save(photos / "1.png")
    (photos / "2.png").touch()  # the same bytes
    given = ["report", "--gallery", str(index), "--device", "cpu", "--threshold", "2"]
    assert main([*given, "--output", str(tmp_path / "page.html"), "--quiet"]) == 4
    page = visit(tmp_path / "page.html")
    assert page.locator("#copies .group").count() == 2
    assert page.locator("#copies .hole").count() == 0
    page.click('[data-view="clusters"]')
    assert page.locator("#clusters .hole").count() == 0
    page.click('[data-view="single"]')
    assert sorted(page.locator("#single .hole").all_inner_texts()) == ["no picture: changed", "no picture: missing"]


def many(folder: Path, root: Path, **options: Any) -> Path:
    """A page of 120 groups of duplicates, one of them of 40 images, and of 60 clusters."""
    from idmetric import IDSim
    from idmetric.evaluate.report.gallery import gallery_page
    from idmetric.gallery import Gallery
    from idmetric.scoring.scores import Records

    sizes = [40, *(2 + group % 4 for group in range(1, 120))]
    (folder / "set").mkdir()
    for k in range(sum(sizes)):
        name = f"{k:03} of a long series of photos with long names.png"
        shutil.copyfile(root / "photos" / f"other{k % 10}.png", folder / "set" / name)
    gallery = Gallery(folder / "index", IDSim("tiny", device="cpu"))
    gallery.update(folder / "set")
    items = iter(gallery.items)
    rows = [
        {"group": group, "image": next(items).place, "keep": k == 0, "center": k == 0,
         "reason": "copy" if k else "kept", "distance": k / 100, "copy_agreement": 0.9}
        for group, size in enumerate(sizes) for k in range(size)
    ]  # fmt: skip
    clusters = Records([row for row in rows if row["group"] < 60], ())
    page, signature = folder / "many.html", gallery.metric.signature("cls")
    text = gallery_page(gallery, Records(rows, ()), clusters, signature=signature, **options)
    page.write_text(text, encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def crowded(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many(tmp_path_factory.mktemp("many"), root)


@pytest.mark.parametrize("width", [390, 1440])
def test_groups_come_in_pages_of_50_with_totals_over_all(
    visit: Open, crowded: Path, width: int
) -> None:  # fmt: skip
    page = visit(crowded, width=width)
    assert page.inner_text("#copies-title") == "Duplicates 120 groups"
    spare = sum(not row["keep"] for rows in record(crowded)["copies"] for row in rows)
    assert page.inner_text("#sum").startswith(f"{spare} files")
    for view, pages in (("copies", [50, 50, 20]), ("clusters", [50, 10])):
        page.click(f'[data-view="{view}"]')
        first = 1
        for number, count in enumerate(pages, 1):
            assert page.inner_text(f"#{view} .pager span >> nth=1") == f"Page {number} of {len(pages)}"
            legends = page.locator(f"#{view} legend").all_inner_texts()
            assert [int(text.split()[1].rstrip(":")) for text in legends] == list(range(first, first + count))
            assert page.evaluate("document.documentElement.scrollHeight") <= 10_000
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            first += count
            if number < len(pages):
                page.click(f"#{view} .next >> nth=1")
        assert page.is_disabled(f"#{view} .next >> nth=0")


def test_ticks_outlast_their_page(visit: Open, crowded: Path) -> None:
    page = visit(crowded)
    before = int(page.inner_text("#sum").split()[0])
    tick = page.locator("[data-remove]:checked").first
    image = tick.get_attribute("data-remove")
    tick.uncheck()
    page.click("#copies .next >> nth=0")
    page.click("#copies .back >> nth=0")
    assert not page.locator(f'[data-remove="{image}"]').first.is_checked()
    assert int(page.inner_text("#sum").split()[0]) == before - 1


def test_images_beyond_the_room_of_a_page_have_no_picture(visit: Open, root: Path, tmp_path: Path) -> None:
    report = many(tmp_path, root, room=20_000)
    images = record(report)["images"]
    lacking = [k for k, image in enumerate(images) if image["picture"] < 0]
    assert lacking[0] > 0
    assert {images[k]["fault"] for k in lacking} == {"too many for one page"}
    assert len(images[0]["near"].split()) == 2 * min(lacking[0] - 1, 12)
    assert all(int(near) < lacking[0] for image in images for near in image["near"].split()[::2])
    assert "too many for one page" in visit(report).locator("#copies .hole").first.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(report: Path, visit: Open, scheme: str) -> None:
    page = visit(report, color_scheme=scheme)
    for view in ("single", "clusters", "copies"):
        page.click(f'[data-view="{view}"]')
        assert faults_of(page) == []
    page.click("#copies .see >> nth=0")
    assert faults_of(page) == []


def test_outliers_of_an_identity_are_marked(visit: Open, gallery: Any, tmp_path: Path) -> None:
    from idmetric.evaluate.report.gallery import gallery_page
    from idmetric.scoring.scores import Records

    places = [item.place for item in gallery.items if "other" in item.place][:7]
    far = [0.0, 0.1, 0.11, 0.12, 0.9, 0.1, 0.11]  # from the center, which is the first
    rows = [{"group": 1, "image": p, "distance": d, "center": d == 0} for p, d in zip(places, far, strict=True)]
    groups = Records(rows, ("group", "image", "distance", "center"))
    text = gallery_page(gallery, Records([], ()), groups, signature=gallery.metric.signature("cls"))
    (tmp_path / "clusters.html").write_text(text, encoding="utf-8")
    page = visit(tmp_path / "clusters.html")
    page.click('[data-view="clusters"]')
    marked = page.locator(".outlier .see")
    assert marked.count() == 1
    last = page.locator("#clusters li").last
    assert last.locator(".see").get_attribute("data-image") == marked.get_attribute("data-image")
    assert record(tmp_path / "clusters.html")["images"][int(marked.get_attribute("data-image"))]["path"] == places[4]
    assert last.locator(".facts").inner_text().split() == ["distance", "0.9000", "outlier"]
