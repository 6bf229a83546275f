"""The comparisons of rows in ID-Sim's benchmarks: searches, labeled pairs, triplets."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from idmetric.data.split import image_keys, split_name
from idmetric.evaluate.protocols.common.columns import Ints, Truths, groups, known, listed, own, plain

if TYPE_CHECKING:
    from pandas import DataFrame

Mode = Literal["easy", "hard"]
MODES: tuple[Mode, ...] = ("easy", "hard")
TRIPLETS = 10  # of each object and mode
T = TypeVar("T")


def draw_triplets(data: DataFrame, rows: Ints, mode: Mode, seed: int = 0) -> tuple[Ints, list[str]]:
    """Triplets (T, 3) of rows (anchor, positive, negative), and the objects that allow none.

    Positive and negative, an object of the same category, are of one scene. An easy anchor is of that scene too, a hard
    one of another, if its object has one.

    Args:
        data: with the columns identity, category and background (the scene), as `idmetric data import cute` writes it.
        rows: the rows of CUTE.
    """
    objects, category = _objects_by_scene(data, rows)
    triplets: list[tuple[int, int, int]] = []
    without = []
    for name, scenes in objects.items():
        relatives = []  # the other objects of its category
        for relative in objects:
            if relative != name and category[relative] == category[name]:
                relatives.append(objects[relative])
        is_elsewhere = mode == "hard" and len(scenes) > 1  # the anchor's scene is another one
        shared = []  # scenes that can hold positive and negative
        for scene, views in scenes.items():
            has_positive = is_elsewhere or len(views) > 1
            if has_positive and any(scene in relative for relative in relatives):
                shared.append(scene)
        if not shared:
            without.append(name)
            continue

        for number in range(TRIPLETS):
            rng = np.random.default_rng([seed, zlib.crc32(name.encode()), MODES.index(mode), number])
            scene = _choose(shared, rng)
            if is_elsewhere:
                positive = _choose(scenes[scene], rng)
                elsewhere = [anchor_scene for anchor_scene in scenes if anchor_scene != scene]
                anchor = _choose(scenes[_choose(elsewhere, rng)], rng)
            else:
                views = scenes[scene]
                anchor, positive = (views[k] for k in rng.choice(len(views), 2, replace=False))
            in_scene = [relative[scene] for relative in relatives if scene in relative]
            negative = _choose(_choose(in_scene, rng), rng)
            triplets.append((anchor, positive, negative))

    return np.array(triplets, dtype=np.int64).reshape(-1, 3), without


def _objects_by_scene(data: DataFrame, rows: Ints) -> tuple[dict[str, dict[str, list[int]]], dict[str, str | None]]:
    """Object -> scene -> rows, each image once, all in order of names; and the category of each object."""
    columns = data[["id", "identity", "background", "category"]].assign(image=image_keys(data)).iloc[rows]
    columns = columns.dropna(subset=["identity", "background"]).sort_values("id")
    columns = columns.drop_duplicates(["identity", "image"])
    objects: dict[str, dict[str, list[int]]] = {}
    for (name, scene), views in columns.groupby(["identity", "background"]):  # in order of names
        objects.setdefault(name, {})[scene] = list(views.index)
    category = dict(zip(columns["identity"], columns["category"], strict=True))
    return objects, category


def _choose(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]


@dataclass(frozen=True)
class PaperSet:
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
    gallery: tuple[str, ...] = ("gallery",)
    drawn: bool = False
    by: str | None = None
    names: tuple[str, ...] = ()


BENCHMARKS: dict[str, PaperSet] = {
    "pods": PaperSet("search", (1200, 300), ("test_dense", "query", "test"), ("train", "gallery")),
    "deepfashion2": PaperSet("search", (1668, 3065), names=("df2",)),
    "aerialcattle": PaperSet("search", (23, 2306), drawn=True, names=("aerialcattle2017",)),
    "petface": PaperSet("pairs", (3250,), by="category"),
    "cute": PaperSet("triplets", (1800,)),
    "subjects2k": PaperSet("pairs", (2000,)),
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
        """As `PaperSet.size`."""
        sizes = tuple(map(len, self.sides))
        return sizes if self.kind == "search" else sizes[:1]


def members(data: DataFrame, which: str | None = None) -> dict[str, Ints]:
    """Benchmark -> its rows, by the columns dataset and x_subset, or all rows for the benchmark `which`.

    Raises:
        ValueError: if no row is of a benchmark.
    """
    if which is not None:
        return {which: np.arange(len(data))}
    benchmark_of: dict[str, str] = {}
    for name, benchmark in BENCHMARKS.items():
        benchmark_of |= dict.fromkeys((name, *benchmark.names), name)

    rows: dict[str, list[int]] = {name: [] for name in BENCHMARKS}
    for row, names in enumerate(zip(own(data, "x_subset"), data["dataset"], strict=True)):
        benchmarks = [benchmark_of[plain(str(name))] for name in names if plain(str(name)) in benchmark_of]
        if benchmarks:
            rows[benchmarks[0]].append(row)

    if not any(rows.values()):
        datasets = listed(map(repr, data["dataset"]))
        raise ValueError(
            f"no benchmark of ID-Sim here: the column dataset holds {datasets}, not {', '.join(BENCHMARKS)}; "
            "say which one it is: --set NAME"
        )
    return {name: np.array(numbers, dtype=np.int64) for name, numbers in rows.items() if numbers}


def plans(data: DataFrame, rows_of: Mapping[str, Ints], seed: int = 0) -> dict[str, BenchmarkPlan]:
    """Benchmark (for CUTE "cute easy", "cute hard") -> its comparisons.

    Args:
        rows_of: the rows of each benchmark, see `members`.

    Raises:
        ValueError: if a benchmark lacks rows or columns; the message names it.
    """
    planned: dict[str, BenchmarkPlan] = {}
    for name, rows in rows_of.items():
        kind = BENCHMARKS[name].kind
        if kind == "triplets":
            planned |= _triplets(data, rows, name, seed)
        elif kind == "search":
            planned[name] = _search(data, rows, name, seed)
        else:
            planned[name] = _pairs(data, rows, name)

    units = {"search": "queries x gallery", "pairs": "pairs", "triplets": "triplets"}
    for name, plan in planned.items():
        paper_size = BENCHMARKS[name.split()[0]].size
        if plan.size != paper_size:
            ours = " x ".join(map(str, plan.size))
            theirs = " x ".join(map(str, paper_size))
            plan.notes.append(f"{name}: {ours} {units[plan.kind]}, the paper has {theirs}")
    return planned


def _search(data: DataFrame, rows: Ints, name: str, seed: int) -> BenchmarkPlan:
    """Queries and gallery by slots, parts or splits, or one query drawn of each identity."""
    benchmark = BENCHMARKS[name]
    slot = data["slot"].to_numpy()[rows]
    parts = zip(own(data, "x_part"), data["split"], strict=True)
    split = np.array([split if part is None else split_name(str(part)) for part, split in parts], object)[rows]
    queries = _first_of([slot == "query", *(split == part for part in benchmark.queries)])
    gallery = _first_of([slot == "candidate", *(split == part for part in benchmark.gallery)])
    if queries is not None and gallery is not None:
        return BenchmarkPlan("search", (rows[queries], rows[gallery]))
    if benchmark.drawn and queries is None and gallery is None:
        return _drawn_search(data, rows, seed)

    missing = "queries" if queries is None else "gallery"
    splits = ", ".join(map(repr, dict.fromkeys(split)))
    raise ValueError(
        f"{name}: no {missing}: rows of split {benchmark.queries[0]!r} are the queries, of {benchmark.gallery[0]!r} "
        f"the gallery (or slots query and candidate); there are the splits {splits}"
    )


def _first_of(selections: Sequence[Truths]) -> Truths | None:
    """The first selection that selects a row."""
    for selection in selections:
        if selection.any():
            return selection
    return None


def _drawn_search(data: DataFrame, rows: Ints, seed: int) -> BenchmarkPlan:
    """A query drawn of each identity with two images or more; the other rows are the gallery."""
    queries = []
    for name, images in data.iloc[rows].sort_values("id").groupby("identity"):  # in order of names
        if len(images) > 1:
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            queries.append(_choose(list(images.index), rng))
    note = f"the query of each of {len(queries)} identities was drawn (seed {seed}): the paper does not name its own"
    drawn = np.array(queries, dtype=np.int64)
    return BenchmarkPlan("search", (drawn, np.setdiff1d(rows, drawn)), None, [note])


def _pairs(data: DataFrame, rows: Ints, name: str) -> BenchmarkPlan:
    """Pairs of a group's anchor with its other images, and whether they show one identity."""
    identity = data["identity"].tolist()
    label = known(data["label"].to_numpy())
    anchors, candidates, same = [], [], []
    for (group, _), slots in groups(data, rows).items():
        group_anchors = slots.pop("anchor", [])
        if len(group_anchors) != 1:
            raise ValueError(
                f"{name}: group {group!r} has {len(group_anchors)} anchors: give it one, with its candidates"
            )
        [anchor] = group_anchors
        for slot, slot_rows in slots.items():
            for row in slot_rows:
                anchors.append(anchor)
                candidates.append(row)
                same.append(_same(name, row, slot, label[row], (identity[anchor], identity[row])))

    if not anchors:
        raise ValueError(f"{name}: no pairs: each is a group with slots anchor and candidate, label 1 = same, 0 = not")
    anchor_rows = np.array(anchors, dtype=np.int64)
    candidate_rows = np.array(candidates, dtype=np.int64)
    return BenchmarkPlan("pairs", (anchor_rows, candidate_rows), np.array(same, dtype=bool))


def _same(
    name: str,
    row: int,
    slot: str,
    label: float | None,
    identities: tuple[str | None, str | None],
) -> bool:
    """Whether a pair shows one identity: its label, its slot, or the identities."""
    if label is not None:
        if label not in (0, 1):
            raise ValueError(f"{name}, row {row + 1}: label {label:g} of a pair; 1 = same identity, 0 = another")
        return label == 1
    if slot in ("positive", "negative"):
        return slot == "positive"
    if None in identities:
        raise ValueError(f"{name}, row {row + 1}: a pair with neither a label nor two identities")
    return identities[0] == identities[1]


def _triplets(data: DataFrame, rows: Ints, name: str, seed: int) -> dict[str, BenchmarkPlan]:
    """The manifest's own triplets, or else drawn ones."""
    planned = {}
    for mode, triplets in _manifest_triplets(data, rows).items():
        planned[f"{name} {mode}".strip()] = BenchmarkPlan("triplets", tuple(np.array(triplets).T))
    if planned:
        return planned

    for mode in MODES:
        drawn, without = draw_triplets(data, rows, mode, seed)
        if not len(drawn):
            raise ValueError(
                f"{name}: no {mode} triplet can be drawn: it takes two objects of a category (column category) in one "
                "scene (column background)"
            )
        notes = [f"{len(without)} objects allow no {mode} triplet: {listed(without)}"] if without else []
        planned[f"{name} {mode}"] = BenchmarkPlan("triplets", tuple(drawn.T), None, notes)
    return planned


def _manifest_triplets(data: DataFrame, rows: Ints) -> dict[str, list[tuple[int, int, int]]]:
    """Mode -> triplets of the manifest: easy where all three are of one scene, hard where the anchor's is another."""
    scenes = data["background"].tolist()
    triplets: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for (group, _), slots in groups(data, rows).items():
        for slot, slot_rows in slots.items():
            if len(slot_rows) > 1:
                raise ValueError(f"row {slot_rows[1] + 1}: a second {slot} of group {group!r}: a triplet is of three")
        if not slots.keys() >= {"anchor", "positive", "negative"}:
            continue
        anchor, positive, negative = (slots[slot][0] for slot in ("anchor", "positive", "negative"))
        if scenes[anchor] is None or scenes[positive] is None:
            mode = ""
        else:
            mode = "easy" if scenes[anchor] == scenes[positive] else "hard"
        triplets[mode].append((anchor, positive, negative))
    return triplets
