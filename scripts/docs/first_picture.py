"""Draw docs/images/first.webp, at the top of the README: the pictures of the demo, each with its score and answer.

python scripts/docs/first_picture.py
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

import idmetric
from idmetric.scoring.demo import REFERENCE

FILE = Path(__file__).resolve().parents[2] / "docs" / "images" / "first.webp"
SIDE, GAP, BAR = 256, 16, 44
COLORS = {"same": (0, 120, 90), "unsure": (150, 105, 0), "different": (175, 45, 30)}


def main() -> None:
    """Score and draw the pictures."""
    metric = idmetric.IDSim("tiny", device="cpu")
    calibration = metric.calibration
    assert calibration is not None
    paths = idmetric.demo_images()

    picture = Image.new("RGB", ((SIDE + GAP) * len(paths) - GAP, SIDE + BAR), (255, 255, 255))
    pen = ImageDraw.Draw(picture)
    for number, (name, path) in enumerate(paths.items()):
        left = number * (SIDE + GAP)
        picture.paste(Image.open(path).convert("RGB").resize((SIDE, SIDE)), (left, 0))
        caption, color = "reference", (40, 40, 40)
        if name != REFERENCE:
            distance = metric(paths[REFERENCE], path).item()
            answer = calibration.answer(distance)
            caption, color = f"{distance:.2f}  {answer}", COLORS[answer]
        pen.text((left + SIDE / 2, SIDE + BAR / 2), caption, fill=color, font_size=24, anchor="mm")
    picture.save(FILE, quality=88, method=6)


if __name__ == "__main__":
    main()
