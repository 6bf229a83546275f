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
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.importers.mmeb_sets import target_words
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import Shard, Source, SourceError, locate
from idmetric.data.manifest.table import Row

TRAIN = ("qry", "qry_image_path", "pos_text", "pos_image_path")
NEGATIVE = ("neg_text", "neg_image_path")
EVAL = ("qry_text", "qry_img_path", "tgt_text", "tgt_img_path")
VARIANTS = ("original", "diverse_instruction")  # of the training tables
TOKEN = "<|image_1|>"  # Phi-3.5-V's, in all of MMEB's texts
MOST = 50_000  # training rows of a subset, the first ones, as in VLM2Vec's commands; 662K pairs in VisME


def rows(job: Job) -> Iterator[Row]:
    """The rows of training groups, or of queries and candidates to evaluate."""
    source = job.open()
    evaluates = not set(EVAL).isdisjoint(source.columns)
    job.need(source, *(EVAL if evaluates else TRAIN))
    yield from (_evaluation if evaluates else _training)(job, source, _Items(job, source))


class _Items:
    """Queries and targets as columns of rows; paths in the tables start from the option `image_dir`."""

    def __init__(self, job: Job, source: Source) -> None:
        self.name, self.root = source.name, Path(job.options.get("image_dir", source.root))
        if not self.root.is_dir():
            raise SourceError(f"option image_dir={self.root}: no such folder")
        self.instructs = job.choice("targets", "plain", "b3") == "b3"  # targets of text alone get B3's instructions
        self.there = cache(Path.is_file)

    def target(self, subset: str, text: Any, path: Any) -> dict[str, Any]:
        """As `item`, for a target, negative or candidate of a subset."""
        words = target_words(subset) if self.instructs and not path and text else ""
        return self.item(f"{words}{text or ''}", path)

    def item(self, text: Any, path: Any) -> dict[str, Any]:
        """Text and image of a query or target; SourceError if it is empty or its image missing or inside the text."""
        given = str(text or "")
        words = given.removeprefix(TOKEN)
        if TOKEN in words:
            raise SourceError(f"{TOKEN} inside the text {words[:60]!r}: models take one image, before the text")
        if path:
            file = locate(str(path), self.root, self.name, inside=True)
            if not self.there(file):
                raise SourceError(f"{file}: no such image: unpack the images there, or name --option image_dir=DIR")
            return {"text": words if words.strip() else None, "path": str(file.absolute())}
        if words != given:
            raise SourceError(f"the text {words[:60]!r} has {TOKEN} but the row names no image")
        if not words.strip():
            raise SourceError("a query or target without text and image")
        return {"text": words}


def _subset(job: Job, shard: Shard) -> str:
    """The dataset of a table: the folder that holds it (and perhaps a folder for its split), or its own name."""
    folder = shard.path.absolute().parent
    if folder.name == shard.split:
        folder = folder.parent
    of_folder = shard.split is not None or shard.stem in ("test", "train", *VARIANTS)
    return f"{job.name}/{folder.name if of_folder else shard.stem}"


def _training(job: Job, source: Source, items: _Items) -> Iterator[Row]:
    wanted = job.choice("variant", *VARIANTS)
    others = {*VARIANTS} - {wanted}
    there = {shard.split or shard.stem for shard in source.shards}
    if there <= others:
        raise SourceError(f"{source.name}: no table of {wanted!r}: use --option variant={min(there)}")
    most = job.number("most", MOST) or math.inf
    seen: Counter[str] = Counter()

    for record in job.rows(source, (*TRAIN, *NEGATIVE)):
        values, subset = record.values, _subset(job, record.shard)
        number = seen[subset]
        if (record.shard.split or record.shard.stem) in others or number >= most:
            continue
        seen[subset] += 1
        try:
            members = [
                ("query", items.item(values["qry"], values["qry_image_path"])),
                ("positive", items.target(subset, values["pos_text"], values["pos_image_path"])),
            ]
            for text, path in zip_longest(*(_many(values.get(name)) for name in NEGATIVE)):
                if text or path:
                    members.append(("negative", items.target(subset, text, path)))
        except SourceError as error:
            record.reject(str(error))
            continue

        group = f"{subset}/train/{number:06d}"
        about = {"source": source.label, "row": number}
        for at, (slot, item) in enumerate(members):
            place: dict[str, Any] = {"dataset": subset, "split": "train", "parameters": about, **item}
            yield Row(None, id=f"{group}/{at}", group=group, slot=slot, **place)


def _many(cell: Any) -> list[Any]:
    return cell if isinstance(cell, list) else [] if cell is None else [cell]


def _evaluation(job: Job, source: Source, items: _Items) -> Iterator[Row]:
    numbers: dict[str, dict[tuple[str, str], int]] = {}  # subset -> (text, path) -> number of the candidate
    for record in job.rows(source, EVAL):
        values, subset, split = record.values, _subset(job, record.shard), record.shard.split or "test"
        try:
            query = items.item(values["qry_text"], values["qry_img_path"])
            texts, paths = values["tgt_text"], values["tgt_img_path"]
            if not texts or not paths or len(texts) != len(paths):
                raise SourceError("tgt_text and tgt_img_path are not two lists of one length")
            pairs = ((str(text or ""), str(path or "")) for text, path in zip(texts, paths, strict=True))
            cells = list(dict.fromkeys(pairs))  # each once, the right one first
            known = numbers.setdefault(f"{subset}/{split}", {})
            new = {cell: items.target(subset, *cell) for cell in cells if cell not in known}
        except SourceError as error:
            record.reject(str(error))
            continue

        shared: dict[str, Any] = {"dataset": subset, "split": split}
        for cell, item in new.items():
            known[cell] = len(known)
            name, group = candidate_id(subset, split, known[cell]), f"{subset}/{split}/candidates"
            place: dict[str, Any] = {"parameters": {"source": source.label}, **shared, **item}
            yield Row(None, id=name, group=group, slot="candidate", **place)
        group = f"{subset}/{split}/{record.number:06d}"
        listed = np.array([known[cell] for cell in cells], dtype=np.int32)
        about = {"source": source.label, "row": record.number, "x_candidates": listed}
        yield Row(None, id=f"{group}/query", group=group, slot="query", parameters=about, **shared, **query)


def candidate_id(subset: str, split: str, number: int) -> str:
    """The id of the row of a candidate, by its number in x_candidates."""
    return f"{subset}/{split}/candidate-{number:06d}"
