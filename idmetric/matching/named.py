"""Published numbers by name: `found.published("xverse-ip")`.

Each takes the table as it is, so the encoder and the detector are the user's; `Published` says which ones the source
uses, and the result names ours. A number knows the subjects in the cast of each image alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from idmetric.matching import published
from idmetric.matching.published import Array, Form
from idmetric.matching.similarities import Similarities
from idmetric.metric.errors import RequestError

# the frames that sources take of a clip, as `match` calls the choice -> in words
FRAMES = {"all": "all frames", "32": "32 frames at equal distances"}


@dataclass(frozen=True)
class Computed:
    """A number, and values of the source that it is made of, NaN where there is none.

    Attributes:
        value: NaN where the source defines none.
        of_subjects: of each image, of its subjects (S,). of_images: of each image.
        subjects, clips: by name.
    """

    value: float
    of_subjects: Sequence[Array] = ()
    of_images: Sequence[float] = ()
    subjects: Mapping[str, float] = field(default_factory=dict)
    clips: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        formula: from the similarities of the casts and the form to the number with its values.
        source: repository, commit and file. detector, encoder: the ones of the source.
        has_corrected: whether there is a "corrected" form. needs_whole: whether whole images are compared.
        needs_frames: whether whole images are compared with each other, without references.
        frames: the frames of a clip that the source takes, a key of `FRAMES`; "" for images.
    """

    formula: Callable[[Similarities, Form], Computed]
    source: str
    detector: str
    encoder: str
    has_corrected: bool = False
    needs_whole: bool = False
    needs_frames: bool = False
    frames: str = ""

    def of_casts(self, similarities: Similarities) -> Similarities:
        """What the number is computed from: the casts alone, without images that should show nobody."""
        of_casts = similarities.of_casts()
        if self.needs_frames:
            return of_casts
        return of_casts.with_subjects()

    def compute(self, similarities: Similarities, form: Form) -> float:
        """The number of a form that it has."""
        return self.formula(self.of_casts(similarities), form).value


# Checks


def check_number(name: str, form: str) -> Published:
    """The published number of a name; RequestError for an unknown name, or a form that it does not have."""
    number = PUBLISHED.get(name)
    if number is None:
        raise RequestError(f"no published number is called {name!r}; there are {', '.join(PUBLISHED)}")
    forms = ["released"]
    if number.has_corrected:
        forms.append("corrected")
    if form not in forms:
        raise RequestError(f"{name} has no form {form!r}: choose {' or '.join(forms)}")
    return number


def check_needs(
    name: str,
    *,
    has_subjects: bool,
    has_whole: bool,
    clips: Sequence[str],
    casts: Sequence[Sequence[str]],
) -> None:
    """Refuse a published number that a request cannot give; it is known before anything is embedded.

    Args:
        has_whole: whether whole images are compared, because they are the regions or by missing="whole".
        clips: of each image, "" of still images. casts: of each image, the names of its subjects.

    Raises:
        RequestError: saying what to change.
    """
    number = PUBLISHED[name]
    compares_with_references = number.needs_whole or not number.needs_frames
    if compares_with_references and not has_subjects:
        raise RequestError(f"{name} compares images with references: give subjects")
    if number.needs_frames:
        if not has_whole:
            raise RequestError(f"{name} takes whole frames: match without regions, or with missing='whole'")
        if len(set(clips)) == len(clips):
            raise RequestError(f"{name} takes clips of two frames or more")
        if name == "vbench-i2v":
            check_input_images(clips, casts)
        if name == "vbench-long" and "" in clips:
            raise RequestError(
                "vbench-long takes clips, as still images have no times: declare frames by Clip(..., fps=...)"
            )
    elif number.needs_whole and not has_whole:
        raise RequestError(f"{name} takes the whole image for a subject that is not found: match with missing='whole'")


def check_input_images(clips: Sequence[str], casts: Sequence[Sequence[str]]) -> None:
    """Refuse clips with no or several subjects in their cast: the reference of the only one is the input image.

    Args:
        clips, casts: as in `check_needs`.
    """
    casts_of_clips: dict[str, set[tuple[str, ...]]] = {}
    for clip, names in zip(clips, casts, strict=True):
        casts_of_clips.setdefault(clip, set()).add(tuple(names))
    for clip, casts_of_clip in casts_of_clips.items():
        subjects = {name for names in casts_of_clip for name in names}
        if len(casts_of_clip) != 1 or len(subjects) != 1:
            listed = ", ".join(sorted(subjects)) or "none"
            raise RequestError(
                "vbench-i2v takes one subject for each clip, with the input image as its only reference: name it by "
                f"the cast ({clip or 'the images'}: {listed})"
            )


# Several subjects in an image


def _xverse_ip(similarities: Similarities, form: Form) -> Computed:
    is_counted = [~is_human for is_human in similarities.are_human]
    of_subjects = published.xverse_subjects(similarities.best, is_counted)
    return Computed(published.mean_of_subjects(of_subjects), of_subjects=of_subjects)


def _xverse_id(similarities: Similarities, form: Form) -> Computed:
    of_subjects = published.xverse_subjects(similarities.best, similarities.are_human)
    return Computed(published.mean_of_subjects(of_subjects), of_subjects=of_subjects)


def _umo_id_conf(similarities: Similarities, form: Form) -> Computed:
    of_subjects = [100 * published.id_confidence(best) for best in similarities.best]
    return Computed(published.mean_of_subjects(of_subjects), of_subjects=of_subjects)


def _umo_reward(similarities: Similarities, form: Form) -> Computed:
    rewards = published.umo_rewards(similarities.aggregated)
    return Computed(published.mean_of_values(rewards), of_images=rewards.tolist())


def _psr(similarities: Similarities, form: Form) -> Computed:
    of_subjects = []
    whole_images = similarities.whole or []
    for time, similarity in enumerate(similarities.best):
        whole = np.nanmax(whole_images[time], 1)
        words = similarities.words[time]
        of_subjects.append(
            published.psr_subjects(
                similarity,
                whole,
                scores=similarities.scores[time] if form == "corrected" else None,
                of_one_category=len(words) == 2 and words[0] == words[1] != "",
            )
        )
    return Computed(published.mean_of_subjects(of_subjects), of_subjects=of_subjects)


def _uno_distill(similarities: Similarities, form: Form) -> Computed:
    lowest = published.uno_distill(similarities.best)
    return Computed(published.mean_of_values(lowest), of_images=lowest.tolist())


def _multiid(similarities: Similarities, form: Form) -> Computed:
    of_images = [published.multiid_similarity(similarity) for similarity in similarities.aggregated]
    value = published.multiid(similarities.aggregated, form)
    return Computed(value, of_images=of_images)


# Stories


def _vistory_cross(similarities: Similarities, form: Form) -> Computed:
    cells = []
    for similarity in similarities.to_references:
        cells.append(published.vistory_cross_cells(similarity, form))
    characters = published.by_character(cells, similarities.names)
    subjects = {}
    for name, values in characters.items():
        subjects[str(name)] = published.vistory_cross_of_character(values)
    return Computed(_mean_of(subjects), of_subjects=cells, subjects=subjects)


def _vistory_self(similarities: Similarities, form: Form) -> Computed:
    """Of the regions that ViStoryBench assigns, whatever the thresholds."""
    crops: dict[str, list[Array]] = {}
    for time, similarity in enumerate(similarities.best):
        is_assigned = published.assigned_cells(similarity)
        for subject, name in enumerate(similarities.names[time]):
            features = similarities.features[time][subject]
            crops.setdefault(name, []).extend(features[is_assigned[subject]])
    subjects = {}
    for name, features_of_subject in crops.items():
        features = np.array(features_of_subject)
        subjects[name] = published.vistory_self_of_character(features, form)
    return Computed(_mean_of(subjects), subjects=subjects)


def _occm(similarities: Similarities, form: Form) -> Computed:
    of_images = []
    for similarity in similarities.aggregated:
        subjects, regions = similarity.shape
        of_images.append(published.occm_of_shot(regions, subjects))
    return Computed(published.mean_of_values(of_images), of_images=of_images)


# Video


def _nexus(similarities: Similarities, form: Form) -> Computed:
    """The mean of the clips that have a value."""
    frames = similarities.in_own_regions
    of_subjects = []
    for similarity in frames:
        means = [published.mean_of_values(row) for row in similarity]
        of_subjects.append(np.array(means))
    clips = {}
    for clip, times in similarities.videos.items():
        frames_of_clip = [frames[time] for time in times]
        clips[clip] = published.nexus(frames_of_clip, form)
    return Computed(_mean_of(clips), of_subjects=of_subjects, clips=clips)


def _msrvtt(similarities: Similarities, form: Form) -> Computed:
    """The mean of the clips that have a value."""
    of_subjects = []
    for time, similarity in enumerate(similarities.mean):
        scores = similarities.scores[time] if similarities.are_scored else None
        of_subjects.append(published.msrvtt_subjects(similarity, form, scores))
    clips = {}
    for clip, times in similarities.videos.items():
        values = [of_subjects[time] for time in times]
        clips[clip] = published.mean_of_subjects(values)
    return Computed(_mean_of(clips), of_subjects=of_subjects, clips=clips)


def _vbench_subject(similarities: Similarities, form: Form) -> Computed:
    videos = similarities.frames_of_clips
    value = published.vbench_subject(list(videos.values()), form)
    of_frames = {}
    for clip, frames in videos.items():
        of_frames[clip] = published.vbench_frames(frames)
    return Computed(value, of_images=_after_the_first(similarities, of_frames))


def _vbench_i2v(similarities: Similarities, form: Form) -> Computed:
    clips = {}
    whole_images = similarities.whole or []
    for clip, times in similarities.moving_videos.items():
        whole = np.stack([whole_images[time] for time in times])
        has_value = ~np.isnan(whole[0, 0])
        to_image = whole[:, 0, has_value]
        if to_image.shape[1] != 1:
            name = similarities.names[times[0]][0]
            raise RequestError(f"vbench-i2v takes one reference, the input image of the clip; {name} has several")
        frames = similarities.frames_of_clips[clip]
        clips[clip] = published.vbench_i2v(frames, to_image[:, 0])
    return Computed(_mean_of(clips), clips=clips)


def _vbench_long(similarities: Similarities, form: Form) -> Computed:
    videos = similarities.frames_of_clips
    clips, seconds = {}, []
    for clip, times in similarities.moving_videos.items():
        clip_seconds = np.array([similarities.seconds[time] for time in times])
        if published.frame_rate(clip_seconds) < 1:
            raise RequestError("vbench-long takes a frame or more of each second: match with frames='all'")
        pieces = published.vbench_pieces(videos[clip], clip_seconds)
        clips[clip] = float(pieces.mean())
        seconds.append(clip_seconds)
    value = published.vbench_long(list(videos.values()), seconds, form)
    return Computed(value, clips=clips)


def _freeinit(similarities: Similarities, form: Form) -> Computed:
    videos = similarities.frames_of_clips
    of_frames = {}
    for clip, frames in videos.items():
        of_frames[clip] = published.freeinit_frames(frames)
    of_videos = published.freeinits(list(videos.values()))
    value = published.mean_of_values(of_videos)
    return Computed(value, of_images=_after_the_first(similarities, of_frames))


def _mean_of(values: Mapping[str, float]) -> float:
    """The mean of the subjects or clips that have a value."""
    return published.mean_of_values(list(values.values()))


def _after_the_first(similarities: Similarities, of_frames: Mapping[str, Array]) -> list[float]:
    """Values of frames (N - 1,) by clip as values of all images; a clip's first frame has none."""
    values = np.full(len(similarities.clips), np.nan)
    for clip, clip_values in of_frames.items():
        later_frames = similarities.videos[clip][1:]
        values[later_frames] = clip_values
    return [float(value) for value in values]


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
        _umo_id_conf,
        "bytedance/UMO aada3dc eval/id_conf_xversebench.py",
        "facer RetinaFace, box x 1.3",
        "ArcFace ir_se50",
    ),
    "umo-reward": Published(
        _umo_reward,
        "bytedance/UMO aada3dc reward_models/MIMR/multi_id_matching_reward.py",
        "facexlib RetinaFace, five-point warp to 112",
        "ArcFace r50",
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
        _uno_distill,
        "wenshare71/UNO ed4b3966 distill/filter_data.py",
        "grounding-dino-tiny, top 6, 12 % context on both sides",
        "dino_vits16, 256, center 224",
    ),
    "multiid": Published(
        _multiid,
        "Doby-Xu/WithAnyone 996d152 MultiID-Bench/eval.py",
        "buffalo_l, .45",
        "ArcFace, AdaFace ir_50, FaceNet",
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
        _vbench_subject,
        "Vchitect/VBench 45e79ec vbench/subject_consistency.py",
        "none, whole frames",
        "dino_vitb16, 224 bilinear without antialiasing; all frames",
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
        _freeinit,
        "TianxingWu/FreeInit issue 16",
        "none, whole frames",
        "dino_vits16",
        needs_frames=True,
        frames="all",
    ),
}
