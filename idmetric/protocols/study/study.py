"""Draws the questions of a study from a manifest: pairs or triplets of images, and sentinels with an obvious answer.

A manifest that already groups images (slots anchor and candidate; anchor, left and right; anchor, positive and
negative) gives its groups. Of any other manifest, pairs of one identity and of two are drawn as a calibration draws
them, half of the latter hard: an image and the distractor made from it, two identities of one category.

A study: its questions, divided into pages, as a folder with study.json and items.parquet.

The table has a row for each image of a question: group = the question's id, slot = the image's place in it. Its free
columns are x_page (from 1), x_image (the row's id in the data) and x_sentinel (a sentinel's right answer, else ""). It
holds the right answers and the images' names, so it stays with whoever runs the study; participants get the pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.data.embed import Look, content_keys
from idmetric.data.manifest.lineage import blocks, has_image, image_keys, lineages
from idmetric.data.manifest.table import Manifest, read
from idmetric.embed.keys import settings_digest
from idmetric.io import json_file
from idmetric.io.output import replacing
from idmetric.protocols.common.columns import Ints, groups, texts
from idmetric.protocols.common.intervals import codes
from idmetric.protocols.common.labeled_pairs import Pairs, draw_pairs, usable
from idmetric.version import __version__

Task = Literal["pairs", "triplets"]
Rows = tuple[int, ...]  # of a manifest: anchor and candidate, or anchor, left and right

SLOTS: dict[Task, tuple[str, ...]] = {"pairs": ("anchor", "candidate"), "triplets": ("anchor", "left", "right")}
CHOICES: dict[Task, tuple[str, str]] = {"pairs": ("same", "different"), "triplets": ("left", "right")}
_OTHERS = ("candidate", "positive", "negative", "left", "right")  # slots that make a pair with a group's anchor
_BOTH = (("left", "right"), ("positive", "negative"))  # slots that make a triplet with it
_TRIES = 16  # images to choose the least similar one from


def draw_items(data: Manifest, task: Task, count: int, seed: int = 0) -> list[Rows]:
    """Up to `count` different pairs or triplets in random order; left and right of a triplet are random.

    Raises:
        ValueError: if the manifest allows none.
    """
    rng = np.random.default_rng([seed, 1])
    found = _grouped(data, task) or _drawn(data, task, count, seed, rng)
    chosen = [found[k] for k in rng.permutation(len(found))[:count].tolist()]
    if task == "triplets":
        chosen = [(a, *((y, x) if rng.random() < 0.5 else (x, y))) for a, x, y in chosen]
    return chosen


def _grouped(data: Manifest, task: Task) -> list[Rows]:
    """All pairs or triplets of the manifest's groups."""
    found: list[Rows] = []
    for own in groups(data, np.flatnonzero(has_image(data)).tolist()).values():
        anchors = own.get("anchor", [])
        if task == "pairs":
            found += [(a, b) for a in anchors for slot in _OTHERS for b in own.get(slot, [])]
        else:
            found += [(a, x, y) for a in anchors for p, q in _BOTH for x in own.get(p, []) for y in own.get(q, [])]
    return found


def _drawn(data: Manifest, task: Task, count: int, seed: int, rng: np.random.Generator) -> list[Rows]:
    """Half of the pairs show one identity; a triplet is a pair of two identities and another image of the anchor's."""
    kept = np.flatnonzero(has_image(data))
    known = usable(data.take(kept).replace(x_row=kept))
    if not len(known):
        raise ValueError("no row has an identity, and no group an anchor and a candidate: there is nothing to ask")
    row = np.array(known.column("x_row"), dtype=np.int64)

    several = sum(images > 1 for images in Counter(known.column("identity")).values())
    pairs = draw_pairs(known, each=-(-count // max(1, several)), seed=seed)
    if task == "triplets":
        return [tuple(row[list(three)].tolist()) for three in _triplets(known, pairs, rng)]

    own, other = np.flatnonzero(pairs.same), np.flatnonzero(~pairs.same)
    half = min(len(own), len(other), (count + 1) // 2)
    chosen = np.concatenate([rng.permutation(own)[:half], rng.permutation(other)[: min(half, count - half)]])
    return list(zip(row[pairs.a[chosen]].tolist(), row[pairs.b[chosen]].tolist(), strict=True))


def _triplets(data: Manifest, pairs: Pairs, rng: np.random.Generator) -> list[Rows]:
    """A positive for each pair of two identities: another image of its first image's identity, else of its second's."""
    identity, image = data.column("identity"), image_keys(data)
    views: dict[str, list[int]] = {}
    for row, name in enumerate(identity):
        views.setdefault(name, []).append(row)

    found: list[Rows] = []
    for k in np.flatnonzero(~pairs.same).tolist():
        ends = (int(pairs.a[k]), int(pairs.b[k]))
        for anchor, negative in (ends, ends[::-1]):
            others = [row for row in views[identity[anchor]] if image[row] != image[anchor]]
            if others:
                found.append((anchor, others[int(rng.integers(len(others)))], negative))
                break
    return found


def owners(data: Manifest, items: Ints) -> Ints:
    """The units that intervals draw: the identities (N, 2) of a pair's images, or (N,) of a triplet's anchor.

    An image of unknown identity counts with its anchor, and an anchor of unknown identity for itself.

    Args:
        items: (N, 2) rows of pairs, or (N, 3) of triplets.
    """
    identity, image = codes(data.column("identity")), codes(image_keys(data))
    anchor, other = items[:, 0], items[:, 1]
    first = np.where(identity[anchor] < 0, -1 - image[anchor], identity[anchor])
    second = np.where(identity[other] < 0, first, identity[other])
    found: Ints = np.stack([first, second], 1) if items.shape[1] == 2 else first
    return found


# Sentinels


def draw_sentinels(data: Manifest, task: Task, count: int, seed: int, page: int) -> list[tuple[Rows, str]]:
    """Questions with an obvious answer, and that answer; half of them have one answer, half the other.

    An image is the same as itself (the page shows a part of it on one side), and different from an image of another
    subject: of 16 drawn ones, of another category or dataset where there are several, the least similar in color.

    Raises:
        ValueError: if all images belong to one subject.
    """
    rng = np.random.default_rng([seed, 2, page])
    unlike = _Unlike(data, rng)
    found: list[tuple[Rows, str]] = []
    for answer in rng.permutation([CHOICES[task][k % 2] for k in range(count)]).tolist():
        row = unlike.any_row()
        if task == "pairs":
            found.append(((row, row if answer == "same" else unlike.other(row)), answer))
        else:
            other = unlike.other(row)
            found.append(((row, row, other) if answer == "left" else (row, other, row), answer))
    return found


class _Unlike:
    """Draws images, and for each one of another subject that looks different."""

    def __init__(self, data: Manifest, rng: np.random.Generator) -> None:
        self.data, self.rng = data, rng
        self.rows = np.flatnonzero(has_image(data))
        self.family = blocks(data)
        if len(set(self.family[self.rows].tolist())) < 2:  # groups of triplets join unrelated images
            self.family = lineages(data)
        if len(set(self.family[self.rows].tolist())) < 2:
            raise ValueError("sentinels need images of two subjects, and all images here belong to one: --sentinels 0")
        kinds = list(zip(texts(data, "dataset"), texts(data, "category"), strict=True))
        number = {kind: k for k, kind in enumerate(dict.fromkeys(kinds))}
        self.kind = np.array([number[kind] for kind in kinds], dtype=np.int64)
        self.small: dict[int, NDArray[np.float64]] = {}

    def any_row(self) -> int:
        return int(self.rng.choice(self.rows))

    def other(self, row: int) -> int:
        strangers = self.rows[self.family[self.rows] != self.family[row]]
        further = strangers[self.kind[strangers] != self.kind[row]]
        pool: Sequence[int] = self.rng.permutation(further if len(further) else strangers)[:_TRIES].tolist()
        return max(pool, key=lambda one: float(np.abs(self._look(one) - self._look(row)).mean()))

    def _look(self, row: int) -> NDArray[np.float64]:
        """The image at 8 x 8 pixels."""
        if row not in self.small:
            self.small[row] = np.asarray(self.data.image(row).resize((8, 8)), dtype=np.float64)
        return self.small[row]


# Studies


INFO, TABLE = "study.json", "items.parquet"
_VERSION = 1  # of the questions' wording and of what the pages show


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
        ValueError: naming a folder without one.
    """
    try:
        about = json_file.read(folder / INFO)
        known = (about["id"], about["task"], about["title"], about["side"], about["origin"])
        study = Study(*known, read(folder / TABLE))
        if not study.pages:
            raise ValueError("it has no questions")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: not readable as a study: {error!r}; make one: idmetric eval study build"
        ) from error
    return study


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
