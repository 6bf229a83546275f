"""The comparisons of rows in ID-Sim's benchmarks: searches, labeled pairs, triplets."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from idmetric.data.manifest.lineage import image_keys
from idmetric.evaluate.protocols.common.columns import Ints, Truths, free, groups, listed, plain, texts
from idmetric.evaluate.protocols.retrieval_ilgen_table2 import GALLERY

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

Mode = Literal["easy", "hard"]
MODES: tuple[Mode, ...] = ("easy", "hard")
TRIPLETS = 10  # of each object and mode
T = TypeVar("T")


def draw_triplets(data: Manifest, rows: Ints, mode: Mode, seed: int = 0) -> tuple[Ints, list[str]]:
    """Triplets (T, 3) of rows (anchor, positive, negative), and the objects that allow none.

    Positive and negative, an object of the same category, are of one scene. An easy anchor is of that scene too, a hard
    one of another, if its object has one.

    Args:
        data: with the columns identity, category and background (the scene), as `idmetric data import cute` writes it.
        rows: the rows of CUTE.
    """
    identity, scene, kind = (data.column(name) for name in ("identity", "background", "category"))
    keys, names, seen = image_keys(data), data.column("id"), set()
    objects: dict[str, dict[str, list[int]]] = {}  # -> scene -> rows, each image once
    category: dict[str, str | None] = {}
    for row in sorted(rows.tolist(), key=lambda r: names[r]):
        if identity[row] is None or scene[row] is None or (identity[row], keys[row]) in seen:
            continue
        seen.add((identity[row], keys[row]))
        objects.setdefault(identity[row], {}).setdefault(scene[row], []).append(row)
        category[identity[row]] = kind[row]
    objects = {name: dict(sorted(objects[name].items())) for name in sorted(objects)}

    def one(options: Sequence[T]) -> T:
        return options[int(rng.integers(len(options)))]

    found: list[tuple[int, int, int]] = []
    without = []
    for name, own in objects.items():
        others = [of for other, of in objects.items() if other != name and category[other] == category[name]]
        elsewhere = mode == "hard" and len(own) > 1
        shared = [s for s, views in own.items() if (elsewhere or len(views) > 1) and any(s in o for o in others)]
        if not shared:
            without.append(name)
        for k in range(TRIPLETS if shared else 0):
            rng = np.random.default_rng([seed, zlib.crc32(name.encode()), MODES.index(mode), k])
            at = one(shared)
            if elsewhere:
                positive = one(own[at])
                anchor = one(own[one([s for s in own if s != at])])
            else:
                anchor, positive = (own[at][int(i)] for i in rng.choice(len(own[at]), 2, replace=False))
            found.append((anchor, positive, one(one([o for o in others if at in o])[at])))

    return np.array(found, dtype=np.int64).reshape(-1, 3), without


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's sets (appendix D.1).

    Attributes:
        kind: queries against a gallery, pairs that show one identity or two, or triplets.
        size: the paper's numbers of queries and gallery images, pairs, or triplets.
        queries, gallery: names of the parts (columns x_part or split), in order of preference.
        drawn: whether to draw a query of each identity if the manifest names none of these parts.
        by: column to group by; each value gets a separate row.
        names: other names of the set.
    """

    kind: Literal["search", "pairs", "triplets"]
    size: tuple[int, ...]
    queries: tuple[str, ...] = ("query",)
    gallery: tuple[str, ...] = GALLERY
    drawn: bool = False
    by: str | None = None
    names: tuple[str, ...] = ()


BENCHMARKS: dict[str, Benchmark] = {
    "pods": Benchmark("search", (1200, 300), ("test_dense", "query", "test"), ("train", *GALLERY)),
    "deepfashion2": Benchmark("search", (1668, 3065), names=("df2",)),
    "aerialcattle": Benchmark("search", (23, 2306), drawn=True, names=("aerialcattle2017",)),
    "petface": Benchmark("pairs", (3250,), by="category"),
    "cute": Benchmark("triplets", (1800,)),
    "subjects2k": Benchmark("pairs", (2000,)),
}


@dataclass(frozen=True)
class BenchmarkPlan:
    """The comparisons of one benchmark, as rows of a manifest.

    Attributes:
        kind: of the benchmark.
        sides: columns of equal length: anchor and other (pairs), or anchor, positive and negative (triplets); for
            searches queries and gallery, of any lengths.
        same: of pairs, whether they show one identity.
        notes: remarks for readers of the numbers.
    """

    kind: str
    sides: tuple[Ints, ...]
    same: Truths | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, ...]:
        """As `Benchmark.size`."""
        return tuple(len(side) for side in self.sides) if self.kind == "search" else (len(self.sides[0]),)


def members(data: Manifest, which: str | None = None) -> dict[str, Ints]:
    """Benchmark -> its rows, by the columns dataset and x_subset, or all rows for the benchmark `which`.

    Raises:
        ValueError: if no row is of a benchmark.
    """
    if which is not None:
        return {which: np.arange(len(data))}
    known = {alias: name for name, b in BENCHMARKS.items() for alias in (name, *b.names)}
    found: dict[str, list[int]] = defaultdict(list)

    for row, names in enumerate(zip(free(data, "subset"), data.column("dataset"), strict=True)):
        name = next((known[p] for n in names if n and (p := plain(str(n))) in known), None)
        if name is not None:
            found[name].append(row)

    if not found:
        there = listed(map(repr, data.column("dataset")))
        raise ValueError(
            f"no benchmark of ID-Sim here: the column dataset holds {there}, not {', '.join(BENCHMARKS)}; "
            "say which one it is: --set NAME"
        )

    return {name: np.array(found[name], dtype=np.int64) for name in BENCHMARKS if name in found}


def plans(data: Manifest, found: Mapping[str, Ints], seed: int = 0) -> dict[str, BenchmarkPlan]:
    """Benchmark (for CUTE "cute easy", "cute hard") -> its comparisons.

    Raises:
        ValueError: if a benchmark lacks rows or columns; the message names it.
    """
    made: dict[str, BenchmarkPlan] = {}
    for name, rows in found.items():
        kind = BENCHMARKS[name].kind
        if kind == "triplets":
            made |= _triplets(data, rows, name, seed)
        else:
            made[name] = _search(data, rows, name, seed) if kind == "search" else _pairs(data, rows, name)

    for name, plan in made.items():
        paper = BENCHMARKS[name.split()[0]].size
        if plan.size != paper:
            what = {"search": "queries x gallery", "pairs": "pairs", "triplets": "triplets"}[plan.kind]
            ours, theirs = (" x ".join(str(n) for n in size) for size in (plan.size, paper))
            plan.notes.append(f"{name}: {ours} {what}, the paper has {theirs}")
    return made


def _search(data: Manifest, rows: Ints, name: str, seed: int) -> BenchmarkPlan:
    """Queries and gallery by slots, parts or splits, or one query drawn of each identity."""
    benchmark = BENCHMARKS[name]
    slot = texts(data, "slot")[rows]
    parts = zip(free(data, "part"), data.column("split"), strict=True)
    split = np.array([split if part is None else part for part, split in parts], object)[rows]
    queries = next((q for q in (slot == "query", *(split == p for p in benchmark.queries)) if q.any()), None)
    gallery = next((g for g in (slot == "candidate", *(split == p for p in benchmark.gallery)) if g.any()), None)
    if queries is not None and gallery is not None:
        return BenchmarkPlan("search", (rows[queries], rows[gallery]))
    if benchmark.drawn and queries is None and gallery is None:
        identity, names = data.column("identity"), data.column("id")
        images: dict[str, list[int]] = defaultdict(list)
        for row in sorted(rows.tolist(), key=lambda r: names[r]):
            if identity[row] is not None:
                images[identity[row]].append(row)
        drawn = np.array([
            own[int(np.random.default_rng([seed, zlib.crc32(of.encode())]).integers(len(own)))]
            for of, own in sorted(images.items()) if len(own) > 1
        ], dtype=np.int64)  # fmt: skip
        note = f"the query of each of {len(drawn)} identities was drawn (seed {seed}): the paper does not name its own"
        return BenchmarkPlan("search", (drawn, np.setdiff1d(rows, drawn)), None, [note])

    lacks = "queries" if queries is None else "gallery"
    there = ", ".join(map(repr, dict.fromkeys(split)))
    raise ValueError(
        f"{name}: no {lacks}: rows of split {benchmark.queries[0]!r} are the queries, of {benchmark.gallery[0]!r} the "
        f"gallery (or slots query and candidate); there are the splits {there}"
    )


def _pairs(data: Manifest, rows: Ints, name: str) -> BenchmarkPlan:
    """Pairs of a group's anchor with its other images, and whether they show one identity."""
    identity, label = data.column("identity"), data.column("label")
    a, b, same = [], [], []
    for (group, _), own in groups(data, rows.tolist()).items():
        anchors = own.pop("anchor", [])
        if len(anchors) != 1:
            raise ValueError(f"{name}: group {group!r} has {len(anchors)} anchors: give it one, with its candidates")
        [anchor] = anchors
        for row, slot in sorted((row, slot) for slot, mine in own.items() for row in mine):
            a.append(anchor)
            b.append(row)
            same.append(_same(name, row, slot, label[row], identity[anchor], identity[row]))

    if not a:
        raise ValueError(f"{name}: no pairs: each is a group with slots anchor and candidate, label 1 = same, 0 = not")
    return BenchmarkPlan(
        "pairs", (np.array(a, dtype=np.int64), np.array(b, dtype=np.int64)), np.array(same, dtype=bool)
    )


def _same(name: str, row: int, slot: str, label: float | None, first: str | None, second: str | None) -> bool:
    """Whether a pair shows one identity: its label, its slot, or the identities."""
    if label is not None:
        if label not in (0, 1):
            raise ValueError(f"{name}, row {row + 1}: label {label:g} of a pair; 1 = same identity, 0 = another")
        return label == 1
    if slot in ("positive", "negative"):
        return slot == "positive"
    if first is None or second is None:
        raise ValueError(f"{name}, row {row + 1}: a pair with neither a label nor two identities")
    return first == second


def _triplets(data: Manifest, rows: Ints, name: str, seed: int) -> dict[str, BenchmarkPlan]:
    """The manifest's own triplets, or else drawn ones."""
    given = _given(data, rows)
    if given:
        return {f"{name} {mode}".strip(): BenchmarkPlan("triplets", tuple(np.array(t).T)) for mode, t in given.items()}

    made = {}
    for mode in MODES:
        found, without = draw_triplets(data, rows, mode, seed)
        if not len(found):
            raise ValueError(
                f"{name}: no {mode} triplet can be drawn: it takes two objects of a category (column category) in one "
                "scene (column background)"
            )
        notes = [f"{len(without)} objects allow no {mode} triplet: {listed(without)}"] if without else []
        made[f"{name} {mode}"] = BenchmarkPlan("triplets", tuple(found.T), None, notes)

    return made


def _given(data: Manifest, rows: Ints) -> dict[str, list[tuple[int, int, int]]]:
    """Mode -> triplets of the manifest: easy where all three are of one scene, hard where the anchor's is another."""
    scenes = data.column("background")
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)

    for (group, _), own in groups(data, rows.tolist()).items():
        for slot, mine in own.items():
            if len(mine) > 1:
                raise ValueError(f"row {mine[1] + 1}: a second {slot} of group {group!r}: a triplet is of three")
        if own.keys() >= {"anchor", "positive", "negative"}:
            anchor, positive, negative = (own[slot][0] for slot in ("anchor", "positive", "negative"))
            known = None not in (scenes[anchor], scenes[positive])
            mode = ("easy" if scenes[anchor] == scenes[positive] else "hard") if known else ""
            found[mode].append((anchor, positive, negative))

    return found
