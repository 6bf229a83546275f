"""Mind-the-Glitch: two views of an object, each also with one part inpainted (Eldesokey et al.; NearID, section 3.4).

Columns image_{1,2}_{original,inpainted,object_mask,part_mask}. The inpainted image has the original as parent and its
oracle score: 1 - |part| / |object|.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from idmetric.data.importers.run import Job, Record
from idmetric.data.manifest.table import Row
from idmetric.metric.images.masks import read_mask
from idmetric.metric.images.read import ImageReadError

ENGINE = "SDXL"  # "part-level inpaintings from a single source (SDXL)" (NearID, section 3.3)
VIEWS = (1, 2)
_PARTS = ("original", "inpainted", "object_mask", "part_mask")


def rows(job: Job) -> Iterator[Row]:
    """For each view the original (real) and the inpainted image (part-edit)."""
    source = job.open(*(f"image_{view}_{part}" for view in VIEWS for part in _PARTS))
    for record in job.rows(source):
        for view in VIEWS:
            yield from _view(job, record, view)


def _view(job: Job, record: Record, view: int) -> Iterator[Row]:
    values = record.values
    split = values.get("split") or record.shard.split
    key = "/".join(str(part) for part in (job.name, split, values.get("id") or f"{record.number:05d}") if part)
    name = f"{key}/view{view}"
    cells = {part: values.get(f"image_{view}_{part}") for part in _PARTS}
    subject, part = record.keep(cells["object_mask"], "mask"), record.keep(cells["part_mask"], "part_mask")
    shared: dict[str, Any] = {
        "dataset": job.name, "split": split, "domain": "objects", "category": values.get("category"),
        "background": name, "parameters": {"x_view": view, **record.about("id", "split", "category")}, **subject,
    }  # fmt: skip
    if image := record.keep(cells["original"]):
        yield Row(key, id=name, **shared, **image)
    if edited := record.keep(cells["inpainted"]):
        yield Row(
            f"{name}/edit",
            id=f"{name}/edit",
            role="part-edit",
            engine=ENGINE,
            oracle=_oracle_of(subject, part),
            parent=name if image else None,
            **shared,
            **edited,
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


def _oracle_of(subject: dict[str, Any], part: dict[str, Any]) -> float | None:
    """The oracle score: 0 without one of the masks, as in NearID's released code.

    None if a mask is unreadable, which the check of the files reports.
    """
    if not subject or not part:
        return 0.0
    [subject_file], [part_file] = subject.values(), part.values()
    with suppress(ImageReadError):
        whole = read_mask(subject_file)
        return oracle_score(whole, read_mask(part_file, (whole.shape[0], whole.shape[1])))
    return None
