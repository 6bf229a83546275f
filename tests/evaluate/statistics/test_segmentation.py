"""Statistics of masks and heatmaps, against slow loops, scikit-learn, and COCO's own code."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from idmetric.evaluate.statistics.segmentation import (
    best_iou,
    iou_curve,
    mask_f1,
    mask_map,
    otsu,
    overlap,
    pointing,
    shared_threshold,
    subject_ious,
)


def iou(predicted: np.ndarray, truth: np.ndarray) -> float:
    intersection, union = overlap(predicted, truth)
    return intersection / union


def drawn(seed: int, ties: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """A heatmap of any sign, with ties, and a mask."""
    rng = np.random.default_rng(seed)
    heat = rng.normal(size=(7, 9)) - 0.5
    truth = rng.random((7, 9)) < 0.3
    truth[0, 0] = True
    heat += truth
    return heat.round(1) if ties else heat, truth


@pytest.mark.parametrize("seed", range(5))
def test_iou_is_scikit_learns_jaccard_index(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    heat, truth = drawn(seed)
    assert iou(heat > 0, truth) == pytest.approx(metrics.jaccard_score(truth.ravel(), heat.ravel() > 0))
    assert overlap(heat > 0, truth) == (((heat > 0) & truth).sum(), ((heat > 0) | truth).sum())
    assert iou(truth, truth) == 1
    assert iou(~truth, truth) == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_best_threshold_is_that_of_a_loop_over_all(seed: int) -> None:
    heat, truth = drawn(seed)
    every = np.unique(heat)
    slow = [iou(heat >= t, truth) for t in every]
    threshold, value = best_iou(heat, truth)
    assert value == pytest.approx(max(slow))
    assert threshold == max(t for t, v in zip(every, slow, strict=True) if v == max(slow))
    assert iou(heat >= threshold, truth) == pytest.approx(value)


def test_one_threshold_for_all_images_is_that_of_a_loop() -> None:
    maps = [drawn(s) for s in range(6)]
    thresholds = np.linspace(-3, 3, 61)  # beyond all values too
    curves = np.stack([iou_curve(heat, truth, thresholds) for heat, truth in maps])
    slow = np.array([[((h >= t) & m).sum() / ((h >= t) | m).sum() for t in thresholds] for h, m in maps])
    assert curves == pytest.approx(slow)
    threshold, value = shared_threshold(curves, thresholds)
    assert value == pytest.approx(slow.mean(0).max())
    assert slow[:, thresholds == threshold].mean() == pytest.approx(value)
    assert value <= np.mean([best_iou(*one)[1] for one in maps])
    shuffled = np.random.default_rng(0).permutation(61)
    assert shared_threshold(curves[:, shuffled], thresholds[shuffled]) == pytest.approx((threshold, value))


def test_pointing_asks_for_the_hottest_pixel_and_ties_lose() -> None:
    truth = np.array([[True, True], [False, False]])
    assert pointing([[0.2, 0.9], [0.1, 0.3]], truth)
    assert not pointing([[0.2, 0.3], [0.1, 0.9]], truth)
    assert pointing([[0.9, 0.9], [0.1, 0.3]], truth)
    assert not pointing([[0.9, 0.1], [0.9, 0.3]], truth)
    assert not pointing(np.zeros((2, 2)), truth)


@pytest.mark.parametrize("seed", range(4))
def test_otsu_parts_values_as_a_loop_over_thresholds(seed: int) -> None:
    heat, _ = drawn(seed, ties=False)
    count, edges = np.histogram(heat, 256)
    middle = (edges[1:] + edges[:-1]) / 2
    binned = np.repeat(middle, count)
    between = {
        t: (binned <= t).mean() * (binned > t).mean() * (binned[binned <= t].mean() - binned[binned > t].mean()) ** 2
        for t in middle[:-1]
    }
    found = otsu(heat)
    assert between[found] == pytest.approx(max(between.values()))
    assert otsu(np.full((3, 3), 0.5)) == 0.5


def test_persams_miou_takes_a_subjects_pixels_together() -> None:
    found = subject_ious([1, 3, 5], [10, 10, 10], ["b", "b", "a"])
    assert found == pytest.approx([0.5, 4 / 20])


# Many images


@pytest.mark.parametrize("seed", range(3))
def test_map_is_cocos(seed: int) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    coded = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(seed)
    truth, found, ious, scores, present = [], [], [], rng.random(30), rng.random(30) < 0.5
    present[0] = True
    for k in range(30):
        mask, guess = np.zeros((2, 120, 120), dtype=np.uint8, order="C")
        top, left = rng.integers(0, 15, 2)
        mask[5:105, 5:105] = 1
        guess[5 + top : 105, 5 + left : 105 + left] = 1
        ious.append(iou(mask, guess) if present[k] else 0.0)
        if present[k]:
            truth.append({"id": k + 1, "image_id": k, "category_id": 1, "iscrowd": 0, "area": 10_000,
                          "segmentation": coded.encode(np.asfortranarray(mask))})  # fmt: skip
        found.append({"image_id": k, "category_id": 1, "score": float(scores[k]),
                      "segmentation": coded.encode(np.asfortranarray(guess))})  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO()
        data.dataset = {
            "info": {}, "annotations": truth, "categories": [{"id": 1}],
            "images": [{"id": k, "height": 120, "width": 120} for k in range(30)],
        }  # fmt: skip
        data.createIndex()
        run = evaluation.COCOeval(data, data.loadRes(found), "segm")
        run.evaluate()
        run.accumulate()
        run.summarize()
    assert mask_map(ious, scores, present) == pytest.approx(run.stats[0])
    precision, recall = run.eval["precision"][:, :, 0, 0, 2], run.eval["recall"][:, 0, 0, 2]
    f1 = 2 * precision * recall[:, None] / (precision + recall[:, None] + 1e-6)
    assert mask_f1(ious, scores, present) == pytest.approx(f1.mean(), abs=1e-5)


def test_perfect_masks_score_one_and_ties_lose() -> None:
    present = np.array([True, True, False])
    for measure in (mask_map, mask_f1):
        assert measure([1, 1, 0], [0.9, 0.8, -3.0], present) == pytest.approx(1)
        assert measure([1, 1, 0], [-np.inf] * 3, present) == 0
        assert measure([0, 0, 0], [0.9, 0.8, -3.0], present) == 0
    assert mask_map([1, 1, 0], [0.9, 0.5, 0.5], present) == pytest.approx(
        mask_map([1, 0, 1], [0.9, 0.6, 0.5], [1, 0, 1])
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: overlap(np.full((2, 2), 0.4), np.ones((2, 2))), "booleans"),
        (lambda: best_iou([[np.nan]], [[1]]), "finite"),
        (lambda: pointing([[np.nan]], [[0]]), "finite"),
        (lambda: mask_map([0.5], [0.1], [False]), "shows the subject"),
    ],
)
def test_what_cannot_be_measured_is_refused(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
