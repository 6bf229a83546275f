"""Do patch tokens find a subject? The location prior alone, and PerSAM with it (ID-Sim, Table 2c).

    idmetric eval segmentation --data pods.parquet --model dinov3_vitl16 --sam facebook/sam-vit-huge --out results/

Each subject is shown once, with its mask, and then located in all target images, its own and those of other subjects.

docs/reference/columns.md defines the columns. The paper does not describe mAP and F1: here they follow PODS's
published code. As there, a mask's score is the cosine between mean patch tokens of its
box and of the reference's box, and maps are cut by Otsu's threshold without SAM.

Data: images with identity and mask. In PODS the reference is the first image of the part train, targets are those of
test_dense; elsewhere the first image (by id) of an identity with a mask is its reference. Only real images count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.paper_numbers import printed, row_of
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, VectorScorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics import segmentation as measures

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.evaluate.protocols.segmentation.search import Segmentation


@dataclass(frozen=True)
class SegmentationOptions(Checked):
    """Options of the protocol `segmentation`."""

    others: int | None = option(
        None, "images of other subjects to search for each subject, drawn by the seed (default: all)", least=0
    )
    sam: str | None = option(
        None,
        "a Segment Anything Model for PerSAM: folder or Hub repository, such as facebook/sam-vit-huge "
        "(default: the prior alone)",
        metavar="SOURCE",
    )


COLUMNS = {
    "pointing": Column("share of images with the map's maximum on the subject"),
    "IoU": Column("intersection over union of predicted and true mask"),
    "IoU best": Column("IoU at each image's own best threshold: an oracle", 1),
    "IoU one": Column("IoU at the single threshold that is best for all images", 1),
    "mIoU": Column("IoU over all images of a subject together, mean over subjects", 1, "PerSAM"),
    "F1": Column("F1 of predicted masks, mean over IoU 0.5 to 0.95 and subjects", 1, "ID-Sim, Table 2c"),
}


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: SegmentationOptions = SegmentationOptions(),
) -> list[Result]:
    """A result for each model: a row for the location prior, and one for PerSAM if there is a SAM.

    Raises:
        ValueError: if no identity has a reference and a target with masks, a model has no patches, or
            settings.look shows subjects alone.
    """
    from idmetric.data.manifest import take
    from idmetric.evaluate.protocols.segmentation import persam
    from idmetric.evaluate.protocols.segmentation.search import search, tasks

    if settings.look.masked:
        raise ValueError("subjects are located in whole images: leave --subject out")
    real = take(data, data["role"] == "real")
    tasks(real, settings, options.others)  # before anything is embedded
    about = {**settings.as_dict(), "distance": "patch"}
    about["others"] = "all" if options.others is None else options.others
    sam = None
    if options.sam is not None:
        sam = persam.PerSAM(options.sam, device=settings.device)
        about["sam"] = f"{sam.name}@{sam.revision}"

    bound = bind(real, models, replace(settings, distance="patch"))
    all_tasks, notes = tasks(bound.manifest, settings, options.others)
    is_pods = bool((data["dataset"] == "pods").all())
    results = []
    for scorer, result in bound.results("segmentation", about, notes):
        methods = search(
            cast(VectorScorer, scorer),
            bound.manifest,
            all_tasks,
            sam,
            settings.progress,
        )
        label = result.signature.get("model", "") if is_pods else ""
        for method, segmentation in methods.items():
            result.rows.append(_row(method, segmentation, settings, label))
            result.keep(method, **segmentation.columns())
        results.append(result)
    return results


def _row(
    method: str,
    segmentation: Segmentation,
    settings: EvalSettings,
    label: str,
) -> Row:
    """The row of a method.

    Args:
        label: the model's, to print Table 2c's numbers next to PerSAM's; "" prints none.
    """
    from idmetric.evaluate.protocols.segmentation.search import THRESHOLDS

    columns = {name: np.array(values) for name, values in segmentation.columns().items()}
    present = {name: values[columns["present"]] for name, values in columns.items()}  # images that show the subject
    subject = present["subject"]
    row: Row = {"method": method}
    if method != "persam":
        row["pointing"] = intervals.mean(present["pointing"].astype(float), subject, settings)
        row["IoU best"] = intervals.mean(present["best"].astype(float), subject, settings)
        curves = np.stack(segmentation.curves)
        threshold, _ = measures.shared_threshold(curves, THRESHOLDS)
        row["IoU one"] = intervals.mean(curves[:, threshold == THRESHOLDS].ravel(), subject, settings)

    row["IoU"] = intervals.mean(present["iou"], subject, settings)
    pooled = measures.subject_ious(present["intersection"], present["union"], subject)
    row["mIoU"] = intervals.mean(pooled, np.unique(subject), settings)
    if method != "center":  # which is the same in other images
        paper = printed("idsim", "table_2c", row_of("segmentation", label)) if method == "persam" else {}
        row |= _detection(columns, settings, paper)
    return row


def _detection(
    columns: Mapping[str, NDArray[Any]],
    settings: EvalSettings,
    paper: Mapping[str, float],
) -> dict[str, Value]:
    """mAP and F1 of each subject, averaged, next to the paper's numbers."""
    scores = np.nan_to_num(columns["score"].astype(float), nan=-np.inf)  # of empty masks
    subjects = np.unique(columns["subject"])
    precisions = np.empty(len(subjects))
    f1s = np.empty(len(subjects))
    for number, name in enumerate(subjects):
        is_subject = columns["subject"] == name
        masks = columns["iou"][is_subject], scores[is_subject], columns["present"][is_subject]
        precisions[number] = measures.mask_map(*masks)
        f1s[number] = measures.mask_f1(*masks)
    return {
        "mAP": intervals.mean(precisions, subjects, settings, paper.get("mAP")),
        "F1": intervals.mean(f1s, subjects, settings, paper.get("F1")),
    }


PROTOCOL = Protocol(
    name="segmentation",
    run=run,
    options=SegmentationOptions,
    columns=COLUMNS,
    packages={"sam": "transformers"},
)
