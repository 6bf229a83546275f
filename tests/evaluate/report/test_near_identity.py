from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from pandas import DataFrame
from PIL import Image
from sklearn.decomposition import KernelPCA

from idmetric import NearID
from idmetric.evaluate.report import near_identity as figures
from idmetric.evaluate.report.attention import attention_maps
from idmetric.metric.heatmap import overlay
from idmetric.metric.images import read_image
from tests.metric.models.test_nearid import SMALL, official
from tests.table_parts import a_row, a_table

EXAMPLES = Path(__file__).parents[3] / "examples" / "images"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved."""
    seen: list[Any] = []
    save = figures.save_figure
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: (seen.append(figure), save(figure, path)))
    return seen


def manifest(folder: Path) -> DataFrame:
    """Identities 0 to 3 with two views each and a distractor of each view; the last two lack a view or a distractor."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(6):
        for view in range(1 if k == 4 else 2):
            name = f"{k}/{view}"
            base = {"background": name, "parameters": {"x_view": view + 1}}
            rows.append(a_row(identity=str(k), id=name, **base))
            if k != 5:
                rows.append(a_row(identity=f"{name}/near", id=f"{name}/near", role="distractor", parent=name))
    found = []
    for number, row in enumerate(rows):
        path = folder / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8)).save(path)
        found.append({**row, "path": str(path)})
    return a_table(found)


def test_circles_are_views_and_crosses_their_distractors(tmp_path: Path, drawn: list[Any]) -> None:
    official(tmp_path / "model", SMALL)
    metric = NearID(tmp_path / "model", device="cpu")
    data = manifest(tmp_path)
    figures.draw_near_identity({"a": metric, "b": metric}, data, tmp_path / "f.png", identities=4)
    [figure] = drawn
    left, right = figure.axes
    assert [left.get_title(), right.get_title()] == ["a", "b"]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["S1", "S2", "S3", "S4"]

    # in the manifest, views and distractors take turns
    order = [row for k in range(4) for row in (4 * k, 4 * k + 2, 4 * k + 1, 4 * k + 3)]
    vectors = metric.embed([read_image(data["path"][row]) for row in order]).cls.double().numpy()
    places = KernelPCA(2, kernel="cosine").fit_transform(vectors)
    clouds = [c for c in left.collections if isinstance(c, PathCollection)]
    np.testing.assert_allclose(np.vstack([c.get_offsets() for c in clouds]), places, atol=1e-6)
    circles = {len(c.get_paths()[0].vertices) > 10 for c in clouds[0::2]}  # a circle is a path of many points
    crosses = {len(c.get_paths()[0].vertices) > 10 for c in clouds[1::2]}
    assert (circles, crosses) == ({True}, {False})
    with Image.open(tmp_path / "f.png") as image:
        assert image.width > image.height

    with pytest.raises(ValueError, match="has 4 identities with two views and a distractor, not 7"):
        figures.draw_near_identity({"a": metric}, data, tmp_path / "g.png")


def test_attention_is_drawn_over_each_image_for_each_model(tmp_path: Path, drawn: list[Any]) -> None:
    official(tmp_path / "a", SMALL)
    official(tmp_path / "b", SMALL, seed=1)
    models = {name: NearID(tmp_path / name, device="cpu") for name in "ab"}
    images = {"anchor": EXAMPLES / "mug_a.png", "other": EXAMPLES / "box_a.png"}
    figures.draw_attention(models, images, tmp_path / "f.svg")
    [figure] = drawn
    assert [axes.get_title() for axes in figure.axes[:2]] == ["anchor", "other"]
    assert [axes.get_ylabel() for axes in figure.axes[2::2]] == ["a", "b"]
    shown = [axes.get_images()[0].get_array() for axes in figure.axes]
    for row, model in enumerate(models.values(), 1):
        for column, path in enumerate(images.values()):
            [heat] = attention_maps(model, path)
            np.testing.assert_array_equal(shown[2 * row + column], np.asarray(overlay(path, heat)))
    assert not np.array_equal(shown[2], shown[4])  # two heads look at two places
    first = (tmp_path / "f.svg").read_bytes()
    figures.draw_attention(models, images, tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_bytes() == first
    assert torch.is_grad_enabled()
