"""Draw docs/images/match-states.webp, the picture of docs/use/match.md: one panel for each state of a subject.

python scripts/docs/match_states.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from idmetric.data.painter import Badge, draw, random_badge, random_context

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SIDE, GAP, LINE = 120, 10, 26
ANN, REX, STRANGER = (random_badge(np.random.default_rng(seed)) for seed in (1, 2, 3))
BLEND = Badge(ANN.corners, REX.emblem_corners, ANN.body, REX.emblem)
COLORS = {"ann": (0, 120, 110), "rex": (190, 60, 20), "": (110, 110, 110)}
# title -> what the two halves of a picture show, and the subject of each region
PANELS = {
    "ann and rex: matched": [(ANN, "ann"), (REX, "rex")],
    "rex: missing": [(ANN, "ann"), None],
    "ann: doubled": [(ANN, "ann"), (ANN, "ann")],
    "ann and rex: blended": [(BLEND, "ann"), None],
    "a third region: surplus": [(ANN, "ann"), (STRANGER, "")],
}


def main() -> None:
    """Draw the picture."""
    width, height = 2 * SIDE, SIDE
    picture = Image.new("RGB", ((width + GAP) * 3 - GAP, 2 * (height + LINE + GAP)), (255, 255, 255))
    pen = ImageDraw.Draw(picture)
    for number, (title, halves) in enumerate(PANELS.items()):
        left = (number % 3) * (width + GAP)
        top = (number // 3) * (height + LINE + GAP)
        pen.text((left, top + 6), title, fill=(30, 30, 30), font_size=14)
        pen.rectangle((left, top + LINE, left + width, top + LINE + height), fill=(225, 225, 225))
        for half, content in enumerate(halves):
            if content is None:
                continue
            badge, subject = content
            context = random_context(np.random.default_rng(10 * number + half))
            x, y = left + half * SIDE, top + LINE
            picture.paste(draw(badge, context, SIDE)[0], (x, y))
            pen.rectangle((x, y, x + SIDE - 1, y + SIDE - 1), outline=COLORS[subject], width=4)
    picture.save(IMAGES / "match-states.webp", quality=85)


if __name__ == "__main__":
    main()
