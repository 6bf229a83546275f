"""Segmentation of a subject: masks and heatmaps against true masks, and the mAP and F1 of ID-Sim's Table 2c.

Heatmaps may have any sign; hotter = more surely the subject. A subject is looked for in many images, some of which do
not show it, and each image gets one mask with a confidence (or none), as in PerSAM (Zhang et al., ICLR 2024). ID-Sim
does not say how its Table 2c is computed. Its data, PODS, was published with code for such masks (Sundaram et al.,
"Personalized Representation from Personalized Generation", ICLR 2025, of which an author wrote ID-Sim too), and
`mask_map` and `mask_f1` are that code's numbers; that the table's are the same is inferred. Its F1 differs from the
usual one, the highest over all scores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.checks import numbers, truths
from idmetric.metric.ties import comparable

Array = NDArray[np.float64]
COCO_IOUS = tuple(np.linspace(0.5, 0.95, 10).round(2).tolist())  # at least so much overlap is a hit
_RECALLS = np.linspace(0, 1, 101)  # where COCO reads precision
_BINS = 256  # of Otsu's histogram


# Masks


def overlap(predicted: ArrayLike, truth: ArrayLike) -> tuple[int, int]:
    """Pixels of the intersection and of the union of two masks, both bool (H, W)."""
    a = truths("predicted", predicted)
    b = truths("truth", truth)
    intersection = int((a & b).sum())
    union = int((a | b).sum())
    return intersection, union


def subject_ious(intersections: ArrayLike, unions: ArrayLike, subjects: ArrayLike) -> Array:
    """IoU of each subject, its images' pixels taken together; their mean is PerSAM's mIoU.

    Args:
        intersections, unions: (N,), of each image, see `overlap`. subjects: (N,), of each image.

    Returns:
        (S,), in the order in which `numpy.unique` gives the subjects.
    """
    _, number = np.unique(subjects, return_inverse=True)
    intersection_of_subject = np.bincount(number, intersections)
    ious: Array = intersection_of_subject / np.bincount(number, unions)
    return ious


# Heatmaps


def pointing(heat: ArrayLike, truth: ArrayLike) -> bool:
    """Whether the hottest pixel is on the subject (the pointing game); of several, whether all of them are.

    Args:
        heat: (H, W). truth: bool (H, W).
    """
    h = numbers("heat", heat, 2)
    on_subject = truths("truth", truth)
    is_hottest = h == h.max()
    return bool(on_subject[is_hottest].all())


def best_iou(heat: ArrayLike, truth: ArrayLike) -> tuple[float, float]:
    """The threshold of the mask `heat >= threshold` with the highest IoU, and that IoU; of several, the highest.

    An oracle for each image: the best cut of its heatmap. Arguments as in `pointing`.
    """
    thresholds = np.unique(numbers("heat", heat, 2))
    curve = iou_curve(heat, truth, thresholds)
    return shared_threshold([curve], thresholds)


def iou_curve(heat: ArrayLike, truth: ArrayLike, thresholds: ArrayLike) -> Array:
    """IoU (K,) of the masks `heat >= threshold`, at thresholds (K,) in any order; otherwise as `pointing`."""
    h = numbers("heat", heat, 2).astype(np.float64)
    pixels = np.sort(h, axis=None)
    subject = np.sort(h[truths("truth", truth)])

    # pixels at or above each threshold
    predicted = pixels.size - np.searchsorted(pixels, thresholds)
    hits = subject.size - np.searchsorted(subject, thresholds)
    union = predicted + subject.size - hits
    curve: Array = hits / union
    return curve


def shared_threshold(curves: ArrayLike, thresholds: ArrayLike) -> tuple[float, float]:
    """The one threshold with the highest mean IoU over images, and that mean; of several, the highest.

    It is chosen on the images that it is measured on, which raises the mean a little.

    Args:
        curves: (N, K), `iou_curve` of each image. thresholds: (K,).
    """
    means = np.asarray(curves).mean(axis=0, dtype=np.float64)
    levels = np.asarray(thresholds)
    order = np.lexsort((levels, means))
    best = order[-1]
    return float(levels[best]), float(means[best])


def otsu(heat: ArrayLike) -> float:
    """Otsu's threshold: the one that parts the values into two classes of greatest variance between them.

    PODS's code cuts the similarity map with it if there is no segmentation model. The histogram has 256 bins from the
    lowest to the highest value; the threshold is the middle of the lower class's last bin, for masks
    `heat > threshold`.

    Args:
        heat: (H, W).
    """
    h = numbers("heat", heat, 2).astype(np.float64)
    if h.min() == h.max():
        return float(h.max())  # nothing stands out
    counts, edges = np.histogram(h, _BINS)
    middles = (edges[:-1] + edges[1:]) / 2

    # the classes of each cut; both hold a pixel, since the lowest and the highest bin do
    below = np.cumsum(counts)[:-1]
    above = h.size - below
    sums = np.cumsum(counts * middles)
    mean_below = sums[:-1] / below
    mean_above = (sums[-1] - sums[:-1]) / above
    between_classes = below * above * (mean_below - mean_above) ** 2
    return float(middles[between_classes.argmax()])


# A mask in each of many images


def mask_map(ious: ArrayLike, scores: ArrayLike, present: ArrayLike) -> float:
    """mAP of masks as COCO computes it: interpolated average precision at 101 recalls, averaged over IoU thresholds.

    The thresholds are 0.5, 0.55, ... 0.95. An image's mask is a hit if it overlaps the subject by the IoU threshold;
    masks are ranked by their score. Equal scores: misses come first (COCO takes the order of the images).

    Args:
        ious: (N,), of the mask with the subject's true one; 0 where the subject or the mask is absent.
        scores: (N,), how sure each mask is, any sign; -inf where there is no mask.
        present: bool (N,), whether the image shows the subject.

    Returns:
        In [0, 1].
    """
    precision, _ = _precisions(ious, scores, present)
    return float(precision.mean())


def mask_f1(ious: ArrayLike, scores: ArrayLike, present: ArrayLike) -> float:
    """F1 as PODS's code computes it: of precision at each of 101 recalls with the highest recall reached, averaged.

    F1 = mean over IoU thresholds t and recalls r of 2 P_t(r) R_t / (P_t(r) + R_t), with P_t(r) interpolated precision
    (0 beyond R_t) and R_t the share of the images with the subject that a mask hits. The code also averages over
    COCO's classes of area, which are one for subjects above 96 x 96 pixels. Otherwise as `mask_map`.
    """
    precision, recall = _precisions(ious, scores, present)
    recall = recall[:, None]
    sums = precision + recall
    sums[sums == 0] = 1
    f1 = 2 * precision * recall / sums
    return float(f1.mean())


def _precisions(ious: ArrayLike, scores: ArrayLike, present: ArrayLike) -> tuple[Array, Array]:
    """At each IoU threshold: interpolated precision (T, 101), and the highest recall (T,)."""
    shows_subject = truths("present", present)
    if not shows_subject.any():
        raise ValueError("mAP and F1 need an image that shows the subject")
    s = comparable(scores)
    has_mask = np.isfinite(s)
    precisions = np.zeros((len(COCO_IOUS), len(_RECALLS)))
    highest_recalls = np.zeros(len(COCO_IOUS))
    if not has_mask.any():
        return precisions, highest_recalls

    for row, least_iou in enumerate(COCO_IOUS):
        is_hit = (np.asarray(ious) >= least_iou) & shows_subject
        is_hit = is_hit[has_mask]
        order = np.lexsort((is_hit, -s[has_mask]))  # of equal scores, misses first
        hits = np.cumsum(is_hit[order])
        precision = hits / np.arange(1, len(hits) + 1)
        recall = hits / shows_subject.sum()

        # the highest precision at each recall or beyond it; 0 where no recall is as high
        interpolated = np.maximum.accumulate(precision[::-1])[::-1]
        interpolated = np.append(interpolated, 0)
        rank = np.searchsorted(recall, _RECALLS)
        precisions[row] = interpolated[rank]
        highest_recalls[row] = recall[-1]

    return precisions, highest_recalls
