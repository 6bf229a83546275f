"""Small pictures, by which copies are found."""

from __future__ import annotations

import numpy as np
from PIL import Image

from idmetric.metric.images import SIZE, small_picture


def test_the_small_picture_of_a_large_one_is_nearly_that_of_all_pixels() -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((1800, 1300))
    grainy = np.asarray(coarse) + rng.normal(0, 4, (1300, 1800, 1))
    picture = Image.fromarray(grainy.clip(0, 255).astype(np.uint8))
    expected = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.LANCZOS)).astype(int)
    assert np.abs(small_picture(picture) - expected).max() <= 3
