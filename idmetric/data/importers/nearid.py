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

from idmetric.data.importers.run import Columns, ImportJob, Record
from idmetric.data.importers.source import Source, read_json
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row

VIEWS = (1, 2, 3)
_PROMPTS = tuple(f"prompts{view}" for view in VIEWS)

# identity -> its split, and the mask columns of each view, which distractors inherit
Scenes = dict[str, tuple[str | None, dict[int, Columns]]]


def rows(job: ImportJob) -> Iterator[Row]:
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
    for record, identity, split in _named(job, source):
        masks: dict[int, Columns] = {}
        scenes[identity] = split, masks
        for view in VIEWS:
            image = record.keep(record.values.get(f"images{view}"))
            if not image:
                continue
            masks[view] = record.keep(record.values.get(f"masks{view}"), "mask")
            yield job.row(
                identity,
                f"{identity}/view{view}",
                text=record.values.get(f"prompts{view}"),
                parameters={**record.about("id", "split", "category", *_PROMPTS), "x_view": view},
                **_scene(record, identity, split, view),
                **image,
                **masks[view],
            )


def _distractors(job: ImportJob, source: Source, scenes: Scenes) -> Iterator[Row]:
    engine = re.sub("^NearID[-_]", "", source.name.rsplit("/", 1)[-1], flags=re.IGNORECASE)  # such as Flux_1024
    lone = 0
    for record, identity, split in _named(job, source):
        if scenes and identity not in scenes:
            name = f"{job.name}/{identity}"
            record.reject(f"no positive {name!r} for this distractor (--map id=NAME names the column of ids)")
            continue
        split, masks = scenes.get(identity, (split, {}))
        for view in VIEWS:
            cell = record.values.get(f"nimg{view}")
            if scenes and view not in masks:
                lone += bool(cell)
                continue
            image = record.keep(cell)
            if not image:
                continue
            name = f"{identity}/view{view}/{engine}"
            yield job.row(
                name,
                name,
                role="distractor",
                engine=engine,
                parent=f"{identity}/view{view}",
                parameters={**record.origin, "x_view": view},
                **_scene(record, identity, split, view),
                **image,
                **masks.get(view, {}),
            )
    if lone:
        warnings.warn(f"{source.name}: {lone} distractors of views without a positive are left out", stacklevel=2)


def _scene(record: Record, identity: str, split: str | None, view: int) -> Columns:
    """The columns of all images of a view, which is their background."""
    background = f"{record.job.name}/{identity}/view{view}"
    return {"split": split, "domain": "objects", "category": record.values.get("category"), "background": background}


def _named(job: ImportJob, source: Source) -> Iterator[tuple[Record, str, str | None]]:
    """Each row with its identity and split; rows with an empty id are left out."""
    split_of = _positions(source)
    has_parts = len({shard.split for shard in source.shards}) > 1
    for position, record in enumerate(job.records(source)):
        name = record.text("id")
        if "id" in source.columns and name is None:
            record.reject("column 'id' is empty")
            continue
        identity = name or f"{record.number:05d}"
        split = record.values.get("split") or split_of.get(position)
        if has_parts:
            split = split or record.shard.split
            if "id" not in source.columns:
                identity = f"{record.shard.split}/{identity}"
        yield record, identity, split


def _positions(source: Source) -> dict[int, str]:
    """Row -> split, from the published lists of row positions; {} if the table has a column of splits."""
    split_of: dict[int, str] = {}
    if "split" in source.columns:
        return split_of
    for split in ("train", "val", "test"):
        file = source.root / "splits" / f"{split}.json"
        if not file.is_file():
            continue
        for position in read_json(file, list):
            is_position = isinstance(position, int) and position in range(source.count)
            if not is_position or position in split_of:
                raise ManifestError(
                    f"{file.parent}: its lists are not positions of {source.count} rows, each of one split"
                )
            split_of[position] = split
    return split_of
