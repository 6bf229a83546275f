"""Metrics of pairs: the values of their libraries, every pair once, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image

from idmetric.data.manifest import ManifestError
from idmetric.evaluate.protocols.common import baselines, pairwise
from idmetric.evaluate.protocols.common.pairwise import PairScorer
from idmetric.evaluate.protocols.common.scorers import EvalSettings, bind
from idmetric.metric.images import read_image
from tests.evaluate.protocols.parts import Near
from tests.table_parts import a_row, a_table

COUNT = 11


@pytest.fixture
def pictures(tmp_path: Path) -> DataFrame:
    """Eleven different images, smooth and noisy, and a copy of the third under another name."""
    rng = np.random.default_rng(1)
    rows = []
    for k in range(COUNT):
        coarse = Image.fromarray(rng.integers(0, 256, (4 + k, 5, 3), dtype=np.uint8)).resize((90 + k, 70))
        noise = rng.normal(0, 3 * k, (70, 90 + k, 3))
        Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)).save(tmp_path / f"{k}.png")
        rows.append(a_row(f"i{k % 4}", f"{k}.png"))
    (tmp_path / "copy.png").write_bytes((tmp_path / "2.png").read_bytes())
    return a_table([*rows, a_row("i2", "copy.png")], tmp_path)


def scorer_of(pictures: DataFrame, model: Any, **options: Any) -> PairScorer:
    found = bind(pictures, {"m": model}, EvalSettings(**options)).models["m"]
    assert isinstance(found, PairScorer)
    return found


def in_tiles_of(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    monkeypatch.setattr(pairwise, "_TILE_BYTES", images * 16 * 16 * 3 * 8)


@pytest.mark.parametrize("tile", [3, 64])
def test_similarities_over_tiles_are_those_of_each_pair(
    pictures: DataFrame, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tiles_of(monkeypatch, tile)
    found = scorer_of(pictures, Near()).matrix(range(COUNT + 1), range(COUNT + 1))
    pixels = [np.asarray(read_image(pictures["path"][row]).resize((16, 16))) / 255 for row in range(COUNT + 1)]
    expected = [[1 - np.abs(x - y).mean() for y in pixels] for x in pixels]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("linear", [True, False])
def test_lpips_over_tiles_is_that_of_its_package(
    pictures: DataFrame, linear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lpips = pytest.importorskip("lpips")
    monkeypatch.setattr(pairwise, "_TILE_BYTES", 2**24)
    torch.manual_seed(0)
    network = lpips.LPIPS(net="squeeze", lpips=linear, pretrained=False, pnet_rand=True, verbose=False)
    model = baselines.Lpips("cpu", network)
    rows = [0, 4, 9, 10, 11]
    found = scorer_of(pictures, model).pairs(rows, rows[::-1])
    x = torch.stack([model.prepare(read_image(pictures["path"][r]), None) for r in rows]).float() / 127.5 - 1
    with torch.no_grad():
        expected = 1 - network(x, x.flip(0)).flatten()
    np.testing.assert_allclose(found, expected.double().numpy(), rtol=0, atol=2e-6)
    assert np.ptp(found) > 1e-3


def test_each_image_is_decoded_once_and_each_pair_compared_once(
    pictures: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tiles_of(monkeypatch, 4)
    model = Near()
    scorer = scorer_of(pictures, model)
    first = scorer.matrix(range(COUNT + 1), range(COUNT + 1))
    np.testing.assert_array_equal(scorer.matrix([5, 3], [0, 11]), first[np.ix_([5, 3], [0, 11])])
    np.testing.assert_array_equal(scorer.pairs([7, 2], [1, 11]), first[[7, 2], [1, 11]])
    assert model.prepared == COUNT + 1  # each file once, also the one that repeats another
    assert model.compared == COUNT * (COUNT + 1) // 2
    assert model.seen <= 2 * COUNT + 2  # three tiles of four, of which two are held


def test_too_many_pairs_are_refused_before_they_are_compared(pictures: DataFrame) -> None:
    model = Near()
    scorer = scorer_of(pictures, model, max_pairs=30)
    with pytest.raises(ValueError, match=r"66 pairs are more than --max-pairs .* allows, 30"):
        scorer.matrix(range(COUNT), range(COUNT))
    scorer.matrix(range(7), range(7))  # 28 pairs
    with pytest.raises(ValueError, match="--max-pairs"):  # in all
        scorer.pairs([8, 8, 8], [0, 1, 2])
    assert model.compared == 28


def test_a_similarity_that_is_not_finite_is_an_error(pictures: DataFrame) -> None:
    class Broken(Near):
        def between(self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> torch.Tensor:
            return super().between(a, b).fill_(float("nan"))

    with pytest.raises(ValueError, match="near gave a similarity that is not finite"):
        scorer_of(pictures, Broken()).matrix(range(4), range(4))


def test_all_unreadable_images_are_named(pictures: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "4.png").write_bytes(b"no image")
    (tmp_path / "6.png").unlink()
    with pytest.raises(ManifestError, match=r"6\.png"):
        scorer_of(pictures, Near())
    (tmp_path / "6.png").write_bytes(b"no image either")
    with pytest.raises(ManifestError, match=r"2 images cannot be used(.|\n)*4\.png(.|\n)*6\.png"):
        scorer_of(pictures, Near())
