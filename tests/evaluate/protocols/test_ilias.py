"""ILIAS's numbers against a slow recomputation from the file of scores that its own evaluation reads."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame

from idmetric.cli import eval as cli
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import checked, take
from idmetric.data.manifest import write as write_manifest
from idmetric.evaluate.protocols import ilias
from idmetric.evaluate.protocols.common import ranked
from idmetric.evaluate.protocols.common.columns import own
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.ilias import ILIASOptions
from idmetric.evaluate.statistics.bootstrap import bootstrap
from tests.data.test_ilias import write
from tests.evaluate.protocols.parts import PLAIN, Drawn, Images
from tests.table_parts import a_row, a_table, where

metrics = pytest.importorskip("sklearn.metrics")

# published edges of the groups, as evaluation/src/dataset.py of ilias-vrg/ilias has them
SCALE = [(0, 0.06880213760855043), (0.06880213760855043, 0.13526567164179104),
         (0.13526567164179104, 0.2729876723163842), (0.2729876723163842, np.inf)]  # fmt: skip
CLUTTER = [(0, 18), (18, 33), (33, 53), (53, np.inf)]
TAXONOMY = [("toy", "stuffed"), ("toy", "other"), ("art", "print")]


def data(draw: Images, root: Path, ties: bool = False) -> DataFrame:
    """Nine objects with one or two queries and two to five positives, and 30 distractors; with ties, some look like
    positives. The last object is in no category, and one positive lacks scale and clutter.
    """
    rows, scale, clutter = [], [], []
    rng = np.random.default_rng(7)
    for who in range(9):
        name = f"thing_{who:03d}"
        domain, category = TAXONOMY[who % 3] if who < 8 else (None, None)
        for number in range(1 + who % 2):
            rows.append(
                a_row(f"ilias/{name}", draw(who, number, 1), id=f"ilias/{name}/query/Q{who:03d}_{number:02d}.jpg",
                      dataset="ilias", split="query", domain=domain, category=category)
            )  # fmt: skip
            scale.append(None)
            clutter.append(None)
        for number in range(2 + who % 4):
            rows.append(a_row(f"ilias/{name}", draw(who, number, 2), id=f"ilias/{name}/pos/P{who:03d}_{number:02d}.jpg",
                            dataset="ilias", split="gallery", domain=domain, category=category))  # fmt: skip
            scale.append(SCALE[number % 4][0] if number < 4 else 0.5)  # on the lower edge, or above
            clutter.append(int(rng.choice([0, 17, 18, 32, 33, 52, 53, 90])))
    scale[-1] = clutter[-1] = None
    for number in range(30):
        who = number % 9 if ties else 30 + number % 9
        path = draw(who, number % 3, 2) if ties and number % 2 else draw(who, number, 3)
        rows.append(a_row(None, path if not ties else copied(root, path, number), id=f"ilias/000/{number}.jpg",
                        dataset="ilias", split="gallery"))  # fmt: skip
        scale.append(None)
        clutter.append(None)
    return checked(a_table(rows, root).assign(x_scale=scale, x_clutter=clutter))


def copied(root: Path, path: str, number: int) -> str:
    """Another file with the same picture."""
    name = f"copy{number}.png"
    (root / name).write_bytes((root / path).read_bytes())
    return name


class Published:
    """The released evaluation's numbers, from scores {query: {image: score}}, written down from its definitions."""

    def __init__(self, found: DataFrame, scores: dict[str, dict[str, float]], k: int) -> None:
        self.scores, self.k = scores, k
        ids = [name.removeprefix("ilias/") for name in found["id"].tolist()]
        free = [own(found, name) for name in ("x_scale", "x_clutter")]
        columns = (ids, found["split"].tolist(), found["identity"].tolist(), *free)
        lines = list(zip(*columns, strict=True))
        self.positives = {n: {"scale": s, "clutter": c} for n, split, who, s, c in lines if split == "gallery" and who}
        self.category = {name.split("/")[0]: (d, c) for name, d, c in
                         zip(ids, found["domain"].tolist(), found["category"].tolist(), strict=True) if d}  # fmt: skip

    def ap(self, query: str, left_out: set[str] = frozenset()) -> float:  # type: ignore[assignment]
        own = {name for name in self.positives if name.split("/")[0] == query.split("/")[0]} - left_out
        items = [item for item in self.scores[query].items() if item[0] not in left_out]
        top = sorted(items, key=lambda item: -item[1])[: self.k]
        hits = np.array([name in own for name, _ in top])
        if not hits.any():
            return 0.0
        precision = metrics.average_precision_score(hits, [score for _, score in top])
        return float(precision * hits.sum() / min(self.k, len(own)))

    def grouped(self, column: str, edges: list[tuple[float, float]]) -> dict[int, dict[str, float]]:
        """Group -> query -> AP, where the query has a positive in the group."""
        found: dict[int, dict[str, float]] = {}
        for query in self.scores:
            own = [name for name in self.positives if name.split("/")[0] == query.split("/")[0]]
            for number, (low, high) in enumerate(edges):
                at = {name: self.positives[name][column] for name in own}
                inside = {name for name in own if at[name] is not None and low <= at[name] < high}
                if inside:
                    found.setdefault(number, {})[query] = self.ap(query, set(own) - inside)
        return found

    def categories(self, level: int) -> dict[str, float]:
        """Category -> mean over objects of the mean over their queries."""
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for query in self.scores:
            thing = query.split("/")[0]
            if thing in self.category:
                found["-".join(self.category[thing][:level])][thing].append(self.ap(query))
        return {name: float(np.mean([np.mean(v) for v in each.values()])) for name, each in found.items()}


def compare(result: Result, wanted: Published) -> None:
    column = f"mAP@{wanted.k}"

    def row(by: str) -> list[Any]:
        return [r for r in result.rows if r["by"] == by]

    each = [wanted.ap(query) for query in wanted.scores]
    [whole] = row("all")
    assert (whole[column].value, whole[column].count) == (pytest.approx(np.mean(each)), len(each))
    for by, edges in (("scale", SCALE), ("clutter", CLUTTER)):
        groups = wanted.grouped(by, edges)
        assert [r[column].count for r in row(by)] == [len(groups[k]) for k in sorted(groups)]
        means = [np.mean(list(groups[k].values())) for k in sorted(groups)]
        assert [r[column].value for r in row(by)] == pytest.approx(means)
    for by, level in (("category", 1), ("subcategory", 2)):
        assert {r["group"]: r[column].value for r in row(by)} == pytest.approx(wanted.categories(level))


@pytest.mark.parametrize(("k", "ties", "cells"), [(7, False, 2**24), (7, False, 60), (1000, True, 2**24)])
def test_every_number_is_that_of_the_published_evaluation_on_our_scores(
    draw: Images, tmp_path: Path, k: int, ties: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranked, "_CELLS", cells)
    monkeypatch.setattr(ranked, "_FEWEST", 1)
    found, model = data(draw, tmp_path, ties), Drawn(spread=1.6)
    [result] = ilias.run(found, {"m": model}, PLAIN, ILIASOptions(k))
    cosines = (model.of(found) @ model.of(found).T).round(6)
    names = [name.removeprefix("ilias/") for name in found["id"].tolist()]
    at = [row for row, split in enumerate(found["split"].tolist()) if split == "query"]
    scores = {names[q]: {names[g]: cosines[q, g] for g in range(len(names)) if g not in at} for q in at}
    assert len(scores) == 13
    assert [row["by"] for row in result.rows].count("scale") == 4
    compare(result, Published(found, scores, k))

    [whole] = [row for row in result.rows if row["by"] == "all"]
    ordered = {query: sorted(each, key=each.__getitem__, reverse=True) for query, each in scores.items()}
    top = [[name.split("/")[0] == query.split("/")[0] for name in each[:k]] for query, each in ordered.items()]
    if not ties:
        own = [2 + int(query[6:9]) % 4 for query in scores]
        assert whole["oracle"].value == pytest.approx(np.mean([sum(t) / n for t, n in zip(top, own, strict=True)]))  # type: ignore[union-attr]
        assert whole["P@1"].value == pytest.approx(np.mean([t[0] for t in top]))  # type: ignore[union-attr]


def test_intervals_draw_objects(draw: Images, tmp_path: Path) -> None:
    found = data(draw, tmp_path)
    [result] = ilias.run(found, {"m": Drawn(spread=1.6)}, EvalSettings(bootstrap=40), ILIASOptions(7))
    queries = result.items["queries"]
    each, owner = np.array(queries["mAP@7"]), np.array(queries["identity"])
    of_objects = {name: each[owner == name].mean() for name in dict.fromkeys(owner)}
    wanted = bootstrap(lambda rows: each[rows].mean(), owner, samples=40)
    value = result.rows[0]["mAP@7"]
    assert isinstance(value, Value)
    assert (value.low, value.high) == pytest.approx((max(wanted.low, 0), min(wanted.high, 1)))
    toys = [of_objects[f"ilias/thing_{who:03d}"] for who in (0, 1, 3, 4, 6, 7)]
    wanted = bootstrap(lambda rows: np.array(toys)[rows].mean(), np.arange(6), samples=40)
    [row] = [row for row in result.rows if row["group"] == "toy"]
    value = row["mAP@7"]
    assert isinstance(value, Value)
    assert (value.value, value.low, value.high, value.count) == (
        pytest.approx(np.mean(toys)), pytest.approx(max(wanted.low, 0)), pytest.approx(wanted.high), 6,
    )  # fmt: skip


def test_unfit_manifests_and_requests_are_named(draw: Images, tmp_path: Path) -> None:
    found = data(draw, tmp_path)
    with pytest.raises(ValueError, match=r"splits 'query' and 'gallery' are needed .*; there are 'query'$"):
        ilias.run(where(found, split="query"), {"m": Drawn()}, PLAIN)
    lone = take(found, (found["split"] == "query") | (found["identity"] != "ilias/thing_003"))
    with pytest.raises(ValueError, match="ILIAS: 2 queries have no positive in the gallery: ilias/thing_003"):
        ilias.run(lone, {"m": Drawn()}, PLAIN)
    [result] = ilias.run(lone, {"m": Drawn()}, EvalSettings(bootstrap=0, on_error="skip"))
    assert result.rows[0]["P@1"].count == 11  # type: ignore[union-attr]


def test_published_files_to_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = write(tmp_path / "ilias"), tmp_path / "ilias.csv"
    found = import_dataset("ilias", root)
    write_manifest(found, out)
    argv = ["ilias", "--data", str(out), "--model", "hsv", "--k", "3", "--bootstrap", "0", "--quiet"]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("mAP@3", "scale", "clutter", "technology-gaming"))
