"""A study: pairs or triplets of images and sentinels, drawn from a manifest and divided into pages.

A manifest that already groups images (slots anchor and candidate; anchor, left and right; anchor, positive and
negative) gives its groups. Of any other manifest, pairs of one identity and of two are drawn as a calibration draws
them, half of the latter hard: an image and the distractor made from it, two identities of one category.

A study is kept as a folder with study.json and items.parquet. The table has a row for each image of a question: group =
the question's id, slot = the image's place in it. Its free columns are x_page (from 1), x_image (the row's id in the
data) and x_sentinel (a sentinel's right answer, else ""). It holds the right answers and the images' names, so it stays
with whoever runs the study; participants get the pages.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

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
    rows = np.flatnonzero(has_image(data))
    family = blocks(data)
    if len(set(family[rows].tolist())) < 2:  # groups of triplets join unrelated images
        family = lineages(data)
    if len(set(family[rows].tolist())) < 2:
        raise ValueError("sentinels need images of two subjects, and all images here belong to one: --sentinels 0")
    kind = codes(list(zip(texts(data, "dataset"), texts(data, "category"), strict=True)))

    @cache
    def small(row: int) -> NDArray[np.float64]:
        return np.asarray(data.image(row).resize((8, 8)), dtype=np.float64)

    found: list[tuple[Rows, str]] = []
    for answer in rng.permutation([CHOICES[task][k % 2] for k in range(count)]).tolist():
        row = int(rng.choice(rows))
        if answer == "same":
            found.append(((row, row), answer))
            continue
        strangers = rows[family[rows] != family[row]]
        further = strangers[kind[strangers] != kind[row]]
        pool: list[int] = rng.permutation(further if len(further) else strangers)[:_TRIES].tolist()
        other = max(pool, key=lambda one: float(np.abs(small(one) - small(row)).mean()))
        shown = {"different": (row, other), "left": (row, row, other), "right": (row, other, row)}
        found.append((shown[answer], answer))
    return found


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
        items: a row for each image of each question.
    """

    id: str
    task: Task
    title: str
    side: int
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

    @property
    def asked(self) -> dict[str, Rows]:
        """The questions without sentinels: id -> rows in `items`."""
        return {q.id: q.rows for page in self.pages.values() for q in page if q.sentinel is None}

    def write(self, folder: Path) -> None:
        """Write study.json and items.parquet, each atomically."""
        about = {"id": self.id, "task": self.task, "title": self.title, "side": self.side}
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
    drawn = draw_items(data, task, count, seed)
    pages = -(-len(drawn) // per_page)  # of nearly equal length
    asked: list[tuple[int, Question]] = []
    for k in range(pages):
        own = drawn[len(drawn) * k // pages : len(drawn) * (k + 1) // pages]
        checks = draw_sentinels(data, task, sentinels, seed, k) if sentinels else []
        for rows, answer in [*((rows, None) for rows in own), *checks]:
            asked.append((k + 1, Question(rng.bytes(6).hex(), rows, answer)))

    shown = [(page, q, slot, row) for page, q in asked for slot, row in zip(SLOTS[task], q.rows, strict=True)]
    used = [row for *_, row in shown]
    names = data.column("id")
    items = data.take(used).replace(
        id=[f"{page}/{q.id}/{slot}" for page, q, slot, _ in shown], group=[q.id for _, q, _, _ in shown],
        slot=[slot for _, _, slot, _ in shown], label=None, x_page=[page for page, *_ in shown],
        x_image=[names[row] for row in used], x_sentinel=[q.sentinel or "" for _, q, _, _ in shown],
    )  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        keys = content_keys(data, used, Look(), pool)
    seen = [[page, q.id, q.sentinel, *(keys[row] for row in q.rows)] for page, q in asked]
    name = settings_digest({"version": _VERSION, "task": task, "title": title, "side": side, "questions": seen})
    return Study(name, task, title, side, items)


def read_study(folder: Path) -> Study:
    """The study of a folder.

    Raises:
        ValueError: naming a folder without one.
    """
    try:
        about = json_file.read(folder / INFO)
        study = Study(about["id"], about["task"], about["title"], about["side"], read(folder / TABLE))
        if not study.pages:
            raise ValueError("it has no questions")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: not readable as a study: {error!r}; make one: idmetric eval study build"
        ) from error
    return study
