"""The site of the documentation builds strictly, loads nothing from elsewhere, and works from disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import idmetric

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
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
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="the site needs pip install --group docs")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "site"
    with FileLock(f"{folder}.lock"):  # one build for all processes of a test run
        if not folder.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", f"{folder}.building"]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
            assert done.returncode == 0, done.stderr
            Path(f"{folder}.building").rename(folder)
    return folder


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
        opened.on("console", lambda message: faults.append(message.text))
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("request", lambda request: faults.append(request.url) if request.url.startswith("http") else None)
        yield opened
        browser.close()
    assert not faults


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
    page.goto((site / start).as_uri())
    page.keyboard.press("/")
    page.keyboard.type("bursts", delay=20)
    first = page.locator(".md-search-result__link").first  # found anew for each step, as the list is drawn again
    assert "tutorials/find-duplicates.html" in first.get_attribute("href")
    first.click()
    page.wait_for_url("**/tutorials/find-duplicates.html*")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(scheme: str, site: Path, page: Any) -> None:
    """Every page in light; in dark, where only colors differ, every fourth."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    reference = [min((site / "reference" / folder).glob("*.html")) for folder in ("api", "cli")]
    pages = [*sorted(set(site.rglob("*.html")) - set(site.glob("reference/*/*.html"))), *reference]
    pages, faults = pages if scheme == "light" else pages[::4], {}
    for file in pages:
        if file.name == "404.html":  # which a server shows for any address, so that its links are absolute
            continue
        page.goto(file.as_uri())
        found = axe.run(page, options={"preload": False}).response["violations"]  # no fetches of stylesheets
        faults[file.name] = [
            (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary"))
            for one in found if one["impact"] in ("serious", "critical")
        ]  # fmt: skip
    assert len(faults) > (40 if scheme == "light" else 10)
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.slow
def test_the_sample_of_generators_lists_what_each_method_did(site: Path, page: Any) -> None:
    page.goto((site / "sample-generator.html").as_uri())
    assert page.inner_text(".verdict h2") == "good keeps identity best"
    text = page.text_content("body")
    assert all(name in text for name in ("copy", "drift", "good", "swap", "real SCR", "drift - good"))
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
    page.click("#copies summary")
    assert "mug_copied.jpg repeats the pixels of photos/mug_a.png" in page.inner_text("#copies")
    linking = [path.name for path in site.rglob("*.html") if "sample-report.html" in path.read_text(encoding="utf-8")]
    assert {"score-personalized.html", "index.html"} <= set(linking)
