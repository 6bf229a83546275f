"""The site of the documentation builds strictly, loads nothing from elsewhere, and works from disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import idmetric
from idmetric.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
DOCS = ROOT / "docs"
# Chromium says so of the theme's search box on pages opened at a heading
AUTOFOCUS = "Autofocus processing was blocked because a document's URL has a fragment"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class Loads(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(given.get("src", ""))
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of its sources, so that no generated page lies in docs/ while other tests read it."""
    for module in ("zensical", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="the site needs pip install --group docs")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "repository"
    with FileLock(f"{folder}.lock"):  # one build for all processes of a test run
        if not folder.exists():
            building = Path(f"{folder}.building")
            copy_sources(building)
            build_site(building)
            building.rename(folder)
    return folder / "site"


def copy_sources(folder: Path) -> None:
    """What a build reads: pages without the generated ones and their scripts, settings, images, the package."""
    generated = shutil.ignore_patterns("cli", "*.html")
    shutil.copytree(DOCS, folder / "docs", ignore=generated)
    for name in ("examples", "idmetric"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", folder)


def build_site(folder: Path) -> None:
    """The two commands of the contributing page."""
    for command in (["docs/scripts/make_pages.py"], ["-m", "zensical", "build", "--strict"]):
        done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stderr


@pytest.fixture
def page(site: Path) -> Iterator[Any]:
    """A page of a browser; at the end nothing was fetched from elsewhere, and nothing went wrong."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pages are tested with playwright")
    faults = []
    with playwright.sync_playwright() as driver:
        found = next(filter(None, map(shutil.which, BROWSERS)), driver.chromium.executable_path)
        if not Path(found).is_file():
            pytest.skip("no browser: playwright install chromium")
        browser = driver.chromium.launch(executable_path=found, args=["--headless", "--no-sandbox", "--disable-gpu"])
        opened = browser.new_page()
        opened.on("console", lambda message: None if AUTOFOCUS in message.text else faults.append(message.text))
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("request", lambda request: faults.append(request.url) if request.url.startswith("http") else None)
        yield opened
        browser.close()
    assert not faults


def pages_of(navigation: list[Any]) -> list[str]:
    """The files that a navigation lists, in its order."""
    files = []
    for entry in navigation:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            files += pages_of(value) if isinstance(value, list) else [value]
    return files


def test_the_navigation_lists_every_page_once() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "cli"}
    pages |= {f"reference/cli/idmetric-{command}.md" for command in COMMANDS}
    assert sorted(pages_of(SETTINGS["nav"])) == sorted(pages)


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert not [x for x in loads.found if re.match(r"(?:https?:)?//", x)], page.name
    described = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    for name in set(idmetric.__all__) - {"__version__"}:
        assert re.search(rf"^idmetric\.(?:\w+\.)?{name} py:", described, flags=re.M), (
            f"{name} is on no page of docs/reference/api"
        )
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["index.html", "reference/api/models.html"])
def test_search_finds_pages_opened_from_disk(start: str, site: Path, page: Any) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    page.goto((site / start).as_uri())
    page.locator(".md-search__button").click()
    page.get_by_role("combobox", name="Search").press_sequentially("bursts", delay=20)
    first = page.get_by_role("option").first  # found anew for each step, as the list is drawn again
    playwright.expect(first).to_have_attribute("href", re.compile(r"tutorials/find-duplicates\.html\?h=bursts"))
    first.click()
    page.wait_for_url("**/tutorials/find-duplicates.html*")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(scheme: str, site: Path, page: Any) -> None:
    """Every second page in light; of the others, where colors differ, every second in dark."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    reference = [min((site / "reference" / folder).glob("*.html")) for folder in ("api", "cli")]
    listed = [site / Path(name).with_suffix(".html") for name in pages_of(SETTINGS["nav"])]
    pages = [*(page for page in listed if page.parent.parent.name != "reference"), *reference]
    pages, faults = pages[::2] if scheme == "light" else pages[1::4], {}
    for file in pages:
        page.goto(file.as_uri())
        found = axe.run(page, options={"preload": False}).response["violations"]  # no fetches of stylesheets
        faults[file.relative_to(site).as_posix()] = [
            (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary"))
            for one in found if one["impact"] in ("serious", "critical")
        ]  # fmt: skip
    assert len(faults) > (30 if scheme == "light" else 15)
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.slow
def test_the_sample_of_generators_lists_what_each_method_did(site: Path, page: Any) -> None:
    page.goto((site / "sample-generator.html").as_uri())
    assert page.inner_text(".verdict h2") == "good keeps identity best"
    text = page.text_content("body")
    assert all(name in text for name in ("copy", "drift", "good", "swap", "real same", "drift - good"))
    assert page.locator(".scenes img").count() > 30
    assert "sample-generator.html" in (site / "protocols" / "generator.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_sample_report_has_the_images_and_names_the_copy(site: Path, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / "sample-report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    text = page.inner_text("body")
    shown = {path.name for path in (ROOT / "examples" / "images").glob("*.png")}
    assert all(name in text for name in shown)
    assert "mug_copied.jpg repeats the pixels of photos/mug_a.png" in text
    card = page.locator("li.card", has_text="mug_copied.jpg")
    assert card.locator(".verdict").inner_text() == "copy"
    linking = [path.name for path in site.rglob("*.html") if "sample-report.html" in path.read_text(encoding="utf-8")]
    assert {"score-personalized.html", "index.html"} <= set(linking)
