"""NearID: views of an identity, and near-identity distractors in the same scenes (NearID, section 3.3).

The set of positives (`Aleksandar/NearID`) has the columns images1..3 and masks1..3 (a card says img1..3: accepted too),
each set of distractors (`NearID-Flux`, `-SDXL`, ...) nimg1..3; the third view may be empty. The sets are given
together. They are matched by their shared column `id`, and by row where a set has none.

A positive's id is NAME/ID/view1; its distractors have it as parent and share its background and mask, since a
distractor is the parent's scene with another object in the masked place. Each distractor is an identity of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idmetric.data.importers.run import Job, scalars, where
from idmetric.data.importers.source import Source, SourceError
from idmetric.data.manifest import Row

VIEWS = (1, 2, 3)
_POSITIVES = ("images", "img")
_PLACES = ("train", "val", "test")


def rows(job: Job) -> Iterator[Row]:
    """Positives of all sources first, then distractors."""
    sources = [job.open(source) for source in job.sources]
    for source in sources:
        if _positive_column(job, source) is None and not job.has(source, "nimg1"):
            job.need(source, "images1")
    seen: dict[str, dict[int, dict[str, Any]]] = {}  # identity -> view -> columns of its mask
    for source in sources:
        if _positive_column(job, source) is not None:
            yield from _positives(job, source, seen)
    for source in sources:
        if job.has(source, "nimg1"):
            yield from _distractors(job, source, seen)


def _positives(job: Job, source: Source, seen: dict[str, dict[int, dict[str, Any]]]) -> Iterator[Row]:
    prefix = _positive_column(job, source)
    splits = _positions(job, source)
    read = [c for c in source.columns if not c.startswith("nimg")]
    for number, shard, values in job.rows(source, [_expected(job, c) for c in read]):
        identity = _identity(job, values, number)
        if identity in seen:
            raise SourceError(f"{where(source, shard, number)}, column 'id': {values['id']} occurs twice")
        seen[identity] = {}
        for view in VIEWS:
            name = f"{identity}/view{view}"
            image = job.keep(source, values.get(f"{prefix}{view}"), name)
            if not image:
                continue
            mask = job.keep(source, values.get(f"masks{view}"), f"{name}_mask", "mask")
            seen[identity][view] = mask
            yield Row(
                identity=identity,
                id=name,
                dataset=job.name,
                split=values.get("split") or splits.get(number),
                domain="objects",
                category=values.get("category"),
                background=name,
                text=values.get(f"prompts{view}"),
                parameters={
                    "source": source.label,
                    "row": number,
                    "x_view": view,
                    **scalars(values, "id", "split", "category", "prompts1", "prompts2", "prompts3"),
                },
                **image,
                **mask,
            )


def _distractors(job: Job, source: Source, seen: dict[str, dict[int, dict[str, Any]]]) -> Iterator[Row]:
    engine = job.options.get("engine") or _engine(source.name)
    splits = _positions(job, source)
    read = ["id", "split", "category", *(f"nimg{view}" for view in VIEWS)]
    for number, _, values in job.rows(source, read):
        identity = _identity(job, values, number)
        views = seen.get(identity)
        for view in VIEWS:
            if seen and (views is None or view not in views):
                continue  # a scene whose positive is not there
            name = f"{identity}/view{view}/{engine}"
            image = job.keep(source, values.get(f"nimg{view}"), name)
            if image:
                yield Row(
                    identity=name,
                    id=name,
                    dataset=job.name,
                    split=values.get("split") or splits.get(number),
                    domain="objects",
                    category=values.get("category"),
                    role="distractor",
                    background=f"{identity}/view{view}",
                    engine=engine,
                    parent=f"{identity}/view{view}",
                    parameters={"source": source.label, "row": number, "x_view": view},
                    **image,
                    **(views[view] if views else {}),
                )


def _positive_column(job: Job, source: Source) -> str | None:
    return next((prefix for prefix in _POSITIVES if job.has(source, f"{prefix}1")), None)


def _expected(job: Job, column: str) -> str:
    return next((expected for expected, name in job.columns.items() if name == column), column)


def _identity(job: Job, values: dict[str, Any], number: int) -> str:
    key = values.get("id")
    return f"{job.name}/{number:05d}" if key is None else f"{job.name}/{key}"


def _engine(name: str) -> str:
    """NearID-Flux_1024 -> Flux_1024."""
    return re.sub(r"^NearID[-_]", "", name.rsplit("/", 1)[-1], flags=re.IGNORECASE)


def _positions(job: Job, source: Source) -> dict[int, str]:
    """Row -> split, of the published lists of row positions; empty where the table says it itself."""
    given = job.options.get("splits")
    if given is None and job.has(source, "split"):
        return {}
    folder = Path(given) if given is not None else source.root / "splits"
    found: dict[int, str] = {}
    for split in _PLACES:
        path = folder / f"{split}.json"
        if not path.is_file():
            if given is not None:
                raise SourceError(f"{path}: no such file; the option 'splits' names a folder with it")
            continue
        for row in json.loads(path.read_text(encoding="utf-8")):
            if not isinstance(row, int) or not 0 <= row < source.count:
                raise SourceError(f"{path}: {row!r} is not the position of one of {source.count} rows")
            if found.setdefault(row, split) != split:
                raise SourceError(f"{path}: row {row} is in {found[row]} as well")
    return found
