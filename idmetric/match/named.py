"""Published numbers by name: `found.published("xverse-ip")`.

Each takes the table as it is, so the encoder and the detector are the user's; `Published` says which ones the source
uses, and the result names ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from idmetric.match import published
from idmetric.match.assignment import UNASSIGNED
from idmetric.match.published import Array, Form
from idmetric.metric.files.hints import did_you_mean
from idmetric.metric.scoring.scores import RequestError

if TYPE_CHECKING:
    from idmetric.match.result import Match


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        compute: from a match and a form to the number.
        source: repository, commit and file. detector, encoder: the ones of the source.
        has_corrected: whether the "corrected" form differs from the "released" one. needs: what a match must have.
    """

    compute: Callable[[Match, Form], float]
    source: str
    detector: str
    encoder: str
    has_corrected: bool = False
    needs_whole: bool = False


@dataclass(frozen=True)
class PublishedValue:
    """A published number of a match.

    Attributes:
        name, form: of the number. value: NaN where the source defines none.
        source, detector, encoder: as published. used: the model, the distance and the cut that were used instead.
    """

    name: str
    form: str
    value: float
    source: str
    detector: str
    encoder: str
    used: str


def published_value(found: Match, name: str, form: str = "released") -> PublishedValue:
    """Compute a published number.

    Raises:
        RequestError: for an unknown name, a form that it does not have, or a match that lacks what it needs.
    """
    number = check_number(name, form)
    if number.needs_whole and found.whole is None:
        raise RequestError(f"{name} takes the whole image for a subject that is not found: match with missing='whole'")
    kind: Form = "corrected" if form == "corrected" else "released"
    signature = found.signature
    return PublishedValue(
        name=name,
        form=form,
        value=number.compute(found, kind) if found.table.times else float("nan"),
        source=number.source,
        detector=number.detector,
        encoder=number.encoder,
        used=f"{signature['model']}, distance {signature['distance']}, {signature['cut']}",
    )


def check_number(name: str, form: str) -> Published:
    """The published number of a name; RequestError for an unknown name, or a form that it does not have."""
    number = PUBLISHED.get(name)
    if number is None:
        hint = did_you_mean(name, PUBLISHED)
        raise RequestError(f"no published number is called {name!r}{hint}; there are {', '.join(PUBLISHED)}")
    forms = ("released", "corrected") if number.has_corrected else ("released",)
    if form not in forms:
        raise RequestError(f"{name} has no form {form!r}: choose {' or '.join(forms)}")
    return number


def _similarities(found: Match) -> list[Array]:
    """Similarities (S, R) of each image, to the nearest or the mean reference as the match says."""
    return [1 - found.by_region[time, :, : len(regions)] for time, regions in enumerate(found.table.regions)]


def _to_references(found: Match, aggregate: str) -> list[Array]:
    """Similarities (S, R) of each image, over references by an aggregate of the source's own."""
    distances = found.table.over_references("mean" if aggregate == "mean" else "best")
    values = 1 - distances.detach().cpu().double().numpy()
    return [values[time, :, : len(regions)] for time, regions in enumerate(found.table.regions)]


def _whole(found: Match) -> list[Array]:
    """Similarities (S,) of each whole image to the nearest reference."""
    assert found.whole is not None
    return list(1 - np.nanmin(found.whole.detach().cpu().double().numpy(), 2))


def _psr(found: Match, form: Form) -> float:
    scores = None
    if form == "corrected":
        scores = [np.array([region.score for region in regions]) for regions in found.table.regions]
    return published.psr(_to_references(found, "best"), _whole(found), scores)


def _multiid(found: Match, form: Form) -> float:
    values = published.multiid_similarities(_similarities(found))
    if not len(values):
        return float("nan")
    return published.without_outliers(values) if form == "released" else float(values.mean())


def _umo_reward(found: Match, form: Form) -> float:
    return float(np.mean([published.umo_reward(similarity) for similarity in _similarities(found)]))


def _vistory_cross(found: Match, form: Form) -> float:
    return published.vistory_cross([1 - found.table.at(time) for time in range(len(found.table.regions))], form)


def _vistory_self(found: Match, form: Form) -> float:
    return published.vistory_self([matched_features(found, subject) for subject in range(len(found.thresholds))], form)


def _occm(found: Match, form: Form) -> float:
    counts = [len(regions) for regions in found.table.regions]
    return published.occm(counts, [len(found.thresholds)] * len(counts))


def matched_features(found: Match, subject: int) -> Array:
    """The features (N, D) of a subject's assigned regions, in order of the images that have one."""
    features = []
    for time, assignment in enumerate(found.assignments):
        region = int(assignment.region[subject])
        if region != UNASSIGNED:
            features.append(found.features[time, region, subject].double().numpy())
    return np.stack(features) if features else np.empty((0, 1))


PUBLISHED: dict[str, Published] = {
    "xverse-ip": Published(
        lambda found, form: published.xverse_ip(_to_references(found, "best")),
        "bytedance/XVerse 65e2581 eval/tools/idip_sam-dino_score.py",
        "Florence-2 and SAM 2 by label, first 3 instances, outside white, padded to a white square",
        "dino-vits16, class token, 256 bicubic, center 224",
    ),
    "umo-id-conf": Published(
        lambda found, form: published.umo_id_conf(_to_references(found, "best")),
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
        lambda found, form: float(published.uno_distill(_to_references(found, "best")).mean()),
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
        "vistorybench/vistorybench 514cc31 vistorybench/bench/content/cids_evaluator.py",
        "Grounding DINO SwinT-OGC, 'character', .25",
        "CLIP ViT-L/14; of real people the mean of ArcFace, AdaFace and FaceNet",
        has_corrected=True,
    ),
    "vistory-self": Published(
        _vistory_self,
        "vistorybench/vistorybench 514cc31 vistorybench/bench/content/cids_evaluator.py",
        "Grounding DINO SwinT-OGC, 'character', .25",
        "CLIP ViT-L/14; of real people the mean of ArcFace, AdaFace and FaceNet",
        has_corrected=True,
    ),
    "vistory-occm": Published(
        _occm,
        "vistorybench/vistorybench 514cc31 vistorybench/bench/content/cids_evaluator.py",
        "Grounding DINO SwinT-OGC, 'character', .25",
        "none",
    ),
    "nexus": Published(
        lambda found, form: published.nexus(_similarities(found), form),
        "PKU-YuanGroup/OpenS2V-Nexus b452831 eval/get_nexusscore.py",
        "YOLO-World by the reference image, .5, kept above .6 and text cosine .30; 32 frames",
        "GME-Qwen2-VL-7B",
        has_corrected=True,
    ),
    "msrvtt-subject": Published(
        lambda found, form: published.msrvtt_subject(_to_references(found, "mean"), form),
        "snap-research/MSRVTT-Personalization ce8acfa distributed_subject_dino_similarity.py",
        "Grounding DINO .4, one box for each tag, SAM ViT-B above .9, outside white, padded to a white square",
        "dino_vitb16, 224 bicubic",
        has_corrected=True,
    ),
}
