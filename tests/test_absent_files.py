"""A file that does not exist is refused before any image is embedded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idmetric
from idmetric import Embedder, IDSim, ImageReadError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mugs")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), np.uint8)
    for name, image in zip(("mug_front.png", "mug_side.png"), pixels, strict=True):
        Image.fromarray(image).save(folder / name)
    return folder


@pytest.mark.parametrize(
    "call",
    [
        lambda metric, good, absent: metric(good, absent),
        lambda metric, good, absent: metric(good, [good, absent]),
        lambda metric, good, absent: metric.pairwise(good, absent),
        lambda metric, good, absent: metric.similarity(good, absent),
        lambda metric, good, absent: metric.embed([good, absent], batch_size=1),
        lambda metric, good, absent: idmetric.score(metric, good, [good, absent], batch_size=1),
        lambda metric, good, absent: idmetric.score_pairs(metric, [(good, good), (good, absent)], batch_size=1),
        lambda metric, good, absent: idmetric.score_pairs(metric, [(good, good, None, absent)], batch_size=1),
        lambda metric, good, absent: idmetric.match(metric, {"mug": good}, [good, absent]),
        lambda metric, good, absent: idmetric.match(metric, {"mug": good, "cup": absent}, good),
    ],
)
def test_an_absent_file_is_found_before_the_model_embeds_anything(
    call: Callable[[Embedder, str, str], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = IDSim("tiny", device="cpu")

    def refuse(*_: Any) -> None:
        raise AssertionError("an image was embedded")

    monkeypatch.setattr(metric, "embed_pixels", refuse)
    with pytest.raises(ImageReadError, match="the file does not exist"):
        call(metric, str(folder / "mug_front.png"), str(folder / "absent.png"))


def test_images_that_are_skipped_are_not_looked_for_first(folder: Path) -> None:
    metric = IDSim("tiny", device="cpu")
    scores = idmetric.score(
        metric, folder / "mug_front.png", [folder / "mug_side.png", folder / "absent.png"], on_error="skip"
    )
    assert (len(scores), len(scores.skipped)) == (1, 1)
