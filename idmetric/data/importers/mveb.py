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

from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.source import Record, Row, Source, as_list
from idmetric.data.manifest import ManifestError

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


def mveb(job: ImportJob) -> Iterator[Row]:
    """The rows of each group, or one row for each image with an identity."""
    source = job.open()
    column_of = discover(source)
    return job.rows(source, lambda record: _rows(job, record, column_of))


def discover(source: Source) -> dict[str, str]:
    """Meaning -> column of a table; ManifestError if they give neither queries nor labeled images."""
    column_of: dict[str, str] = {}
    for meaning, names in NAMES.items():
        for name in (meaning, *names) if meaning in source.renamed else names:
            if name in source.columns and (name == meaning or name not in source.renamed):
                column_of.setdefault(meaning, name)

    if "query" in column_of and column_of.get("identity") in ("label", "class"):
        del column_of["identity"]  # in a table of queries it may be a relevance or a category
    is_known = {"query", "target"} <= column_of.keys() or {"image", "identity"} <= column_of.keys()
    if is_known and source.renamed.keys() <= column_of.keys():
        return column_of
    raise ManifestError(
        f"unknown columns: {', '.join(source.columns)}; name a query and its target (--map query=NAME --map "
        f"target=NAME), or an image and its identity; there are {', '.join(NAMES)}"
    )


def _rows(job: ImportJob, record: Record, column_of: dict[str, str]) -> list[Row]:
    cells = {meaning: record[column] for meaning, column in column_of.items()}
    stem, split = record.shard.stem, record.shard.split
    subset = cells.get("subset") or (stem if stem != split else None)
    prefix = f"{subset}/" if subset else ""
    identity = record.text(column_of["identity"]) if "identity" in column_of else None
    about: Row = {
        "identity": identity and f"{prefix}{identity}",
        "parameters": record.about(*column_of.values()),
    }
    shared: Row = {
        "dataset": f"{job.dataset}/{prefix}".rstrip("/"),
        "split": split,
    }
    name = f"{prefix}{split or 'all'}/{record.number:06d}"
    if "query" in column_of:
        members = _members(cells, about)
        if len(members) < 2:
            raise ValueError("the query has neither target nor negative")
        origin = {"source": record.source.label, "row": record.number}
        shared |= {"group": name, "parameters": origin}
        return [{**shared, "id": f"{name}/{number}", **member} for number, member in enumerate(members)]

    if identity is None:
        raise ValueError("no identity")
    row = {
        "id": name,
        "path": cells["image"],
        "mask": cells.get("mask"),
        "text": cells.get("instruction"),
    }
    return [row | shared | about]


def _members(cells: Row, about: Row) -> list[Row]:
    """The rows of a query's group; its identity and parameters are `about`."""
    targets, texts, negatives = (_listed(cells.get(name)) for name in ("target", "target_text", "negative"))
    words = [str(cells[name]) for name in ("instruction", "query_text") if cells.get(name)]
    members: list[Row] = [{"slot": "query", "path": cells["query"], "text": " ".join(words) or None, **about}]
    is_ranked = isinstance(cells.get("target"), list) and len(targets) > 1
    for number, target in enumerate(targets):
        member: Row = {"slot": "positive", "path": target}
        if is_ranked:
            member |= {"slot": "candidate", "label": float(number == 0)}
        if texts:
            member["text"] = str(texts[min(number, len(texts) - 1)])
        if number == 0:
            member["identity"] = about["identity"]
        members.append(member)
    return members + [{"slot": "negative", "path": negative} for negative in negatives]


def _listed(cell: Any) -> list[Any]:
    return [value for value in as_list(cell) if value not in (None, "")]
