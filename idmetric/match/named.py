"""Published numbers by name: `found.published("xverse-ip")`.

Each takes the table as it is, so the encoder and the detector are the user's; `Published` says which ones the source
uses, and the result names ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.match import published
from idmetric.match.published import Array, Form
from idmetric.metric.files.hints import did_you_mean
from idmetric.metric.scoring.scores import RequestError

# the frames that sources take of a clip, as `match` calls the choice -> in words
FRAMES = {"all": "all frames", "32": "32 frames at equal distances"}


@dataclass(frozen=True)
class Similarities:
    """What published numbers are computed from: similarities 1 - distance of S subjects in T images.

    Attributes:
        to_references: of each image (S, K, R), NaN where nothing was compared.
        aggregated: the same over references, by the rule of the request (S, R).
        names, words: of each image's subjects (S,); "" without a class word.
        casts: (S,) of each image, which subjects should be in it; empty for all.
        whole: of each whole image (S, K), or None.
        scores: a detector's, of each image's regions (R,).
        features: of each subject, by its encoder, features (R, D) of each image's regions.
        frames: features (D,) of each whole image by the first encoder; None if they were not embedded.
        clips: of each image; still images are one clip in order, called "". seconds: of each image.
    """

    to_references: list[Array] = field(default_factory=list)
    aggregated: list[Array] = field(default_factory=list)
    names: list[tuple[str, ...]] = field(default_factory=list)
    words: list[tuple[str, ...]] = field(default_factory=list)
    casts: list[NDArray[np.bool_]] = field(default_factory=list)
    whole: list[Array] | None = None
    scores: list[Array] = field(default_factory=list)
    features: list[list[Array]] = field(default_factory=list)
    frames: list[Array] | None = None
    clips: Sequence[str] = ()
    seconds: Sequence[float] = ()

    @property
    def videos(self) -> list[list[int]]:
        """The numbers of each clip's images."""
        times_of_clips: dict[str, list[int]] = {}
        for time, clip in enumerate(self.clips):
            times_of_clips.setdefault(clip, []).append(time)
        return list(times_of_clips.values())

    def by_video(self, values: Sequence[Any]) -> list[Array]:
        """Values of images, stacked for each clip with two images or more; the others have no consistency."""
        stacks = []
        for times in self.videos:
            if len(times) > 1:
                stacks.append(np.stack([values[time] for time in times]))
        return stacks

    @property
    def frames_of_clips(self) -> list[Array]:
        """Features (N, D) of the frames of each clip."""
        return self.by_video(self.frames or [])

    @property
    def are_human(self) -> list[NDArray[np.bool_]]:
        """Of each image's subjects (S,), whether XVerseBench counts them as humans: by the beginning of the name."""
        return [np.array([name.startswith("human") for name in names], dtype=bool) for names in self.names]

    @property
    def are_scored(self) -> bool:
        """Whether a detector has scored the regions; the score of all given regions is 1."""
        return any((scores != 1).any() for scores in self.scores)

    @property
    def best(self) -> list[Array]:
        """Similarities (S, R) to the nearest reference."""
        best = []
        for similarity in self.to_references:
            of_regions = similarity.swapaxes(1, 2)
            best.append(published.best_region(of_regions))
        return best

    @property
    def mean(self) -> list[Array]:
        """Mean similarities (S, R) over references."""
        means = []
        for similarity in self.to_references:
            compared = np.ma.masked_invalid(similarity)
            means.append(compared.mean(1).filled(np.nan))
        return means


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        formula: from similarities, and from the form if there are two, to the number, or to numbers with this mean.
        source: repository, commit and file. detector, encoder: the ones of the source.
        reads: the attribute of `Similarities` that the formula takes; "" = all of them.
        has_corrected: whether there is a "corrected" form. needs_whole: whether whole images are compared.
        needs_frames: whether whole images are compared with each other, without references.
        frames: the frames of a clip that the source takes, a key of `FRAMES`; "" for images.
    """

    formula: Callable[..., Any]
    source: str
    detector: str
    encoder: str
    reads: Literal["", "to_references", "aggregated", "best", "frames_of_clips"] = ""
    has_corrected: bool = False
    needs_whole: bool = False
    needs_frames: bool = False
    frames: str = ""

    def compute(self, similarities: Similarities, form: str) -> float:
        """The number of a form that it has."""
        arguments: list[Any] = [similarities]
        if self.reads:
            arguments = [getattr(similarities, self.reads)]
        if self.has_corrected:
            arguments.append(form)
        return float(np.mean(self.formula(*arguments)))


@dataclass(frozen=True)
class PublishedValue:
    """A published number of a match.

    Attributes:
        name, form: of the number. value: NaN where the source defines none.
        source, detector, encoder: as published. used: model, distance, cut, detector and frames in their place.
        not_comparable: why the number cannot be compared with published ones; "" if the frames are those of the source.
    """

    name: str
    form: str
    value: float
    source: str
    detector: str
    encoder: str
    used: str
    not_comparable: str = ""

    def __str__(self) -> str:
        number = f"{self.name} ({self.form}): {self.value:.4f}"
        if self.not_comparable:
            number += f", not comparable: {self.not_comparable}"
        return f"{number} ({self.source}; by {self.used})"


def published_value(
    similarities: Similarities,
    name: str,
    form: str,
    signature: Mapping[str, str],
    frames: Collection[str] = tuple(FRAMES),
) -> PublishedValue:
    """Compute a published number.

    Args:
        signature: of the distances. frames: the choices of frames, keys of `FRAMES`, that the images agree with.

    Raises:
        RequestError: for an unknown name, a form that it does not have, or similarities that lack what it needs.
    """
    number = check_number(name, form)
    if number.needs_whole and similarities.whole is None:
        raise RequestError(f"{name} takes the whole image for a subject that is not found: match with missing='whole'")
    if number.needs_frames:
        if similarities.frames is None:
            raise RequestError(f"{name} takes whole frames: match without regions, or with missing='whole'")
        if not similarities.by_video(similarities.frames):
            raise RequestError(f"{name} takes clips of two frames or more")
    elif not similarities.features:
        raise RequestError(f"{name} compares images with references: give subjects")
    value = float("nan")
    if similarities.to_references:
        value = number.compute(similarities, form)
    used = [signature["model"], f"distance {signature['distance']}", signature["cut"]]
    if "detector" in signature:
        used.append(signature["detector"])
    if "frames" in signature:
        used.append(f"frames {signature['frames']}")
    not_comparable = ""
    if number.frames and number.frames not in frames:
        not_comparable = f"the source takes {FRAMES[number.frames]}"
    return PublishedValue(
        name=name,
        form=form,
        value=value,
        source=number.source,
        detector=number.detector,
        encoder=number.encoder,
        used=", ".join(used),
        not_comparable=not_comparable,
    )


def check_number(name: str, form: str) -> Published:
    """The published number of a name; RequestError for an unknown name, or a form that it does not have."""
    number = PUBLISHED.get(name)
    if number is None:
        hint = did_you_mean(name, PUBLISHED)
        raise RequestError(f"no published number is called {name!r}{hint}; there are {', '.join(PUBLISHED)}")
    forms = ["released"]
    if number.has_corrected:
        forms.append("corrected")
    if form not in forms:
        raise RequestError(f"{name} has no form {form!r}: choose {' or '.join(forms)}")
    return number


def _xverse_ip(similarities: Similarities) -> float:
    return published.xverse_ip(similarities.best, [~is_human for is_human in similarities.are_human])


def _xverse_id(similarities: Similarities) -> float:
    return published.xverse_ip(similarities.best, similarities.are_human)


def _psr(similarities: Similarities, form: Form) -> float:
    whole = [np.nanmax(similarity, 1) for similarity in similarities.whole or []]
    scores = similarities.scores if form == "corrected" else None
    of_one_category = []
    for words in similarities.words:
        has_one_category = len(words) == 2 and words[0] == words[1] != ""
        of_one_category.append(has_one_category)
    return published.psr(similarities.best, whole, scores, of_one_category)


def _msrvtt(similarities: Similarities, form: Form) -> float:
    """The mean of the clips that have a value."""
    values = []
    for times in similarities.videos:
        images = [similarities.mean[time] for time in times]
        scores = [similarities.scores[time] for time in times]
        values.append(published.msrvtt_subject(images, form, scores if similarities.are_scored else None))
    return published.mean_of_values(values)


def _casts(similarities: Similarities) -> list[NDArray[np.bool_]]:
    """Which subjects should be in each image, (S,); all without casts."""
    if similarities.casts:
        return similarities.casts
    return [np.ones(len(similarity), dtype=bool) for similarity in similarities.to_references]


def _vistory_cross(similarities: Similarities, form: Form) -> float:
    return published.vistory_cross(similarities.to_references, form, _casts(similarities))


def _vistory_self(similarities: Similarities, form: Form) -> float:
    """Of the regions that ViStoryBench assigns, whatever the thresholds."""
    cells = []
    for similarity, cast in zip(similarities.best, _casts(similarities), strict=True):
        cells.append(published.cells_of_cast(similarity, cast))
    matched = []
    for subject, features in enumerate(similarities.features):
        crops: list[Array] = []
        for image_features, is_assigned in zip(features, cells, strict=True):
            crops.extend(image_features[is_assigned[subject]])
        matched.append(np.array(crops))
    return published.vistory_self(matched, form)


def _nexus(similarities: Similarities, form: Form) -> float:
    """The mean of the clips that have a value."""
    scores = []
    for times in similarities.videos:
        scores.append(published.nexus([similarities.aggregated[time] for time in times], form))
    return published.mean_of_values(scores)


def _vbench_i2v(similarities: Similarities) -> list[float]:
    to_image = similarities.by_video(similarities.whole or [])
    if to_image[0].shape[1:] != (1, 1):
        raise RequestError("vbench-i2v takes one subject with one reference, the input image of the clips")
    scores = []
    for frames, cosines in zip(similarities.frames_of_clips, to_image, strict=True):
        scores.append(published.vbench_i2v(frames, cosines[:, 0, 0]))
    return scores


def _vbench_long(similarities: Similarities, form: Form) -> float:
    seconds = similarities.by_video(similarities.seconds)
    if np.isnan(np.concatenate(seconds)).any():
        raise RequestError(
            "vbench-long takes clips, as still images have no times: declare frames by Clip(..., fps=...)"
        )
    if min(map(published.frame_rate, seconds)) < 1:
        raise RequestError("vbench-long takes a frame or more of each second: match with frames='all'")
    return published.vbench_long(similarities.frames_of_clips, seconds, form)


def _occm(similarities: Similarities) -> float:
    counts = [similarity.shape[1] for similarity in similarities.aggregated]
    expected = [int(cast.sum()) for cast in _casts(similarities)]
    return published.occm(counts, expected)


_VISTORY = "ViStoryBench/vistorybench 514cc31 vistorybench/bench/content/cids_evaluator.py"
_VISTORY_DETECTOR = "Grounding DINO SwinT-OGC, 'character', .25"
_VISTORY_ENCODER = "CLIP ViT-L/14; of real people the mean of ArcFace, AdaFace and FaceNet"

PUBLISHED: dict[str, Published] = {
    "xverse-ip": Published(
        _xverse_ip,
        "bytedance/XVerse 65e2581 eval/tools/idip_sam-dino_score.py",
        "Florence-2 and SAM 2 by label, first 3 instances, outside white, padded to a white square",
        "dino-vits16, class token, 256 bicubic, center 224",
    ),
    "xverse-id": Published(
        _xverse_id,
        "bytedance/XVerse 65e2581 eval/tools/idip_face_score.py",
        "facer RetinaFace, box x 1.3",
        "ArcFace ir_se50",
    ),
    "umo-id-conf": Published(
        published.umo_id_conf,
        "bytedance/UMO aada3dc eval/id_conf_xversebench.py",
        "facer RetinaFace, box x 1.3",
        "ArcFace ir_se50",
        reads="best",
    ),
    "umo-reward": Published(
        published.umo_rewards,
        "bytedance/UMO aada3dc reward_models/MIMR/multi_id_matching_reward.py",
        "facexlib RetinaFace, five-point warp to 112",
        "ArcFace r50",
        reads="aggregated",
    ),
    "psr": Published(
        _psr,
        "wang-shulei/PSR eval/suject-consistency",
        "Grounding DINO SwinT-OGC, box .35, text .25, unsorted",
        "dino_vits16, 256, center 224",
        has_corrected=True,
        needs_whole=True,
    ),
    "uno-distill": Published(
        published.uno_distill,
        "wenshare71/UNO ed4b3966 distill/filter_data.py",
        "grounding-dino-tiny, top 6, 12 % context on both sides",
        "dino_vits16, 256, center 224",
        reads="best",
    ),
    "multiid": Published(
        published.multiid,
        "Doby-Xu/WithAnyone 996d152 MultiID-Bench/eval.py",
        "buffalo_l, .45",
        "ArcFace, AdaFace ir_50, FaceNet",
        reads="aggregated",
        has_corrected=True,
    ),
    "vistory-cross": Published(
        _vistory_cross,
        _VISTORY,
        _VISTORY_DETECTOR,
        _VISTORY_ENCODER,
        has_corrected=True,
    ),
    "vistory-self": Published(
        _vistory_self,
        _VISTORY,
        _VISTORY_DETECTOR,
        _VISTORY_ENCODER,
        has_corrected=True,
    ),
    "vistory-occm": Published(
        _occm,
        _VISTORY,
        _VISTORY_DETECTOR,
        "none",
    ),
    "nexus": Published(
        _nexus,
        "PKU-YuanGroup/OpenS2V-Nexus b452831 eval/get_nexusscore.py",
        "YOLO-World by the reference image, .5, kept above .6 and text cosine .30; 32 frames",
        "GME-Qwen2-VL-7B",
        has_corrected=True,
        frames="32",
    ),
    "msrvtt-subject": Published(
        _msrvtt,
        "snap-research/MSRVTT-Personalization ce8acfa distributed_subject_dino_similarity.py",
        "Grounding DINO .4, one box for each tag, SAM ViT-B above .9, outside white, padded to a white square",
        "dino_vitb16, 224 bicubic",
        has_corrected=True,
        frames="all",
    ),
    "vbench-subject": Published(
        published.vbench_subject,
        "Vchitect/VBench 45e79ec vbench/subject_consistency.py",
        "none, whole frames",
        "dino_vitb16, 224 bilinear without antialiasing; all frames",
        reads="frames_of_clips",
        has_corrected=True,
        needs_frames=True,
        frames="all",
    ),
    "vbench-i2v": Published(
        _vbench_i2v,
        "Vchitect/VBench 45e79ec vbench2_beta_i2v/i2v_subject.py",
        "none, whole frames",
        "dino_vitb16, 256 bicubic, center 224; all frames",
        needs_whole=True,
        needs_frames=True,
        frames="all",
    ),
    "vbench-long": Published(
        _vbench_long,
        "Vchitect/VBench 45e79ec vbench2_beta_long/subject_consistency.py",
        "none, whole frames in pieces of two seconds",
        "dino_vitb16, 224 bilinear without antialiasing; all frames",
        has_corrected=True,
        needs_frames=True,
        frames="all",
    ),
    "freeinit": Published(
        published.freeinits,
        "TianxingWu/FreeInit issue 16",
        "none, whole frames",
        "dino_vits16",
        reads="frames_of_clips",
        needs_frames=True,
        frames="all",
    ),
}
