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

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from idmetric.data.importers.run import Columns, ImportJob, as_list
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row

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


def rows(job: ImportJob) -> Iterator[Row]:
    """The rows of each group, or one row for each image with an identity."""
    source = job.open(known=chain.from_iterable(NAMES.values()))
    column_of = discover(source.columns, job)
    for record in job.records(source):
        cells = {meaning: record.values[column] for meaning, column in column_of.items()}
        stem, split = record.shard.stem, record.shard.split
        subset = cells.get("subset")
        if not subset and stem != split:
            subset = stem
        prefix = f"{subset}/" if subset else ""
        identity = None
        if "identity" in column_of:
            identity = record.text(column_of["identity"])
        if identity is not None:
            identity = f"{prefix}{identity}"
        name = f"{prefix}{split or 'all'}/{record.number:06d}"
        shared = {"dataset": f"{job.name}/{prefix}".rstrip("/"), "split": split}
        parameters = record.about(*column_of.values())

        if "query" in column_of:
            members = _members(cells, {"identity": identity, "parameters": parameters})
            if len(members) > 1:
                yield from record.group(name, members, parameters=record.origin, **shared)
            else:
                record.reject("the query has neither target nor negative")
            continue
        image = record.keep(cells["image"])
        if not image:
            record.reject("no image")
            continue
        if identity is None:
            record.reject("no identity")
            continue
        mask = record.keep(cells.get("mask"), "mask")
        yield job.row(identity, name, text=cells.get("instruction"), parameters=parameters, **shared, **image, **mask)


def discover(columns: Sequence[str], job: ImportJob) -> dict[str, str]:
    """Meaning -> column of a table; ManifestError if they give neither queries nor labeled images."""
    column_of = {}
    for meaning, name in job.columns.items():
        if meaning not in NAMES or meaning not in columns:
            raise ManifestError(
                f"--map {meaning}={name}: columns are {', '.join(columns)}, their meanings {', '.join(NAMES)}"
            )
        column_of[meaning] = meaning
    for meaning, usual_names in NAMES.items():
        for name in usual_names:
            if name in columns and name not in job.columns:
                column_of.setdefault(meaning, name)

    if "query" in column_of and column_of.get("identity") in ("label", "class"):
        del column_of["identity"]  # in a table of queries it may be a relevance or a category
    if {"query", "target"} <= column_of.keys() or {"image", "identity"} <= column_of.keys():
        return column_of
    raise ManifestError(
        f"unknown columns: {', '.join(columns)}; name a query and its target (--map query=NAME --map target=NAME), or "
        f"an image and its identity; there are {', '.join(NAMES)}"
    )


def _members(cells: Columns, about: Columns) -> dict[str, tuple[Any, Columns]]:
    """The members of a query's group, as for `Record.group`; its identity and parameters are `about`."""
    targets, texts, negatives = (_listed(cells.get(name)) for name in ("target", "target_text", "negative"))
    words = [str(cells[name]) for name in ("instruction", "query_text") if cells.get(name)]
    members = [(cells["query"], {"slot": "query", "text": " ".join(words) or None, **about})]
    is_ranked = isinstance(cells.get("target"), list) and len(targets) > 1
    for number, target in enumerate(targets):
        columns: Columns = {"slot": "positive"}
        if is_ranked:
            columns = {"slot": "candidate", "label": float(number == 0)}
        if texts:
            columns["text"] = str(texts[min(number, len(texts) - 1)])
        if number == 0:
            columns["identity"] = about["identity"]
        members.append((target, columns))
    members += [(negative, {"slot": "negative"}) for negative in negatives]
    return {str(number): member for number, member in enumerate(members)}


def _listed(cell: Any) -> list[Any]:
    return [value for value in as_list(cell) if value not in (None, "")]
