"""MMEB of VLM2Vec: queries and targets that are images, texts or both (VisME, section 5.1).

    idmetric data import mmeb MMEB-train/ -o mmeb.parquet                                       # TIGER-Lab/MMEB-train
    idmetric data import mmeb MMEB-eval/ --option image_dir=eval_images/ -o mmeb-eval.parquet   # TIGER-Lab/MMEB-eval

Training tables have the columns qry, qry_image_path, pos_text, pos_image_path, and perhaps neg_text, neg_image_path. A
row becomes a group of a query, its positive and perhaps its negatives.

Evaluation tables have qry_text, qry_img_path, and the lists tgt_text and tgt_img_path of candidates, the first of which
is the right one. A query lists its candidates by number in x_candidates, in their order; candidates of a subset that
several queries share are one row.

Texts stay as they are, except for VLM2Vec's image token at their start, which stands for the image. The line break
after it stays. `--option targets=b3` puts B3's instructions before targets of text alone. The subset, which names the
dataset, is the name of the folder of a table.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.importers.mmeb_sets import target_words
from idmetric.data.importers.run import Columns, ImportJob, Record, as_list
from idmetric.data.importers.source import Source, locate
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row

TRAIN = ("qry", "qry_image_path", "pos_text", "pos_image_path")
NEGATIVE = ("neg_text", "neg_image_path")
EVAL = ("qry_text", "qry_img_path", "tgt_text", "tgt_img_path")
VARIANTS = ("original", "diverse_instruction")  # of the training tables
TARGETS = ("plain", "b3")  # words before targets of text alone
TOKEN = "<|image_1|>"  # Phi-3.5-V's, in all of MMEB's texts
MOST = 50_000  # training rows of a subset, the first ones, as in VLM2Vec's commands; 662K pairs in VisME


def rows(job: ImportJob) -> Iterator[Row]:
    """The rows of training groups, or of queries and candidates to evaluate."""
    source = job.open()
    job.choice("targets", *TARGETS)
    if not _image_dir(job, source).is_dir():
        raise ManifestError(f"option image_dir={job.options['image_dir']}: no such folder")
    if set(EVAL).isdisjoint(source.columns):
        source.need(*TRAIN)
        yield from _training(job, source)
    else:
        source.need(*EVAL)
        yield from _evaluation(job, source)


def _training(job: ImportJob, source: Source) -> Iterator[Row]:
    variant = job.choice("variant", *VARIANTS)
    other_variants = {*VARIANTS} - {variant}
    names = {shard.split or shard.stem for shard in source.shards}
    if names <= other_variants:
        raise ManifestError(f"{source.name}: no table of {variant!r}: use --option variant={min(names)}")
    most = int(job.options.get("most", MOST)) or math.inf
    counts: Counter[str] = Counter()

    for record in job.records(source):
        values, shard, subset = record.values, record.shard, _subset(record)
        number = counts[subset]
        if (shard.split or shard.stem) in other_variants or number >= most:
            continue
        counts[subset] += 1
        try:
            members = [
                ("query", _item(record, values["qry"], values["qry_image_path"])),
                ("positive", _target(record, values["pos_text"], values["pos_image_path"])),
            ]
            texts, paths = (as_list(values.get(name)) for name in NEGATIVE)
            for text, path in zip_longest(texts, paths):
                if text or path:
                    members.append(("negative", _target(record, text, path)))
        except ManifestError as error:
            record.reject(error)
            continue

        group = f"{subset}/train/{number:06d}"
        shared = {"group": group, "dataset": f"{job.name}/{subset}", "split": "train"}
        parameters = {"source": source.label, "row": number}
        for position, (slot, columns) in enumerate(members):
            yield job.row(None, f"{group}/{position}", slot=slot, parameters=parameters, **shared, **columns)


def _evaluation(job: ImportJob, source: Source) -> Iterator[Row]:
    numbers_of: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)  # subset -> (text, path) -> candidate
    for record in job.records(source):
        values, subset, split = record.values, _subset(record), record.shard.split or "test"
        numbers = numbers_of[f"{subset}/{split}"]
        try:
            query = _item(record, values["qry_text"], values["qry_img_path"])
            texts, paths = record.list_in("tgt_text"), record.list_in("tgt_img_path")
            if not texts or not paths or len(texts) != len(paths):
                raise ManifestError("tgt_text and tgt_img_path are not two lists of one length")
            candidates: dict[tuple[str, str], None] = {}  # each once, the right one first
            for text, path in zip(texts, paths, strict=True):
                candidates[str(text or ""), str(path or "")] = None
            new = {cells: _target(record, *cells) for cells in candidates if cells not in numbers}
        except ManifestError as error:
            record.reject(error)
            continue

        shared = {"dataset": f"{job.name}/{subset}", "split": split}
        for cells, columns in new.items():
            numbers[cells] = len(numbers)
            name = candidate_id(subset, split, numbers[cells])
            group = f"{subset}/{split}/candidates"
            parameters = {"source": source.label}
            yield job.row(None, name, group=group, slot="candidate", parameters=parameters, **shared, **columns)
        group = f"{subset}/{split}/{record.number:06d}"
        listed = np.array([numbers[cells] for cells in candidates], dtype=np.int32)
        about = {**record.origin, "x_candidates": listed}
        yield job.row(None, f"{group}/query", group=group, slot="query", parameters=about, **shared, **query)


def candidate_id(subset: str, split: str, number: int) -> str:
    """The id of the row of a candidate, by its number in x_candidates."""
    return f"{subset}/{split}/candidate-{number:06d}"


def _subset(record: Record) -> str:
    """The dataset of a table: the folder that holds it (and perhaps a folder for its split), or its own name."""
    shard = record.shard
    folder = shard.path.absolute().parent
    if folder.name == shard.split:
        folder = folder.parent
    if shard.split is not None or shard.stem in ("test", "train", *VARIANTS):
        return folder.name
    return shard.stem


def _target(record: Record, text: Any, path: Any) -> Columns:
    """As `_item`, for a target, negative or candidate, with B3's instruction before a text alone, if asked for."""
    if record.job.choice("targets", *TARGETS) == "b3" and text and not path:
        text = f"{target_words(_subset(record))}{text}"
    return _item(record, text, path)


def _item(record: Record, text: Any, path: Any) -> Columns:
    """Text and image of a query or target; ManifestError if it is empty or its image missing or inside the text."""
    text = str(text or "")
    words = text.removeprefix(TOKEN)
    if TOKEN in words:
        raise ManifestError(f"{TOKEN} inside the text {words[:60]!r}: models take one image, before the text")
    if not path and words != text:
        raise ManifestError(f"the text {words[:60]!r} has {TOKEN} but the row names no image")
    if not path and not words.strip():
        raise ManifestError("a query or target without text and image")
    if not path:
        return {"text": words}

    image_dir = _image_dir(record.job, record.source)
    file = locate(str(path), image_dir, record.source.name, inside=True)
    if not file.is_file():
        raise ManifestError(f"{file}: no such image: unpack the images there, or name --option image_dir=DIR")
    return {"text": words if words.strip() else None, "path": str(file.absolute())}


def _image_dir(job: ImportJob, source: Source) -> Path:
    return Path(job.options.get("image_dir", source.root))
