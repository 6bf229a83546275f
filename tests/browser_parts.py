"""What tests of pages ask of a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Open = Callable[..., Any]


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
