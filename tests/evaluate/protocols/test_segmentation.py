"""The protocol `segmentation` against a slow computation, and pictures of heatmaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pandas import DataFrame
from PIL import Image

from idmetric import IDSim
from idmetric.data.manifest import checked
from idmetric.evaluate.protocols import segmentation_idsim_table2c as segmentation
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.segmentation import persam
from idmetric.evaluate.protocols.segmentation.search import Segmentation, tasks
from idmetric.evaluate.statistics import segmentation as measures
from idmetric.metric.heatmap import colors, heatmaps, overlay
from idmetric.stream import Look
from tests.evaluate.protocols.parts import values
from tests.table_parts import a_row, a_table

PLAIN = EvalSettings(bootstrap=0, workers=1)


def make(folder: Path, **columns: Any) -> DataFrame:
    """Four subjects: squares of their own color on noise, three images each of different sizes, with masks."""
    rows = []
    for k, color in enumerate([(220, 30, 30), (30, 200, 40), (40, 60, 230), (230, 220, 40)]):
        for view in range(3):
            rng = np.random.default_rng([k, view])
            height, width = 64 + 16 * view, 96 - 8 * view
            image = rng.integers(60, 180, (height, width, 3), dtype=np.uint8)
            mask = np.zeros((height, width), dtype=np.uint8)
            top, left = rng.integers(0, 30, 2)
            mask[top : top + 30, left : left + 34] = 255
            image[mask > 0] = color
            name = f"{k}-{view}"
            Image.fromarray(image).save(folder / f"{name}.png")
            Image.fromarray(mask).save(folder / f"{name}-mask.png")
            rows.append(a_row(f"s{k}", f"{name}.png", id=name, mask=f"{name}-mask.png", **columns))
    return a_table(rows, folder)


@pytest.fixture
def scenes(tmp_path: Path) -> DataFrame:
    return make(tmp_path)


def row(result: Result, method: str = "prior") -> dict[str, Value]:
    return values(result, method=method)


def test_the_priors_numbers_are_those_of_a_slow_computation(scenes: DataFrame, metric: IDSim) -> None:
    [result] = segmentation.run(scenes, {"m": metric}, PLAIN)
    path = dict(zip(scenes["id"], scenes["path"], strict=True))
    mask = {name: np.array(Image.open(file)) > 0 for name, file in zip(scenes["id"], scenes["mask"], strict=True)}

    def boxed(of: np.ndarray) -> np.ndarray:
        y, x = np.nonzero(of)
        full = np.zeros_like(of)
        full[y.min() : y.max() + 1, x.min() : x.max() + 1] = True
        return full

    def mean(image: str, of: np.ndarray) -> torch.Tensor:
        found = metric.embed(path[image], masks=boxed(of), outside="keep")
        assert found.patches is not None
        assert found.weights is not None
        return (F.normalize(found.patches, dim=-1) * found.weights[..., None]).sum(1)

    pointing, best, cut, aps, f1s, curves = [], [], [], [], [], []
    for k in range(4):
        ious, scores, present = [], [], []
        reference = f"{k}-0"
        for image in (f"{j}-{view}" for j in range(4) for view in (1, 2)):
            heat = heatmaps(metric, path[reference], path[image], masks=mask[reference])[0].double().numpy()
            guess, own = heat > measures.otsu(heat), image.startswith(f"{k}-")
            truth = mask[image] if own else np.zeros_like(mask[image])
            present.append(own)
            ious.append((guess & truth).sum() / (guess | truth).sum())
            scores.append(float(F.cosine_similarity(mean(image, guess), mean(reference, mask[reference]))))
            if own:
                pointing.append(measures.pointing(heat, truth))
                best.append(measures.best_iou(heat, truth)[1])
                cut.append(ious[-1])
                curves.append(
                    [((heat >= t) & truth).sum() / ((heat >= t) | truth).sum() for t in np.linspace(-1, 1, 2001)]
                )
        aps.append(measures.mask_map(ious, scores, present))
        f1s.append(measures.mask_f1(ious, scores, present))
    found = row(result)
    assert found["pointing"].value == pytest.approx(np.mean(pointing))
    assert found["IoU best"].value == pytest.approx(np.mean(best), abs=3e-3)
    assert found["IoU one"].value == pytest.approx(np.mean(curves, 0).max(), abs=3e-3)
    assert found["IoU"].value == pytest.approx(np.mean(cut), abs=5e-3)
    assert found["mAP"].value == pytest.approx(np.mean(aps), abs=0.02)
    assert found["F1"].value == pytest.approx(np.mean(f1s), abs=0.02)
    assert (found["IoU"].count, found["mAP"].count) == (8, 4)
    items = result.items["prior"]
    assert len(items["score"]) == 4 * 8
    assert sum(items["present"]) == 8


def test_a_perfect_sam_scores_one(scenes: DataFrame, metric: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    class Oracle:
        """Finds the square of every image by its mask, for any subject."""

        name = "oracle"
        revision = "1"

        def encode(self, image: Any) -> Any:
            width, height = Image.open(image).size
            return type("Seen", (), {"size": (height, width), "source": str(image)})

        def decode(self, seen: Any, heat: torch.Tensor) -> Any:
            assert heat.shape == seen.size
            return np.array(Image.open(seen.source.replace(".png", "-mask.png"))) > 0

    monkeypatch.setattr(persam, "PerSAM", lambda source, device: Oracle())
    [result] = segmentation.run(scenes, {"m": metric}, PLAIN, segmentation.SegmentationOptions(sam="oracle"))
    found = row(result, "persam")
    assert found["IoU"].value == found["mIoU"].value == 1
    assert 0 < found["mAP"].value <= 1  # how well its masks' scores tell subjects apart
    assert result.settings["sam"] == "oracle@1"


def test_table_2c_stands_beside_pods_alone(tmp_path: Path, metric: IDSim) -> None:
    parts = ["train", "test_dense", "test"] * 4
    data = checked(make(tmp_path, dataset="pods").assign(x_part=parts))
    line = {"subject": "a", "present": True, "score": 0.5, "iou": 0.7, "intersection": 7, "union": 10}
    found = Segmentation([line])
    for label, printed in (
        ("IDSim:dinov3_vitl16", (0.436, 0.409)),
        ("Backbone:vit_large_patch16_dinov3.lvd1689m", (0.153, 0.18)),
        ("IDSim:tiny", (None, None)),
    ):
        shown = segmentation._row("persam", found, PLAIN, label)
        assert tuple(v.paper for v in (shown["mAP"], shown["F1"]) if isinstance(v, Value)) == printed
        elsewhere = segmentation._row("persam", found, PLAIN, "")
        assert all(v.paper is None for v in elsewhere.values() if isinstance(v, Value))
    [result] = segmentation.run(data, {"m": metric}, PLAIN)
    assert set(result.items["prior"]["image"]) == {f"{k}-1" for k in range(4)}  # test_dense, not test


def test_drawn_others_are_others_and_follow_the_seed(scenes: DataFrame) -> None:
    looked, _ = tasks(scenes, PLAIN, 3)
    again, _ = tasks(scenes, PLAIN, 3)
    other, _ = tasks(scenes, EvalSettings(seed=1), 3)
    assert looked == again != other
    names = scenes["identity"].tolist()
    for task in looked:
        assert len(task.distractors) == 3
        assert all(names[r] != task.subject for r in task.distractors)
        assert all(names[r] == task.subject for r in (task.reference, *task.targets))
        assert task.reference not in task.targets


def test_left_out_identities_are_noted_and_impossible_requests_refused(scenes: DataFrame, metric: IDSim) -> None:
    masks = [None if i == "0-1" or i.startswith("3-") else m for i, m in zip(
        scenes["id"].tolist(), scenes["mask"].tolist(), strict=True)]  # fmt: skip
    [result] = segmentation.run(checked(scenes.assign(mask=masks)), {"m": metric}, PLAIN)
    assert result.notes == ["1 identities lack a reference or a target with a mask: s3"]
    assert row(result)["pointing"].count == 5
    with pytest.raises(ValueError, match="no identity has a reference"):
        segmentation.run(checked(scenes.assign(mask=None)), {"m": metric}, PLAIN)
    with pytest.raises(ValueError, match="models without patches: hsv"):
        segmentation.run(scenes, {"hsv": open_model("hsv")}, PLAIN)
    with pytest.raises(ValueError, match="whole images"):
        segmentation.run(scenes, {"m": metric}, EvalSettings(look=Look(True)))


def test_overlays_show_heat() -> None:
    assert colors(np.array([[0.0, 1.0]])).tolist() == [[[68, 1, 84], [253, 231, 37]]]
    assert colors(np.array([[0.0, 0.5]]), 0, 1).tolist()[0][1] == [33, 145, 140]
    picture = Image.new("RGB", (10, 10), (100, 100, 100))
    drawn = np.asarray(overlay(picture, np.zeros((5, 5))))
    assert drawn.shape == (5, 5, 3)
    assert np.abs(drawn - (0.4 * np.full(3, 100) + 0.6 * np.array([68, 1, 84]))).max() <= 1
    with pytest.raises(ValueError, match="finite"):
        overlay(picture, np.full((2, 2), np.nan))
