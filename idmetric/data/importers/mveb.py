"""MVEB, and tables in the conventions of VLM2Vec: queries with targets and negatives (VisME, sections 3 and 4.1).

The columns of MVEB are not documented, so they are recognized by names that such tables use:

    a query     qry_img_path, qry_image_path, query_image, ...; its instruction qry_inst, qry, query_text, ...
    a target    tgt_img_path, pos_image_path, positive, ...: one image, or a list that starts with the right one
    negatives   neg_image_path, negative, ...: one image or a list
    or an image with an identity (and an instruction): identity, label, class_id, ...

A query and its images form a group with the slots query, positive and negative, or with query and candidate (label 1
for the right one, 0 for the rest) if there is a list of targets to rank. Without a column of identities, identities
stay empty, because two rows may show the same one. Every subset becomes a separate dataset, named by the column
`dataset` or by the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from idmetric.data.importers.run import Job, Record, scalars
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import Row

# meaning of a column -> its usual names, the most likely first; --map query=NAME gives another
NAMES = {
    "query": ("qry_img_path", "qry_image_path", "qry_image", "qry_img", "query_image", "query_img", "query_image_path"),
    "query_text": ("qry_text", "qry", "query_text", "query"),
    "instruction": ("qry_inst", "query_instruction", "instruction", "prompt"),
    "target": ("tgt_img_path", "tgt_image_path", "tgt_image", "tgt_img", "target_image", "pos_image_path", "pos_image",
               "pos_img", "positive_image", "positive"),
    "target_text": ("tgt_text", "tgt_inst", "pos_text", "target_text"),
    "negative": ("neg_image_path", "neg_image", "neg_img", "negative_image", "negative", "negatives"),
    "image": ("image", "img", "image_path", "img_path"),
    "identity": ("identity", "identity_id", "class_id", "class", "label", "pid", "person_id", "instance_id"),
    "subset": ("dataset", "subset", "dataset_name", "global_dataset_name", "task"),
    "mask": ("mask",),
}  # fmt: skip


def rows(job: Job) -> Iterator[Row]:
    """The rows of each group, or one row for each image with an identity."""
    source = job.open()
    found = discover(source.columns, job)
    for record in job.rows(source):
        cells = {meaning: record.values.get(column) for meaning, column in found.items()}
        name = cells.get("subset") or (record.shard.stem if record.shard.stem != record.shard.split else None)
        subset = f"{job.name}/{name}" if name else job.name
        about = {"source": source.label, "row": record.number}
        extra = {**about, **scalars(record.values, *found.values())}
        shared = {"dataset": subset, "split": record.shard.split, "parameters": about}
        place = f"{subset}/{record.shard.split or 'all'}/{record.number:06d}"
        if "query" in found:
            yield from _group(record, subset, cells, place, extra, shared)
            continue
        image = record.keep(cells["image"])
        if not image or cells["identity"] is None:
            record.reject("no identity" if image else "no image")
            continue
        own = {"text": cells.get("instruction"), **image, **record.keep(cells.get("mask"), "mask")}
        yield Row(**{"identity": f"{subset}/{cells['identity']}", "id": place, **shared, **own, "parameters": extra})


def discover(columns: tuple[str, ...], job: Job) -> dict[str, str]:
    """Meaning -> column of a table; SourceError if they give neither queries nor labeled images."""
    unknown = [meaning for meaning in job.columns if meaning not in NAMES or meaning not in columns]
    if unknown:
        names = f"columns are {', '.join(columns)}, their meanings {', '.join(NAMES)}"
        raise SourceError(f"--map {unknown[0]}={job.columns[unknown[0]]}: {names}")
    own = [name for name in columns if name not in job.columns]
    usual = {m: next((n for n in names if n in own), "") for m, names in NAMES.items()}
    named = {m: name for m, name in usual.items() if name} | {m: m for m in job.columns}
    if "query" in named and named.get("identity") in ("label", "class"):
        del named["identity"]  # in a table of queries it may be a relevance or a category
    if {"query", "target"} <= named.keys() or {"image", "identity"} <= named.keys():
        return named
    raise SourceError(
        f"unknown columns: {', '.join(columns)}; name a query and its target (--map query=NAME --map target=NAME), or "
        f"an image and its identity; there are {', '.join(NAMES)}"
    )


def _group(
    record: Record, subset: str, cells: dict[str, Any], group: str, extra: dict[str, Any], shared: dict[str, Any]
) -> Iterator[Row]:
    targets, negatives, texts = (_many(cells.get(name)) for name in ("target", "negative", "target_text"))
    ranked = isinstance(cells.get("target"), list) and len(targets) > 1
    asked = " ".join(str(t) for t in (cells.get("instruction"), cells.get("query_text")) if t) or None
    own = None if cells.get("identity") is None else f"{subset}/{cells['identity']}"
    members: list[tuple[Any, dict[str, Any]]] = [
        (cells.get("query"), {"slot": "query", "text": asked, "identity": own, "parameters": extra})
    ]
    for at, target in enumerate(targets):
        text = str(texts[at if at < len(texts) else -1]) if texts else None
        place = {"slot": "candidate", "label": float(at == 0)} if ranked else {"slot": "positive"}
        members.append((target, {"text": text, "identity": None if at else own, **place}))
    members += [(negative, {"slot": "negative"}) for negative in negatives]

    if len(members) < 2:
        record.reject("the query has neither target nor negative")
    else:
        yield from record.group(group, {str(at): member for at, member in enumerate(members)}, **shared)


def _many(cell: Any) -> list[Any]:
    return [one for one in (cell if isinstance(cell, list) else [cell]) if one not in (None, "")]
