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
from collections.abc import Iterator, Sequence
from typing import Any

from idmetric.data.importers.run import Job, Record
from idmetric.data.importers.source import Source, SourceError, read_json
from idmetric.data.manifest.table import Row

VIEWS = (1, 2, 3)
_PROMPTS = tuple(f"prompts{view}" for view in VIEWS)

# identity -> its split, and the mask columns of each view, which distractors inherit
Seen = dict[str, tuple[str | None, dict[int, dict[str, Any]]]]


def rows(job: Job) -> Iterator[Row]:
    """Positives of all sources first, then distractors."""
    sources = [job.open(source=source) for source in job.sources]
    for source in sources:
        job.need(source, *(() if "nimg1" in source.columns else ["images1"]))
    without = [source.name for source in sources if "id" not in source.columns]
    if 0 < len(without) < len(sources):
        raise SourceError(f"{without[0]} has no column 'id', but other sets have: name it by --map id=NAME")
    seen: Seen = {}
    for source in sources:
        if "images1" in source.columns:
            yield from _positives(job, source, seen)
    for source in sources:
        if "nimg1" in source.columns:
            yield from _distractors(job, source, seen)


def _positives(job: Job, source: Source, seen: Seen) -> Iterator[Row]:
    for record, identity, split in _named(job, source, [c for c in source.columns if not c.startswith("nimg")]):
        values = record.values
        masks: dict[int, dict[str, Any]] = {}
        seen[identity] = split, masks
        for view in VIEWS:
            image = record.keep(values.get(f"images{view}"))
            if image:
                masks[view] = record.keep(values.get(f"masks{view}"), "mask")
                about = {**record.about("id", "split", "category", *_PROMPTS), "x_view": view}
                own = {"text": values.get(f"prompts{view}"), "parameters": about, **image, **masks[view]}
                yield _row(record, identity, split, view, identity=identity, **own)


def _distractors(job: Job, source: Source, seen: Seen) -> Iterator[Row]:
    # NearID-Flux_1024 -> Flux_1024
    engine = re.sub(r"^NearID[-_]", "", source.name.rsplit("/", 1)[-1], flags=re.IGNORECASE)
    lone = 0
    for record, identity, split in _named(job, source, ["id", "split", "category", *(f"nimg{v}" for v in VIEWS)]):
        if seen and identity not in seen:
            record.reject(f"no positive {identity!r} for this distractor (--map id=NAME names the column of ids)")
            continue
        split, masks = seen.get(identity, (split, {}))
        for view in VIEWS:
            if seen and view not in masks:
                lone += bool(record.values.get(f"nimg{view}"))
                continue
            if image := record.keep(record.values.get(f"nimg{view}")):
                place = f"{identity}/view{view}"
                about = {"source": source.label, "row": record.number, "x_view": view}
                own = {"engine": engine, "parent": place, "parameters": about, **image, **masks.get(view, {})}
                name = f"{place}/{engine}"
                yield _row(record, identity, split, view, identity=name, id=name, role="distractor", **own)
    if lone:
        warnings.warn(f"{source.name}: {lone} distractors of views without a positive are left out", stacklevel=2)


def _row(record: Record, scene: str, split: str | None, view: int, **columns: Any) -> Row:
    """A row of a view, which is its background."""
    place, kind = f"{scene}/view{view}", record.values.get("category")
    shared = {"dataset": record.job.name, "split": split, "domain": "objects", "category": kind, "background": place}
    return Row(**{"id": place, **shared, **columns})


def _named(job: Job, source: Source, columns: Sequence[str]) -> Iterator[tuple[Record, str, str | None]]:
    """Each row with its identity and split; rows with an empty id are left out."""
    splits, several = _positions(source), len({shard.split for shard in source.shards}) > 1
    for position, record in enumerate(job.rows(source, columns)):
        key, part = record.values.get("id"), record.shard.split
        if key is None and "id" in source.columns:
            record.reject("column 'id' is empty")
            continue
        if key is None:
            key = f"{part}/{record.number:05d}" if several else f"{record.number:05d}"
        split = record.values.get("split") or splits.get(position) or (part if several else None)
        yield record, f"{job.name}/{key}", split


def _positions(source: Source) -> dict[int, str]:
    """Row -> split, from the published lists of row positions; {} if the table has a column of splits."""
    if "split" in source.columns:
        return {}
    folder = source.root / "splits"
    files = {split: folder / f"{split}.json" for split in ("train", "val", "test")}
    listed = {split: read_json(file, list) for split, file in files.items() if file.is_file()}
    found = {row: split for split, rows in listed.items() for row in rows}
    if len(found) < sum(map(len, listed.values())) or any(row not in range(source.count) for row in found):
        raise SourceError(f"{folder}: its lists are not positions of {source.count} rows, each of one split")
    return found
