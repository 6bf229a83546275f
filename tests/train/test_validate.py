from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn

from idmetric import ImageReadError
from idmetric.data.manifest import read, take, write
from idmetric.metric.embedder import Embedder
from idmetric.train.processes import Processes
from idmetric.train.state import TrainError
from idmetric.train.validate import validation
from tests.table_parts import a_row, a_table
from tests.train_parts import in_two_processes, launched

Color = tuple[int, int, int]


class MeanColor(Embedder):
    """An encoder of the mean color: images of one color have known similarities."""

    def __init__(self) -> None:
        super().__init__(name="color", revision="", image_size=(8, 8), mean=(0, 0, 0), std=(1, 1, 1))
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Dropout(0.5).eval()

    def forward_features(self, x: Tensor) -> tuple[Tensor, None, None]:
        return self.dropout(self.frozen(x.mean((2, 3)))) * self.scale, None, None


def paint(folder: Path, rows: list[tuple[dict[str, Any], Color]]) -> DataFrame:
    for row, color in rows:
        Image.new("RGB", (12, 10), color).save(folder / row["path"])
    return a_table([row for row, _ in rows], folder)


def cosine(a: Color, b: Color) -> float:
    x, y = np.array(a, float), np.array(b, float)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def colors(count: int, seed: int) -> list[Color]:
    values = np.random.default_rng(seed).integers(20, 256, (count, 3))
    return [(int(r), int(g), int(b)) for r, g, b in values]


# Against slow loops


def family(seed: int = 0, identities: int = 5, views: int = 3, engines: tuple[str, ...] = ("A", "B")) -> Any:
    """Views, two distractors of each by engine A and one by B where it isn't left out, and part-edits of two views."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for i in range(identities):
        for v in range(views):
            name = f"{i}/{v}"
            rows.append(a_row(f"id{i}", f"{i}-{v}.png", id=name, role="real" if v < 2 else "context-edit"))
            for engine, nth in ((engines[0], 0), (engines[0], 1), (engines[1], 0)):
                if rng.random() < 0.2:
                    continue
                key = f"{name}/{engine}{nth}"
                rows.append(a_row(key, f"{i}-{v}-{engine}{nth}.png", id=key, role="distractor" if nth == 0 else
                                "identity-edit", engine=engine, parent=name))  # fmt: skip
            if v < 2:
                rows.append(a_row(f"{name}/part", f"{i}-{v}-part.png", id=f"{name}/part", role="part-edit", engine="P",
                                parent=name, oracle=float(rng.uniform(0.3, 1))))  # fmt: skip
    return rows


def test_measures_equal_loops_written_from_their_definitions(tmp_path: Path) -> None:
    rows = family()
    rng = np.random.default_rng(1)
    base = rng.integers(20, 200, (5, 3))
    spread = [60 if row["role"] in ("distractor", "identity-edit") else 30 for row in rows]
    shades = [
        tuple(int(x) for x in np.clip(base[int(row["id"][0])] + rng.integers(-width, width, 3), 0, 255))
        for row, width in zip(rows, spread, strict=True)
    ]
    data = paint(tmp_path, list(zip(rows, shades, strict=True)))
    found = validation(MeanColor(), data, batch_size=4)
    named = [(row["id"], shade) for row, shade in zip(rows, shades, strict=True)]
    s = {(a, b): cosine(x, y) for a, x in named for b, y in named}

    precisions = []
    for a in rows:
        others = [b for b in rows if b["id"] != a["id"]]
        relevant = [b["identity"] == a["identity"] for b in others]
        if any(relevant):
            precisions.append(average_precision_score(relevant, [s[a["id"], b["id"]] for b in others]))
    assert found["map"] == pytest.approx(np.mean(precisions), abs=1e-6)

    views = ("real", "context-edit")
    pairs = [
        (a, b)
        for a, b in itertools.combinations(rows, 2)
        if a["id"][0] == b["id"][0] and (a["role"] in views or b["role"] in views)  # a family has one number
    ]
    auc = roc_auc_score([a["identity"] == b["identity"] for a, b in pairs], [s[a["id"], b["id"]] for a, b in pairs])
    assert found["auc"] == pytest.approx(auc, abs=1e-6)

    def margins(names: list[str], views: int = 3) -> tuple[float, float]:
        trials, wins = [], []
        for i in range(5):
            for name in names:
                sample = []
                for v, w in itertools.permutations(range(views), 2):
                    own = f"{i}/{v}/{name}"
                    if (own, own) in s:
                        sample.append(s[f"{i}/{v}", f"{i}/{w}"] - s[f"{i}/{v}", own] > 0)
                if sample:
                    trials += sample
                    wins.append(all(sample))
        return float(np.mean(wins)), float(np.mean(trials))

    # the second distractor by engine A of a view is the first where that was left out
    for i, v in itertools.product(range(5), range(3)):
        first, second = f"{i}/{v}/A0", f"{i}/{v}/A1"
        if (first, first) not in s and (second, second) in s:
            s |= {(a, first): s[a, second] for a in [f"{i}/{v}"]} | {(first, first): 1.0}
            del s[second, second]
    assert (found["ssr"], found["pa"]) == pytest.approx(margins(["A0", "A1", "B0"]), abs=1e-6)
    assert 0 < found["ssr"] < found["pa"] < 1
    assert (found["part_ssr"], found["part_pa"]) == pytest.approx(margins(["part"], 2), abs=1e-6)  # of edited views

    oracle = {row["id"][:3]: row["oracle"] for row in rows if row["role"] == "part-edit"}
    r = {}
    for v, e in itertools.product(range(2), range(2)):
        scores = [s[f"{i}/{v}", f"{i}/{e}/part"] for i in range(5)]
        r[v, e] = stats.pearsonr(scores, [oracle[f"{i}/{e}"] for i in range(5)]).statistic
    assert found["oracle"] == pytest.approx(np.tanh(np.mean(np.arctanh(list(r.values())))), abs=1e-6)
    assert found["oracle_pair"] == pytest.approx(np.tanh((np.arctanh(r[0, 0]) + np.arctanh(r[1, 1])) / 2), abs=1e-6)
    assert list(found) == ["map", "auc", "ssr", "pa", "part_ssr", "part_pa", "oracle", "oracle_pair"]


def test_triplets(tmp_path: Path) -> None:
    red, crimson, green = (200, 0, 0), (190, 60, 30), (0, 200, 0)
    rows = []
    for k, (positive, negative) in enumerate([(crimson, green), (green, crimson), (green, green), (red, crimson)]):
        for slot, color in (("anchor", red), ("positive", positive), ("negative", negative)):
            name = f"{k}{slot}"
            identity = f"n{k}" if slot == "negative" else f"p{k}"
            rows.append((a_row(identity, f"{name}.png", id=name, group=str(k), slot=slot), color))
    found = validation(MeanColor(), paint(tmp_path, rows))
    assert found["triplet"] == 2 / 4  # won, lost, a tie, won
    # a group may have several negatives: each is a triplet
    more = a_row("m", "more.png", id="more", group="0", slot="negative")
    found = validation(MeanColor(), paint(tmp_path, [*rows, (more, red)]))
    assert found["triplet"] == 2 / 5


# Which rows count


def test_an_image_used_by_several_rows_is_embedded_once_and_is_no_positive_of_itself(tmp_path: Path) -> None:
    red, pink, green = (200, 0, 0), (200, 100, 100), (0, 200, 0)
    rows = [
        (a_row("a", "a.png", id="1", group="g", slot="anchor"), red),
        (a_row("b", "b.png", id="2", group="g", slot="negative"), pink),
        (a_row("a", "c.png", id="3", group="g", slot="positive"), green),
        (a_row("a", "a.png", id="4", group="h", slot="positive"), red),
        (a_row("a", "c.png", id="5", group="h", slot="anchor"), green),
        (a_row("b", "b.png", id="6", group="h", slot="negative"), pink),
    ]
    seen: list[int] = []
    model = MeanColor()
    model.dropout.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    found = validation(model, paint(tmp_path, rows), batch_size=2)
    assert seen == [2, 1]
    assert found["map"] == pytest.approx((1 / 2 + 1 / 2) / 2)  # pink stands before the one positive, both times
    assert found["triplet"] == 0.0


def test_images_without_identity_are_no_gallery(tmp_path: Path) -> None:
    red, green = (200, 0, 0), (0, 200, 0)
    rows = [
        (a_row("a", "a.png"), red), (a_row("a", "b.png"), green), (a_row(None, "c.png"), red),
        (a_row("x", "d.png"), green),
    ]  # fmt: skip
    # c, which looks like a, is no wrong answer; d, which looks like b, is one: before a, and level with b
    assert validation(MeanColor(), paint(tmp_path, rows)) == {"map": pytest.approx((1 / 2 + 1 / 2) / 2)}
    assert validation(MeanColor(), paint(tmp_path, rows[:3])) == {"map": 1.0}


def test_rows_that_allow_nothing_are_refused(tmp_path: Path) -> None:
    rows = [(a_row("a", "a.png"), (9, 9, 9)), (a_row("b", "b.png"), (8, 0, 0)), (a_row(None, "c.png"), (0, 7, 0))]
    with pytest.raises(ValueError, match="nothing can be measured on 3 validation rows: give two images"):
        validation(MeanColor(), paint(tmp_path, rows))
    with pytest.raises(ValueError, match="0 validation rows"):
        validation(MeanColor(), a_table([], tmp_path))


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    data = a_table([a_row("a", "lost.png"), a_row("a", "gone.png")], tmp_path)
    model = MeanColor().train()
    with pytest.raises(ImageReadError, match=r"lost\.png"):
        validation(model, data)
    assert model.training


def test_a_diverged_model_is_refused(tmp_path: Path) -> None:
    model = MeanColor()
    with torch.no_grad():
        model.scale.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        validation(model, paint(tmp_path, [(a_row("a", "a.png"), (9, 9, 9)), (a_row("a", "b.png"), (8, 0, 0))]))


def test_an_oracle_that_does_not_vary_correlates_with_nothing(tmp_path: Path) -> None:
    rows = [row for row in family(2) if row["role"] in ("real", "part-edit")]
    rows = [{**row, "oracle": 0.5} if "oracle" in row else row for row in rows]
    found = validation(MeanColor(), paint(tmp_path, list(zip(rows, colors(len(rows), 3), strict=True))))
    assert found["oracle"] == found["oracle_pair"] == 0.0


# The model afterwards


def test_the_model_is_evaluated_in_eval_mode_and_left_as_it_was(tmp_path: Path) -> None:
    rows = [(a_row(f"i{k // 2}", f"{k}.png"), color) for k, color in enumerate(colors(8, 4))]
    data = paint(tmp_path, rows)
    model = MeanColor().train()
    model.frozen.eval()
    state = torch.get_rng_state()
    first = validation(model, data)
    assert torch.get_rng_state().equal(state)
    assert (model.training, model.dropout.training, model.frozen.training) == (True, True, False)
    assert model.scale.requires_grad
    assert model.scale.grad is None
    assert validation(model.eval(), data) == first
    assert not model.training


# Several processes


def validated(folder: Path, rank: int, port: str) -> None:
    """Validation by one of two processes, then one in which a process of them meets an image that it cannot read."""
    launched(rank, port)
    processes = Processes(cpu=True)
    model, seen = MeanColor(), list[int]()
    model.dropout.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    data = read(folder / "data.parquet")
    found = {"values": validation(model, data, batch_size=2, processes=processes), "seen": sum(seen)}
    found["few"] = validation(model, take(data, [0, 1]), batch_size=2, processes=processes)
    (folder / "4.png").write_bytes(b"no image")
    try:
        validation(model, data, batch_size=2, processes=processes)
    except (ValueError, TrainError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    (folder / f"{rank}.json").write_text(json.dumps(found))
    processes.close()


@pytest.mark.slow
def test_processes_share_a_validation_and_fail_together(tmp_path: Path) -> None:
    rows = [a_row(f"i{k // 2}", f"{k}.png") for k in range(7)]
    data = paint(tmp_path, list(zip(rows, colors(7, 5), strict=True)))
    write(data, tmp_path / "data.parquet")
    alone, few = validation(MeanColor(), data, batch_size=2), validation(MeanColor(), take(data, [0, 1]), batch_size=2)
    assert in_two_processes(validated, tmp_path) == [0, 0]
    main, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert main["values"] == other["values"] == alone  # bit for bit: the batches are those of one process
    assert (main["seen"], other["seen"]) == (4, 3)
    assert main["few"] == other["few"] == few  # the second process has nothing to embed
    assert other["error"].startswith("ImageReadError: ")
    assert "4.png" in other["error"]
    assert main["error"].startswith("TrainError: process 1 failed: ImageReadError: ")
