"""A browser without a window for the tests of pages, and what they ask of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update"]  # fmt: skip


@pytest.fixture(scope="module")  # a driver that stays would keep its event loop running in other tests
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pages are tested with playwright: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        found = next(filter(None, map(shutil.which, BROWSERS)), driver.chromium.executable_path)
        if not Path(found).is_file():
            pytest.skip(
                f"no browser: none of {', '.join(BROWSERS)}, nor playwright's own (playwright install chromium)"
            )
        chromium = driver.chromium.launch(executable_path=found, args=OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Opens a file; at the end nothing was fetched, nothing went wrong and no dialog of a name's script came up."""
    contexts, faults = [], []

    def call(path: Path, width: int = 1200, height: int = 900, **options: Any) -> Any:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, reduced_motion="reduce", **options)  # no colors on their way
        contexts.append(context)
        page = context.new_page()
        own = path.as_uri()
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: None if r.url == own or r.url.startswith(("data:", "blob:")) else
                faults.append(f"request: {r.url}"))  # fmt: skip
        page.goto(own)
        return page

    yield call
    for context in contexts:
        context.close()
    assert faults == []


def faults_of(page: Any) -> list[str]:
    """What axe-core finds seriously wrong with a page's accessibility."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0].get('failureSummary', '')}"
        for one in found if one["impact"] in ("serious", "critical")
    ]  # fmt: skip


def overflows(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))
