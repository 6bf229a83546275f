"""Mind-the-Glitch: two views of an object, each also with one part inpainted (Eldesokey et al.; NearID, section 3.4).

Columns image_{1,2}_{original,inpainted,object_mask,part_mask}. The inpainted image has the original as parent and its
oracle score: 1 - |part| / |object|.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from idmetric.data.importers.run import Columns, ImportJob, Record
from idmetric.data.old_manifest.table import Row
from idmetric.metric.images import ImageReadError
from idmetric.metric.masks import read_mask

ENGINE = "SDXL"  # "part-level inpaintings from a single source (SDXL)" (NearID, section 3.3)
VIEWS = (1, 2)
_PARTS = ("original", "inpainted", "object_mask", "part_mask")


def rows(job: ImportJob) -> Iterator[Row]:
    """For each view the original (real) and the inpainted image (part-edit)."""
    columns = [f"image_{view}_{part}" for view, part in product(VIEWS, _PARTS)]
    for record in job.records(job.open(*columns)):
        for view in VIEWS:
            yield from _view(job, record, view)


def _view(job: ImportJob, record: Record, view: int) -> Iterator[Row]:
    values = record.values
    split = values.get("split") or record.shard.split
    name = record.text("id") or f"{record.number:05d}"
    identity = "/".join(filter(None, (split, name)))
    scene = f"{identity}/view{view}"

    original = record.keep(values[f"image_{view}_original"])
    inpainted = record.keep(values[f"image_{view}_inpainted"])
    subject = record.keep(values[f"image_{view}_object_mask"], "mask")
    part = record.keep(values[f"image_{view}_part_mask"], "part_mask")
    shared: Columns = {
        "split": split,
        "domain": "objects",
        "category": values.get("category"),
        "background": f"{job.name}/{scene}",
        "parameters": {"x_view": view, **record.about("id", "split", "category")},
        **subject,
    }
    if original:
        yield job.row(identity, scene, **shared, **original)
    if inpainted:
        yield job.row(
            f"{scene}/edit",
            f"{scene}/edit",
            role="part-edit",
            engine=ENGINE,
            oracle=_oracle_of(subject, part),
            parent=scene if original else None,
            **shared,
            **inpainted,
            **part,
        )


def oracle_score(subject: torch.Tensor, part: torch.Tensor) -> float:
    """Share of the object that a part edit kept: 1 - |part| / |object|, higher = less changed.

    As in NearID's released code, a mask's area is the number of its pixels above 0, a part that is larger than its
    object gives less than 0, and an empty object gives 0.

    Args:
        subject, part: coverage (H, W) in [0, 1], as returned by `read_mask`.

    Source: NearID, section 3.4.
    """
    area = int((subject > 0).sum())
    return 1 - int((part > 0).sum()) / area if area else 0.0


def _oracle_of(subject: Columns, part: Columns) -> float | None:
    """The oracle score: 0 without one of the masks, as in NearID's released code.

    None if a mask is unreadable, which the check of the files reports.
    """
    if not subject or not part:
        return 0.0
    [subject_file], [part_file] = subject.values(), part.values()
    try:
        subject_mask = read_mask(subject_file)
        height, width = subject_mask.shape
        return oracle_score(subject_mask, read_mask(part_file, (height, width)))
    except ImageReadError:
        return None
