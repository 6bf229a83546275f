"""Do patch tokens find a subject? The location prior alone, and PerSAM with it (ID-Sim, Table 2c).

    idmetric eval segmentation --data pods.parquet --model dinov3_vitl16 --sam facebook/sam-vit-huge --out results/

Each subject is shown once, with its mask, and then located in all target images, its own and those of other subjects.

docs/columns.md defines the columns. The paper does not describe mAP and F1: here they follow PODS's
published code (see `evaluate.segmentation`). As there, a mask's score is the cosine between mean patch tokens of its
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
from idmetric.evaluate.statistics import segmentation as measures
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.protocols.segmentation.persam import PerSAM
    from idmetric.evaluate.protocols.segmentation.search import Found


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
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: SegmentationOptions = SegmentationOptions(),
    sam: PerSAM | None = None,
) -> list[Result]:
    """A result for each model: a row for the location prior, and one for PerSAM if there is a SAM.

    Args:
        sam: in place of the one that `options.sam` names.

    Raises:
        ValueError: if no identity has a reference and a target with masks, a model has no patches, or
            settings.look shows subjects alone.
    """
    from idmetric.evaluate.protocols.segmentation.search import search, tasks

    if settings.look.masked:
        raise ValueError("subjects are located in whole images: leave --subject out")
    real = data.take(np.array([r == "real" for r in data.column("role")], dtype=bool))
    tasks(real, settings, options.others)  # before anything is embedded
    if sam is None and options.sam is not None:
        from idmetric.evaluate.protocols.segmentation.persam import PerSAM

        sam = PerSAM(options.sam, device=settings.device)
    bound = bind(real, models, replace(settings, distance="patch"))
    looked, notes = tasks(bound.manifest, settings, options.others)
    others = "all" if options.others is None else options.others
    about = {**settings.as_dict(), "distance": "patch", "others": others, **({"sam": sam.name} if sam else {})}
    pods = set(data.column("dataset")) == {"pods"}
    results = []

    for scorer, result in bound.results("segmentation", about, notes):
        found = search(cast(VectorScorer, scorer), bound.manifest, looked, sam, settings.progress)
        label = result.signature.get("model", "") if pods else ""
        result.rows.extend(_row(method, kept, settings, label) for method, kept in found.items())
        result.items.update({method: kept.columns() for method, kept in found.items()})
        results.append(result)

    return results


def _row(method: str, found: Found, settings: EvalSettings, label: str) -> Row:
    from idmetric.evaluate.protocols.segmentation.search import THRESHOLDS

    table = {name: np.array(column) for name, column in found.columns().items()}
    own = table["present"].astype(bool)
    subject = table["subject"]
    row: Row = {"method": method}
    if method != "persam":
        row["pointing"] = intervals.mean(table["pointing"][own].astype(float), subject[own], settings)
        row["IoU best"] = intervals.mean(table["best"][own].astype(float), subject[own], settings)
        curves = np.stack(found.curves)
        threshold, _ = measures.shared_threshold(curves, THRESHOLDS)
        row["IoU one"] = intervals.mean(curves[:, threshold == THRESHOLDS][:, 0], subject[own], settings)

    row["IoU"] = intervals.mean(table["iou"][own], subject[own], settings)
    names = np.unique(subject[own])
    pooled = measures.subject_ious(table["intersection"][own], table["union"][own], subject[own])
    row["mIoU"] = intervals.mean(pooled, names, settings)
    if method != "center":  # which is the same in other images
        row |= _detection(table, names, settings, label if method == "persam" else "")
    return row


def _detection(table: Mapping[str, Any], names: NDArray[Any], settings: EvalSettings, label: str) -> dict[str, Value]:
    """mAP and F1 of each subject, averaged, with Table 2c's numbers if they are comparable."""
    scores = np.array([-np.inf if s is None else s for s in table["score"]], dtype=np.float64)
    values = []
    for name in names:
        mine = table["subject"] == name
        given = table["iou"][mine], scores[mine], table["present"][mine].astype(bool)
        values.append((measures.mask_map(*given), measures.mask_f1(*given)))

    paper = printed("idsim", "table_2c", row_of("segmentation", label))
    columns = np.array(values).T
    pairs = zip(("mAP", "F1"), columns, strict=True)
    return {name: intervals.mean(column, names, settings, paper.get(name)) for name, column in pairs}


PROTOCOL = Protocol(
    name="segmentation",
    run=run,
    options=SegmentationOptions,
    columns=COLUMNS,
    packages={"sam": "transformers"},
)
