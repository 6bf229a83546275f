"""NearID: views of an identity, and near-identity distractors in the same scenes (NearID, section 3.3).

The set of positives (`Aleksandar/NearID`) has the columns images1..3 and masks1..3. Each set of distractors
(`NearID-Flux`, `-SDXL`, ...) has nimg1..3; the third view may be empty. The sets are imported together. They match by
their shared column `id` or, if none of them has it, by the row's number, counted within its split if a set is stored in
several. A distractor without its identity's positives is reported, one of a view without a positive left out.

The split is the column `split`, else the published position, else the part of the set (train, test) that stores the
row. A set that is stored in one part has no split, because the Hub calls any table "train".

A positive's id is NAME/ID/view1. Its distractors have it as parent and share its background and mask, because a
distractor shows the parent's scene with another object in the masked place. Each distractor is a separate identity.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.source import Record, Row, Source, read_json
from idmetric.data.manifest import ManifestError

VIEWS = (1, 2, 3)
_PROMPTS = ("prompts1", "prompts2", "prompts3")

# identity -> its split, and the mask of each view, which distractors inherit
Scenes = dict[str, tuple[str | None, dict[int, Path | None]]]


def nearid(job: ImportJob) -> Iterator[Row]:
    """Positives of all sources first, then distractors."""
    sources = [job.open(source=source) for source in job.sources]
    with_ids = ["id" in source.columns for source in sources]
    if any(with_ids) and not all(with_ids):
        name = sources[with_ids.index(False)].name
        raise ManifestError(f"{name} has no column 'id', but other sets have: name it by --map id=NAME")
    for source in sources:
        if "nimg1" not in source.columns:
            source.need("images1")

    scenes: Scenes = {}
    for source in sources:
        if "images1" in source.columns:
            yield from _positives(job, source, scenes)
    for source in sources:
        if "nimg1" in source.columns:
            yield from _distractors(job, source, scenes)


def _positives(job: ImportJob, source: Source, scenes: Scenes) -> Iterator[Row]:
    published = _published_splits(source)

    def views(record: Record) -> list[Row]:
        identity, split = _named(record, published)
        rows = []
        masks: dict[int, Path | None] = {}
        scenes[identity] = split, masks
        for view in VIEWS:
            if record[f"images{view}"]:
                masks[view] = job.keep(record[f"masks{view}"], source.locate)
                row: Row = {
                    "identity": identity,
                    "id": f"{identity}/view{view}",
                    "path": record[f"images{view}"],
                    "mask": masks[view],
                    "split": split,
                    "text": record[f"prompts{view}"],
                    "parameters": record.about("id", "split", "category", *_PROMPTS),
                }
                rows.append(row | _scene(job, record, identity, view))
        return rows

    return job.rows(source, views)


def _distractors(job: ImportJob, source: Source, scenes: Scenes) -> Iterator[Row]:
    published = _published_splits(source)
    engine = re.sub("^NearID[-_]", "", source.name.rsplit("/", 1)[-1], flags=re.IGNORECASE)  # such as Flux_1024

    def views(record: Record) -> list[Row]:
        identity, split = _named(record, published)
        if scenes and identity not in scenes:
            name = f"{job.dataset}/{identity}"
            raise ValueError(f"no positive {name!r} for this distractor (--map id=NAME names the column of ids)")
        split, masks = scenes.get(identity, (split, {}))
        rows = []
        for view in VIEWS:
            image = record[f"nimg{view}"]
            if image and scenes and view not in masks:
                warnings.warn(f"{source.name}: distractors of views without a positive are left out", stacklevel=2)
            elif image:
                name = f"{identity}/view{view}/{engine}"
                row: Row = {
                    "identity": name,
                    "id": name,
                    "path": image,
                    "mask": masks.get(view),
                    "split": split,
                    "role": "distractor",
                    "engine": engine,
                    "parent": f"{identity}/view{view}",
                    "parameters": {"source": source.label, "row": record.number},
                }
                rows.append(row | _scene(job, record, identity, view))
        return rows

    return job.rows(source, views)


def _scene(job: ImportJob, record: Record, identity: str, view: int) -> Row:
    """The columns of all images of a view, which is their background."""
    return {
        "domain": "objects",
        "category": record["category"],
        "background": f"{job.dataset}/{identity}/view{view}",
        "x_view": view,
    }


def _named(record: Record, published: dict[int, str]) -> tuple[str, str | None]:
    """Identity and split of a row; ValueError for an empty id."""
    name = record.text("id")
    part = record.shard.split if _is_in_parts(record.source) else None
    if "id" not in record.source.columns:
        name = "/".join(filter(None, (part, f"{record.number:05d}")))
    elif name is None:
        raise ValueError("column 'id' is empty")
    return name, record["split"] or published.get(record.number) or part


def _published_splits(source: Source) -> dict[int, str]:
    """Row -> split, from the published lists of row positions; {} if the set is stored in parts, or has a column."""
    splits: dict[int, str] = {}
    if "split" in source.columns or _is_in_parts(source):
        return splits
    for split in ("train", "val", "test"):
        file = source.root / "splits" / f"{split}.json"
        for position in read_json(file, list) if file.is_file() else ():
            if position not in range(len(source)) or position in splits:
                raise ManifestError(
                    f"{file.parent}: its lists are not positions of {len(source)} rows, each of one split"
                )
            splits[position] = split
    return splits


def _is_in_parts(source: Source) -> bool:
    return len({shard.split for shard in source.shards}) > 1
