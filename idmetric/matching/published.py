"""Published numbers as reductions of one table of similarities.

The functions take plain arrays: similarities (S, R) or (S, K, R) of each image, of S subjects, K references and R
regions, NaN where nothing was compared (similarity = 1 - distance, a cosine with the distance "cls"); and features
(N, D) of frames, of unit length. `idmetric.matching.named` applies them to a `Match`. Where the released code differs
from what its paper says, or depends on chance, there are two forms: "released" and "corrected".
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Form = Literal["released", "corrected"]
IsCounted = Sequence[NDArray[np.bool_]] | None  # of each image, which of its subjects count
Names = Sequence[Sequence[Hashable]] | None  # of each image, the names of its subjects; None: in all the same
_ROUNDED_TIME = 0.001  # seconds
_NO_VALUE = 1e6  # cost of a cell without a value in an assignment; it outweighs all of the rest


def mean_of_values(values: Array | Sequence[float]) -> float:
    """The mean without NaN; NaN if there is nothing else."""
    if np.isnan(values).all():  # also without any
        return float("nan")
    return float(np.nanmean(values))


def mean_of_subjects(images: Sequence[Array]) -> float:
    """The mean of the values (S,) of the subjects of all images, without NaN."""
    if not images:
        return float("nan")
    return mean_of_values(np.concatenate(images))


# Several subjects in an image


def best_region(similarity: Array) -> Array:
    """The highest similarity (S,) of each subject to a region; NaN for a subject without regions."""
    highest: Array = np.fmax.reduce(similarity, axis=-1, initial=np.nan)
    return highest


def xverse_subjects(images: Sequence[Array], is_counted: IsCounted = None) -> list[Array]:
    """100 x the similarity (S,) of each subject's best region, 0 without one; NaN for a subject that does not count.

    Args:
        is_counted: see `xverse_ip`.
    """
    values = []
    for time, similarity in enumerate(images):
        best = 100 * np.nan_to_num(best_region(similarity))
        if is_counted is not None:
            best[~is_counted[time]] = np.nan
        values.append(best)
    return values


def xverse_ip(images: Sequence[Array], is_counted: IsCounted = None) -> float:
    """XVerseBench's IP similarity: 100 x the mean over images and subjects of the best region's similarity.

    A subject that is not found counts 0. Higher is better. NaN if no subject counts. The ID similarity of faces is the
    same mean.

    Args:
        is_counted: (S,) of each image, default all. IP counts the subjects whose name does not begin with "human"
            (XVerse, eval/tools/idip_sam-dino_score.py), ID the others (idip_face_score.py).
    """
    return mean_of_subjects(xverse_subjects(images, is_counted))


def id_confidence(similarity: Array) -> Array:
    """UMO's ID-Conf (S,): (s1 - s2) / s1 of a subject's two best regions, at most 1; 0 if s1 <= 0.

    NaN with fewer than two regions (UMO, eval/id_conf_xversebench.py).
    """
    confidence = np.full(len(similarity), np.nan)
    for subject, row in enumerate(similarity):
        ranked = np.sort(row[~np.isnan(row)])[::-1]
        if len(ranked) < 2:
            continue
        best, second_best = ranked[:2]
        confidence[subject] = 0.0
        if best > 0:
            confidence[subject] = min(1.0, (best - second_best) / best)
    return confidence


def umo_id_conf(images: Sequence[Array]) -> float:
    """UMO's ID-Conf on XVerseBench: 100 x the mean of `id_confidence` over images and subjects that have a value."""
    return 100 * mean_of_subjects([id_confidence(similarity) for similarity in images])


def assigned_cells(similarity: Array) -> NDArray[np.bool_]:
    """The cells (S, R) of the assignment with the largest sum of similarities.

    As many cells with a value as possible are assigned: one without costs 1e6, as in ViStoryBench.
    """
    from scipy.optimize import linear_sum_assignment

    has_value = ~np.isnan(similarity)
    cost = np.where(has_value, -similarity, _NO_VALUE)
    is_assigned = np.zeros(similarity.shape, dtype=bool)
    is_assigned[linear_sum_assignment(cost)] = True
    return is_assigned & has_value


def umo_reward(similarity: Array) -> float:
    """UMO's multi-identity matching reward of an image: the mean of all cells, with a minus where not assigned.

    0 without regions, or if none was compared (UMO, reward_models/MIMR/multi_id_matching_reward.py). In -1..1. A
    picture in which one of two subjects is missing can have a higher reward than one in which both are.
    """
    if np.isnan(similarity).all():  # also of no regions
        return 0.0
    signs = np.where(assigned_cells(similarity), 1.0, -1.0)
    return float(np.nanmean(signs * similarity))


def umo_rewards(images: Sequence[Array]) -> Array:
    """`umo_reward` (N,) of each image."""
    return np.array([umo_reward(similarity) for similarity in images])


def ranked_regions(row: Array, scores: Array | None = None) -> NDArray[np.int64]:
    """The regions with a value in a row (R,), most confident first by a detector's `scores` (R,), else in order."""
    compared = np.flatnonzero(~np.isnan(row))
    if scores is None:
        return compared
    by_confidence = np.argsort(-scores[compared], kind="stable")
    return compared[by_confidence]


def most_confident_region(similarity: Array, scores: Array) -> Array:
    """The similarity (S,) of each subject to the region with the highest of the `scores` (R,); NaN without regions."""
    values = np.full(len(similarity), np.nan)
    for subject, row in enumerate(similarity):
        regions = ranked_regions(row, scores)
        if len(regions):
            values[subject] = row[regions[0]]
    return values


def psr_subjects(
    similarity: Array,
    whole: Array,
    scores: Array | None = None,
    of_one_category: bool = False,
) -> Array:
    """The similarity (S,) of each subject's region in an image, else that of the whole image.

    Args:
        similarity: (S, R). whole: (S,) of the whole image. scores: a detector's (R,), to rank regions by.
        of_one_category: whether the image's two subjects have equal categories.
    """
    values = np.array(whole, dtype=np.float64)
    for subject, row in enumerate(similarity):
        regions = ranked_regions(row, scores)
        rank = subject if of_one_category else 0
        if rank < len(regions):
            values[subject] = row[regions[rank]]
    return values


def psr(
    images: Sequence[Array],
    whole: Sequence[Array],
    scores: Sequence[Array] | None = None,
    of_one_category: Sequence[bool] | None = None,
) -> float:
    """PSRBench's subject consistency: the mean over images and subjects of the similarity of one region.

    As released, that is the first region in the detector's order, which is not sorted; `scores` (R,), the detector's,
    rank the regions instead. Of two subjects of one category the second takes the second region. A subject without
    its region has the similarity of the whole image, (S,) (PSR, eval/suject-consistency).

    Args:
        of_one_category: of each image, whether its two subjects have equal categories; default nowhere.
    """
    values = []
    for time, similarity in enumerate(images):
        image_scores = scores[time] if scores is not None else None
        is_one_category = of_one_category is not None and of_one_category[time]
        values.append(psr_subjects(similarity, whole[time], image_scores, is_one_category))
    return mean_of_subjects(values)


def uno_distill(images: Sequence[Array]) -> Array:
    """UNO's score (N,) for keeping images of its distillation: the lowest over subjects of the best similarity.

    0 if a subject is not found (wenshare71/UNO, distill/filter_data.py).
    """
    lowest = []
    for similarity in images:
        best = np.nan_to_num(best_region(similarity))
        lowest.append(best.min())
    return np.array(lowest)


def without_outliers(values: Array) -> float:
    """MultiID-Bench's statistic: the mean without values beyond 1.5 interquartile ranges.

    The median of all, if these are more than half of the values (MultiID-Bench/eval.py).
    """
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    is_inside = (values >= low - reach) & (values <= high + reach)
    if is_inside.mean() < 0.5:
        return float(np.median(values))
    return float(values[is_inside].mean())


def multiid_similarity(similarity: Array) -> float:
    """MultiID-Bench's similarity of an image: the mean over the assigned cells, at most one for each region.

    NaN without a region to compare.
    """
    return mean_of_values(similarity[assigned_cells(similarity)])


def multiid_similarities(images: Sequence[Array]) -> Array:
    """`multiid_similarity` of each image that has one."""
    values = []
    for similarity in images:
        value = multiid_similarity(similarity)
        if not np.isnan(value):
            values.append(value)
    return np.array(values)


def multiid(images: Sequence[Array], form: Form = "released") -> float:
    """MultiID-Bench's similarity: as released, the mean of images without outliers; corrected, of all."""
    values = multiid_similarities(images)
    if not len(values):
        return float("nan")
    if form == "released":
        return without_outliers(values)
    return float(values.mean())


def copy_geo(generated_to_target: float, generated_to_reference: float, target_to_reference: float) -> float:
    """MultiID-Bench's Copy-Geo of one subject: (angle to the target - angle to the reference) / their own angle.

    Angles are arccos of cosines. Above 0: nearer to the reference than to the target, as a copy is. 0 if target and
    reference are alike to 1e-6.
    """
    cosines = np.clip([generated_to_target, generated_to_reference, target_to_reference], -1.0, 1.0)
    to_target, to_reference, between = np.arccos(cosines)
    if between < 1e-6:
        return 0.0
    return float((to_target - to_reference) / between)


# Stories


def vistory_cross_cells(similarity: Array, form: Form = "released") -> Array:
    """The similarity (S,) of each character's region in a shot: the mean over its references.

    Characters are assigned by the best reference. One without a region has no value as released, corrected 0.

    Args:
        similarity: (S, K, R) of the characters in the shot's cast.
    """
    to_nearest_reference = best_region(similarity.swapaxes(1, 2))
    cells = assigned_cells(to_nearest_reference)
    values = np.full(len(similarity), np.nan)
    if form == "corrected":
        values[:] = 0.0
    for subject, region in np.argwhere(cells):
        values[subject] = np.nanmean(similarity[subject, :, region])
    return values


def by_character(shots: Sequence[Array], names: Names = None) -> dict[Hashable, Array]:
    """The values of each character in the shots with it in their cast.

    Args:
        shots: values (S,) of the characters in each shot's cast. names: their names; default: in all the same.
    """
    values: dict[Hashable, list[float]] = {}
    for number, shot in enumerate(shots):
        shot_names = range(len(shot)) if names is None else names[number]
        for name, value in zip(shot_names, shot, strict=True):
            values.setdefault(name, []).append(float(value))
    characters: dict[Hashable, Array] = {}
    for name, of_shots in values.items():
        characters[name] = np.array(of_shots)
    return characters


def vistory_cross_of_character(values: Array) -> float:
    """The mean over shots (N,) without NaN; 0 if the character is never found."""
    return float(np.nan_to_num(mean_of_values(values)))


def vistory_cross(shots: Sequence[Array], form: Form = "released", names: Names = None) -> float:
    """ViStoryBench's CIDS, generated images to references: of a character the mean over shots, then of characters.

    As released, shots without the character are left out, and one that is never found counts 0; corrected, each shot
    of its cast without it counts 0 (cids_evaluator.py).

    Args:
        shots: (S, K, R) of the characters in each shot's cast. names: their names; default: in all the same.
    """
    cells = [vistory_cross_cells(similarity, form) for similarity in shots]
    characters = by_character(cells, names)
    return mean_of_values([vistory_cross_of_character(values) for values in characters.values()])


def vistory_self_of_character(crops: Array, form: Form = "released") -> float:
    """The mean cosine among a character's matched crops (N, D); with one, 1 as released, with none 0."""
    if len(crops) > 1:
        cosines = crops @ crops.T
        return float(cosines[np.triu_indices(len(crops), 1)].mean())
    if form == "released":
        return float(len(crops))
    return float("nan")


def vistory_self(features: Sequence[Array], form: Form = "released") -> float:
    """ViStoryBench's CIDS of generated images among each other: the mean cosine of a subject's matched crops.

    As released, a subject that is found once counts 1, and one that is never found 0; corrected, neither has a value.

    Args:
        features: of each subject, (N, D) of the images in which it was matched.
    """
    return mean_of_values([vistory_self_of_character(crops, form) for crops in features])


def occm_of_shot(found: int, expected: int) -> float:
    """100 exp(-|found - expected| / expected) of a shot; NaN without expected subjects."""
    if not expected:
        return float("nan")
    return float(100 * np.exp(-abs(found - expected) / (1e-6 + expected)))


def occm(found: Sequence[int], expected: Sequence[int]) -> float:
    """ViStoryBench's OCCM: the mean over shots of 100 exp(-|found - expected| / expected), in 0..100.

    Shots without expected subjects are left out (cids_evaluator.py).
    """
    values = []
    for count, wanted in zip(found, expected, strict=True):
        values.append(occm_of_shot(count, wanted))
    return mean_of_values(values)


def vistory_copy_paste(to_reference: float, to_mirrored: float) -> float:
    """ViStoryBench's copy-paste: softmax of the cosines to a reference and to its mirror image, at temperature 0.01.

    In 0..1, 0.5 = as near to the one as to the other.
    """
    logit = (to_reference - to_mirrored) / 0.01
    return float(1 / (1 + np.exp(-logit)))


# Video


def nexus(
    images: Sequence[Array], form: Form = "released", is_found: Sequence[NDArray[np.bool_]] | None = None
) -> float:
    """OpenS2V's NexusScore of a video: the mean similarity of all regions that are kept.

    As released, it is divided a second time by the number of pairs of frame and subject with a region, so that a
    subject seen in more frames scores lower. 0 if regions were found and none is kept; NaN if none was found, as the
    source skips these videos (eval/get_nexusscore.py).

    Args:
        images: (S, R) of each frame, NaN for a region that is not kept.
        is_found: (S, R) of each frame, whether a region was found for a subject; default: for the subjects that it is
            kept for.
    """
    is_kept = [~np.isnan(similarity) for similarity in images]
    has_regions = any(similarity.size for similarity in images)
    if is_found is None:
        is_found = is_kept
    else:
        has_regions = any(found.any() for found in is_found)
    if not has_regions:
        return float("nan")

    values = [similarity[kept] for similarity, kept in zip(images, is_kept, strict=True)]
    kept_values = np.concatenate(values)
    if not len(kept_values):
        return 0.0
    mean = float(kept_values.mean())
    if form == "released":
        mean /= sum(int(found.any(1).sum()) for found in is_found)
    return mean


def msrvtt_subjects(similarity: Array, form: Form = "released", scores: Array | None = None) -> Array:
    """The similarity (S,) of one region of each subject in a frame, see `msrvtt_subject`."""
    values = best_region(similarity) if scores is None else most_confident_region(similarity, scores)
    if form == "released":
        return np.nan_to_num(values)
    return values


def msrvtt_subject(images: Sequence[Array], form: Form = "released", scores: Sequence[Array] | None = None) -> float:
    """MSRVTT-Personalization's subject similarity of a video: the mean over frames and subjects of one region each.

    As released, a subject that is not found counts 0; corrected, it has no value, and the coverage tells. The benchmark
    takes the mean over videos.

    Args:
        scores: a detector's (R,) of each frame, by which the most confident region is taken; default: the best one.
    """
    values = []
    for time, similarity in enumerate(images):
        frame_scores = scores[time] if scores is not None else None
        values.append(msrvtt_subjects(similarity, form, frame_scores))
    return mean_of_subjects(values)


def consecutive_cosines(frames: Array) -> Array:
    """The cosine (N - 1,) of each frame after the first to the one before it."""
    cosines: Array = np.einsum("nd,nd->n", frames[1:], frames[:-1])
    return cosines


def vbench_frames(frames: Array) -> Array:
    """VBench's consistency of each frame (N - 1,) after the first: (max(0, cos previous) + max(0, cos first)) / 2.

    (vbench/subject_consistency.py.)
    """
    to_previous = np.maximum(consecutive_cosines(frames), 0)
    to_first = np.maximum(frames[1:] @ frames[0], 0)
    mean: Array = (to_previous + to_first) / 2
    return mean


def vbench_subject(videos: Sequence[Array], form: Form = "released") -> float:
    """VBench's subject consistency of videos, in 0..1.

    As released, in one process, the mean over the frames of all videos; corrected, the mean of the videos' means, which
    the release gives in several processes.
    """
    frames = [vbench_frames(video) for video in videos]
    if form == "released":
        return float(np.concatenate(frames).mean())
    return float(np.mean([video.mean() for video in frames]))


def vbench_i2v(frames: Array, to_image: Array) -> float:
    """VBench-I2V's subject consistency of a video with its input image, by cosines (N,) to it, in 0..1.

    .4 times the highest cosine to the image, .3 times the mean and .3 times the lowest of consecutive frames.
    """
    highest_to_image = np.maximum(to_image.max(), 0)
    consecutive = np.maximum(consecutive_cosines(frames), 0)
    mean = consecutive.mean()
    lowest = consecutive.min()
    return float(0.4 * highest_to_image + 0.3 * mean + 0.3 * lowest)


def two_second_pieces(frames: Array, rate: float) -> list[Array]:
    """VBench-Long's pieces (n, D) of a video (N, D), n = 2 int(rate) frames each.

    The last piece is extended backwards to this length. A shorter video is one piece (vbench2_beta_long/utils.py).

    Args:
        rate: frames per second, at least 1.
    """
    length = 2 * int(rate)
    if len(frames) < length:
        return [frames]
    starts = list(range(0, len(frames) - length + 1, length))
    last_start = len(frames) - length
    if starts[-1] != last_start:
        starts.append(last_start)
    return [frames[start : start + length] for start in starts]


def frame_rate(seconds: Array) -> float:
    """Frames per second by the times (N,) of frames.

    Some containers round times to milliseconds, so that 24 may seem to be 23.99: the highest rate that fits is taken.
    """
    duration = seconds[-1] - seconds[0]
    return float((len(seconds) - 1) / max(duration - _ROUNDED_TIME, _ROUNDED_TIME))


def vbench_pieces(frames: Array, seconds: Array) -> Array:
    """VBench's consistency of each piece of two seconds of a video (N, D), by the time of each frame (N,)."""
    pieces = two_second_pieces(frames, frame_rate(seconds))
    return np.array([vbench_frames(piece).mean() for piece in pieces])


def vbench_long(videos: Sequence[Array], seconds: Sequence[Array], form: Form = "released") -> float:
    """VBench-Long's subject consistency of videos: VBench's, over pieces of two seconds (its default weights).

    As released, the mean of all pieces, but of all frames if no video has two pieces; corrected, the mean of the
    videos, each the mean of its pieces.

    Args:
        seconds: of each video, the time of each frame (N,), ascending, with a frame or more in each second.
    """
    means = []
    for frames, times in zip(videos, seconds, strict=True):
        means.append(vbench_pieces(frames, times))
    if form == "corrected":
        return float(np.mean([of_pieces.mean() for of_pieces in means]))
    if all(len(of_pieces) == 1 for of_pieces in means):
        return vbench_subject(videos)
    return float(np.concatenate(means).mean())


def freeinit_frames(frames: Array) -> Array:
    """The cosine (N - 1,) of the first frame to each later one."""
    cosines: Array = frames[1:] @ frames[0]
    return cosines


def freeinit(frames: Array) -> float:
    """FreeInit's consistency: the mean cosine of the first frame to each later one."""
    return float(freeinit_frames(frames).mean())


def freeinits(videos: Sequence[Array]) -> Array:
    """`freeinit` (N,) of each video."""
    return np.array([freeinit(frames) for frames in videos])
