"""The pictures of the report in docs/images: the sample page of scores in light, in dark, and on a phone.

python docs/scripts/screenshots.py      needs playwright, and a browser of its own or chromium
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from sample_report import report

IMAGES = Path(__file__).resolve().parents[1] / "images"
VIEWS = {"report-light": ("light", 1200, 966), "report-dark": ("dark", 1200, 966), "report-phone": ("light", 390, 844)}


def main() -> None:
    """Write the three pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder, "report.html")
        page_file.write_text(report(), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        for name, (scheme, width, height) in VIEWS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.goto(page_file.as_uri())
            if name == "report-phone":
                page.locator("#p2-1").evaluate("card => card.scrollIntoView()")
            page.wait_for_timeout(300)  # pictures and colors settle
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.save(IMAGES / f"{name}.webp", quality=70, method=6)
        browser.close()


if __name__ == "__main__":
    main()
