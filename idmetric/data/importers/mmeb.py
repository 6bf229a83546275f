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
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.importers.mmeb_sets import target_words
from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.source import Record, Row, Shard, Source, as_list, locate
from idmetric.data.manifest import ManifestError

TRAIN = ("qry", "qry_image_path", "pos_text", "pos_image_path")
NEGATIVE = ("neg_text", "neg_image_path")
EVAL = ("qry_text", "qry_img_path", "tgt_text", "tgt_img_path")
VARIANTS = ("original", "diverse_instruction")  # of the training tables
TARGETS = ("plain", "b3")  # words before targets of text alone
TOKEN = "<|image_1|>"  # Phi-3.5-V's, in all of MMEB's texts
MOST = 50_000  # training rows of a subset, the first ones, as in VLM2Vec's commands; 662K pairs in VisME


def mmeb(job: ImportJob) -> Iterator[Row]:
    """The rows of training groups, or of queries and candidates to evaluate."""
    source = job.open()
    image_dir = Path(job.options.get("image_dir", source.root))
    if not image_dir.is_dir():
        raise ManifestError(f"option image_dir={image_dir}: no such folder")
    has_words = job.choice("targets", *TARGETS) == "b3"
    item = partial(_item, image_dir=image_dir, has_words=has_words)
    if set(EVAL).isdisjoint(source.columns):
        source.need(*TRAIN)
        return _training(job, source, item)
    source.need(*EVAL)
    return _evaluation(job, source, item)


def _training(job: ImportJob, source: Source, item: Callable[..., Row]) -> Iterator[Row]:
    variant = job.choice("variant", *VARIANTS)
    other_variants = {*VARIANTS} - {variant}
    names = {shard.split or shard.stem for shard in source.shards}
    if names <= other_variants:
        raise ManifestError(f"{source.name}: no table of {variant!r}: use --option variant={min(names)}")
    most = int(job.options.get("most", MOST)) or math.inf
    counts: Counter[str] = Counter()

    def group(record: Record) -> list[Row]:
        shard, subset = record.shard, _subset(record.shard)
        number = counts[subset]
        if (shard.split or shard.stem) in other_variants or number >= most:
            return []
        counts[subset] += 1
        query = item(record, record["qry"], record["qry_image_path"])
        positive = item(record, record["pos_text"], record["pos_image_path"], is_target=True)
        rows = [{"slot": "query", **query}, {"slot": "positive", **positive}]
        texts, paths = (as_list(record[name]) for name in NEGATIVE)
        for text, path in zip_longest(texts, paths):
            if text or path:
                negative = item(record, text, path, is_target=True)
                rows.append({"slot": "negative", **negative})

        group = f"{subset}/train/{number:06d}"
        shared: Row = {
            "group": group,
            "dataset": f"{job.dataset}/{subset}",
            "split": "train",
            "parameters": {"source": source.label, "row": number},
        }
        return [{"id": f"{group}/{position}", **row, **shared} for position, row in enumerate(rows)]

    return job.rows(source, group)


def _evaluation(job: ImportJob, source: Source, item: Callable[..., Row]) -> Iterator[Row]:
    numbers_of: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)  # subset -> (text, path) -> candidate

    def query(record: Record) -> list[Row]:
        subset, split = _subset(record.shard), record.shard.split or "test"
        texts, paths = as_list(record["tgt_text"]), as_list(record["tgt_img_path"])
        if not texts or len(texts) != len(paths):
            raise ValueError("tgt_text and tgt_img_path are not two lists of one length")
        shared = {"dataset": f"{job.dataset}/{subset}", "split": split}
        group = f"{subset}/{split}/{record.number:06d}"
        row: Row = {
            "id": f"{group}/query",
            "group": group,
            "slot": "query",
            "parameters": {"source": source.label, "row": record.number},
            **item(record, record["qry_text"], record["qry_img_path"]),
            **shared,
        }

        # each candidate once, the right one first; those of earlier queries have their rows
        numbers = numbers_of[f"{subset}/{split}"]
        cells = [(str(text or ""), str(path or "")) for text, path in zip(texts, paths, strict=True)]
        new = {pair: item(record, *pair, is_target=True) for pair in dict.fromkeys(cells) if pair not in numbers}
        rows = []
        for pair, candidate in new.items():
            numbers[pair] = len(numbers)
            place = {
                "id": candidate_id(subset, split, numbers[pair]),
                "group": f"{subset}/{split}/candidates",
                "slot": "candidate",
                "parameters": {"source": source.label},
            }
            rows.append(place | shared | candidate)
        listed = np.array([numbers[pair] for pair in dict.fromkeys(cells)], dtype=np.int32)
        row["x_candidates"] = listed
        return [*rows, row]

    return job.rows(source, query)


def candidate_id(subset: str, split: str, number: int) -> str:
    """The id of the row of a candidate, by its number in x_candidates."""
    return f"{subset}/{split}/candidate-{number:06d}"


def _subset(shard: Shard) -> str:
    """The dataset of a table: the folder that holds it (and perhaps a folder for its split), or its own name."""
    folder = shard.path.absolute().parent
    if folder.name == shard.split:
        folder = folder.parent
    if shard.split is not None or shard.stem in ("test", "train", *VARIANTS):
        return folder.name
    return shard.stem


def _item(record: Record, text: Any, path: Any, is_target: bool = False, *, image_dir: Path, has_words: bool) -> Row:
    """Text and image of a query or target; ValueError if it is empty, or its image missing or inside the text.

    Args:
        has_words: whether targets of a text alone begin with B3's instruction.
    """
    text = str(text or "")
    if is_target and has_words and text and not path:
        text = f"{target_words(_subset(record.shard))}{text}"
    words = text.removeprefix(TOKEN)
    if TOKEN in words:
        raise ValueError(f"{TOKEN} inside the text {words[:60]!r}: models take one image, before the text")
    if not path and words != text:
        raise ValueError(f"the text {words[:60]!r} has {TOKEN} but the row names no image")
    if not path and not words.strip():
        raise ValueError("a query or target without text and image")
    if not path:
        return {"text": words}

    file = locate(str(path), image_dir, record.source.name, inside=True)
    if not file.is_file():
        raise ValueError(f"{file}: no such image: unpack the images there, or name --option image_dir=DIR")
    return {"text": words if words.strip() else None, "path": file}
