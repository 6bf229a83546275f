"""A study: its questions, divided into pages, as a folder with study.json and items.parquet.

The table has a row for each image of a question: group = the question's id, slot = the image's place in it. Its free
columns are x_page (from 1), x_image (the row's id in the data) and x_sentinel (a sentinel's right answer, else ""). It
holds the right answers and the images' names, so it stays with whoever runs the study; participants get the pages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from idmetric import __version__
from idmetric.data.embed import Look, content_keys
from idmetric.data.manifest.table import Manifest, read
from idmetric.io import json_file
from idmetric.io.output import replacing
from idmetric.protocols.study.items import SLOTS, Rows, Task, draw_items, draw_sentinels
from idmetric.store.fingerprint import settings_digest

INFO, TABLE = "study.json", "items.parquet"
_VERSION = 1  # of the questions' wording and of what the pages show
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Question:
    """A question of a page: its id, the rows of its images in `Study.items`, and a sentinel's right answer."""

    id: str
    rows: Rows
    sentinel: str | None


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        id: hash of the questions, of their images' contents, and of everything else that participants see.
        task: "pairs" or "triplets". title: heading of the pages. side: longest side of the images in pixels.
        origin: id of the study that this one asks more votes for, or its own.
        items: a row for each image of each question.
    """

    id: str
    task: Task
    title: str
    side: int
    origin: str
    items: Manifest

    @cached_property
    def pages(self) -> dict[int, list[Question]]:
        """Page -> its questions, sentinels among them, in the order of their random ids."""
        places: dict[tuple[int, str], dict[str, int]] = {}
        sentinel = self.items.column("x_sentinel")
        columns = (self.items.column("x_page"), self.items.column("group"), self.items.column("slot"))
        for row, (page, group, slot) in enumerate(zip(*columns, strict=True)):
            places.setdefault((int(page), group), {})[slot] = row

        found: dict[int, list[Question]] = {}
        for (page, name), own in sorted(places.items()):
            rows = tuple(own[slot] for slot in SLOTS[self.task])
            found.setdefault(page, []).append(Question(name, rows, sentinel[rows[0]] or None))
        return found

    def write(self, folder: Path) -> None:
        """Write study.json and items.parquet, each atomically."""
        about = {"id": self.id, "task": self.task, "title": self.title, "side": self.side, "origin": self.origin}
        self.items.write(folder / TABLE)
        with replacing(folder / INFO) as temporary:
            temporary.write_text(json_file.text({"idmetric": __version__, **about}, indent=2) + "\n", encoding="utf-8")


def new_study(
    data: Manifest, task: Task, count: int, *, per_page: int, sentinels: int, side: int, seed: int = 0, title: str
) -> Study:
    """Draw the questions of a study from a manifest.

    Args:
        count: pairs or triplets, at most. per_page: of them on each page, at most. sentinels: on each page.
        side: longest side of the images in pixels. title: heading of the pages.

    Raises:
        ValueError: if nothing can be drawn. UnreadableError: naming all files that are missing.
    """
    rng = np.random.default_rng([seed, 0])
    used: set[str] = set()
    pages = []
    for k, drawn in enumerate(_split(draw_items(data, task, count, seed), per_page)):
        own = [Question(_new_id(used, rng), rows, None) for rows in drawn]
        checks = draw_sentinels(data, task, sentinels, seed, k) if sentinels else []
        pages.append(own + [Question(_new_id(used, rng), rows, answer) for rows, answer in checks])
    return _study(data, data.column("id"), pages, task, title, side)


def follow_up(study: Study, items: Sequence[str], per_page: int) -> Study:
    """A study that asks some questions of another one again, with the same ids and the same sentinels.

    Args:
        items: ids of the questions. per_page: of them on each page, at most.

    Raises:
        ValueError: if there are none.
    """
    first, wanted = list(study.pages.values()), set(items)
    again = [q for page in first for q in page if q.id in wanted and q.sentinel is None]
    checks = [[q for q in page if q.sentinel is not None] for page in first]
    if not again:
        raise ValueError("no question is left to ask")
    pages = [own + checks[k % len(checks)] for k, own in enumerate(_split(again, per_page))]
    made = _study(study.items, study.items.column("x_image"), pages, study.task, study.title, study.side)
    return replace(made, origin=study.origin)


def read_study(folder: Path) -> Study:
    """The study of a folder.

    Raises:
        ValueError: naming the file that is missing or malformed.
    """
    path = folder / INFO
    try:
        about = json_file.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not readable as a study: {error}; make one: idmetric eval study build") from error
    if not _is_about(about):
        raise ValueError(f"{path}: not the description of a study that idmetric eval study build wrote")

    items = read(folder / TABLE)
    study = Study(about["id"], about["task"], about["title"], about["side"], about["origin"], items)
    try:
        if not study.pages:
            raise ValueError("it has no rows")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / TABLE}: not the questions of a study: {error}") from error
    return study


def _is_about(about: Any) -> bool:
    """Whether a JSON value describes a study."""
    if not isinstance(about, dict) or about.get("task") not in list(SLOTS) or not isinstance(about.get("title"), str):
        return False
    ids = [about.get(name) for name in ("id", "origin")]
    side = about.get("side")
    return all(isinstance(x, str) and _ID.fullmatch(x) for x in ids) and isinstance(side, int) and side > 0


def _split(drawn: Sequence[Any], most: int) -> list[list[Any]]:
    """Pages of nearly equal length, at most `most` questions each."""
    count = -(-len(drawn) // most)
    return [list(drawn[len(drawn) * k // count : len(drawn) * (k + 1) // count]) for k in range(count)]


def _new_id(used: set[str], rng: np.random.Generator) -> str:
    """A random id of 12 hexadecimal digits that is not used yet."""
    while (name := rng.bytes(6).hex()) in used:
        pass
    used.add(name)
    return name


def _study(
    data: Manifest, names: Sequence[str], pages: Sequence[Sequence[Question]], task: Task, title: str, side: int
) -> Study:
    """The study with these questions; their rows are those of `data`, and `names` the ids of its rows."""
    slots = SLOTS[task]
    every = [(k, question) for k, page in enumerate(pages, 1) for question in page]
    rows = [row for _, question in every for row in question.rows]
    page = [k for k, question in every for _ in question.rows]
    sentinel = [question.sentinel or "" for _, question in every for _ in question.rows]
    group = [question.id for _, question in every for _ in question.rows]
    slot = [name for _ in every for name in slots]

    items = data.take(rows).replace(  # with the page in the id, as a follow-up may repeat a sentinel
        id=[f"{k}/{g}/{s}" for k, g, s in zip(page, group, slot, strict=True)], group=group, slot=slot, label=None,
        x_page=page, x_image=[names[row] for row in rows], x_sentinel=sentinel,
    )  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        keys = content_keys(data, rows, Look(), pool)
    seen = [[k, q.id, q.sentinel, *(keys[row] for row in q.rows)] for k, q in every]
    name = settings_digest({"version": _VERSION, "task": task, "title": title, "side": side, "questions": seen})
    return Study(name, task, title, side, name, items)
