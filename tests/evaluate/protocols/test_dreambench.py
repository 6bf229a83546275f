"""DreamBench++: the published numbers from the published ratings, and a model's own from images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame
from PIL import Image
from scipy import stats

from idmetric.cli.eval import main as eval_command
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import checked
from idmetric.evaluate.protocols import dreambench_nearid_table2 as dreambench
from idmetric.evaluate.protocols.common.baselines import hsv_vector
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.paper_numbers import (
    ALL_CATEGORIES,
    FISHER_ROW,
    HUMAN,
    printed,
    rows,
)
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.common.tables import table
from idmetric.evaluate.protocols.dreambench import ratings as dreambench_ratings
from idmetric.evaluate.protocols.dreambench.ratings import CATEGORIES
from idmetric.evaluate.protocols.dreambench_nearid_table2 import DreamBenchOptions, rate
from idmetric.evaluate.statistics.agreement import fisher_mean, pearson
from idmetric.evaluate.statistics.bootstrap import bootstrap
from idmetric.metric.images import read_image
from idmetric.stream import Look
from tests.evaluate.protocols.parts import Drawn, Scripted

ALL_FOUR = DreamBenchOptions()
RUN = "emu2_gs3_step50_seed42_torch_bfloat16"
NONE, SOME = EvalSettings(bootstrap=0), EvalSettings(bootstrap=200, seed=3)
THINGS = {"object": "magic_cube", "animal": "kitten", "human": "old_man", "style": "low-poly_geometric"}


def value(rows: list[Row], method: str, category: str = "object", metric: str = "M-H") -> Value:
    found = [r[metric] for r in rows if (r["method"], r["category"]) == (method, category)]
    assert len(found) == 1
    assert isinstance(found[0], Value)
    return found[0]


# The published numbers


@pytest.fixture
def emu2(photo_root: Path, tmp_path: Path) -> Path:
    """Emu2's published ratings of objects, in folders as published."""
    lists = json.loads((photo_root / "dreambench_pp" / "emu2_object.json").read_text())
    raters = {"human_group1": "group1", "human_group2": "group2", "gpt": "gpt", "nearid_100cos_rounded": "nearid"}
    for name, rater in raters.items():
        path = tmp_path / "published" / FOLDERS[rater].format("emu2")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({f"object_{k // 9:02d}_x-{k % 9}": value for k, value in enumerate(lists[name])}))
    return tmp_path / "published"


def test_the_row_of_emu2_is_that_of_table_2(emu2: Path) -> None:
    results = {r.model: r for r in dreambench.published(dreambench_ratings.read(emu2), SOME)}
    assert list(results) == [HUMAN, "gpt", "nearid"]
    for model, expected in ((HUMAN, 0.763), ("gpt", 0.777), ("nearid", 0.768)):
        cell = value(results[model].rows, "emu2")
        assert cell.value == pytest.approx(expected, abs=0.002)
        assert (cell.count, cell.paper) == (585, expected)
        assert cell.low is not None
        assert cell.high is not None
        assert cell.low < expected < cell.high
    # interval level, by the package krippendorff 0.9.0; nominal level would give 0.426
    assert value(results[HUMAN].rows, "emu2", metric="alpha").value == pytest.approx(0.76281, abs=1e-5)
    for model, expected in (("gpt", 0.004), ("nearid", 0.028)):
        assert value(results[model].rows, "emu2", metric="±").value == pytest.approx(expected, abs=0.002)
    assert "0.768" in table([results["nearid"]])


@pytest.mark.parametrize("rater", rows("nearid", "fisher"))
def test_the_printed_cells_give_the_printed_fisher_row(rater: str) -> None:
    cells = [printed("nearid", "table_2", method)[rater][0] for method in rows("nearid", "table_2")]
    fisher = printed("nearid", "fisher", rater)
    assert len(cells) == 7
    mean, error = fisher_mean(cells)
    assert mean == pytest.approx(fisher["M-H"], abs=0.00051)  # H-H is .6485, on the edge
    assert error == pytest.approx(fisher["±"], abs=0.00051)
    slow = np.tanh(np.mean([np.log((1 + r) / (1 - r)) / 2 for r in cells]))
    assert mean == pytest.approx(float(slow), abs=1e-12)


# Published folders

FOLDERS = {
    "group1": "data_human_rating/merged_data/group1/{}-cp.json",
    "group2": "data_human_rating/merged_data/group2/{}-cp.json",
    "gpt": "data_gpt_rating/concept_preservation_full/{}.json",
    "nearid": "data_nearid_rating/{}.json",
}
SHOWN = ("emu2", "dreambooth_sd", "ip_adapter_plus_vit_h_sdxl")


def make_ratings(root: Path, collections: int = 6, methods: tuple[str, ...] = SHOWN, seed: int = 0) -> dict[str, Any]:
    """Published folders of made-up ratings, each file in its own order; returns rater -> method -> key -> rating."""
    rng = np.random.default_rng(seed)
    truth: dict[str, Any] = {rater: {} for rater in FOLDERS}
    for method in methods:
        keys = [
            (f"{CATEGORIES[c]}_{k:02d}", THINGS[c], prompt) for c in THINGS for k in range(collections)
            for prompt in range(9)
        ]  # fmt: skip
        base = rng.uniform(0, 4, len(keys))
        for rater, place in FOLDERS.items():
            noisy = (base + rng.normal(0, 1, len(keys))).clip(0, 4)
            values = (25 * noisy).tolist() if rater == "nearid" else noisy.round().astype(int).tolist()
            truth[rater][method] = {(c, p): float(v) for (c, _, p), v in zip(keys, values, strict=True)}
            named = {}
            for k in rng.permutation(len(keys)):
                collection, thing, prompt = keys[k]
                if rater == "nearid":  # metrics: another name of one thing, and the number of the image
                    thing = thing.replace("magic_cube", "rubik's_cube")
                    named[f"{collection}_{thing}-{prompt}_0"] = values[k]
                else:
                    named[f"{collection}_{thing}-{prompt}"] = values[k]
            path = root / place.format(method)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(named))
    return truth


def slow_r(truth: dict[str, Any], a: str, b: str, method: str, category: str) -> float:
    keys = sorted(k for k in truth[a][method] if k[0].startswith(CATEGORIES[category]))
    x, y = ([truth[rater][method][k] for k in keys] for rater in (a, b))
    return float(np.corrcoef(x, y)[0, 1])


def test_published_folders_are_paired_by_key(tmp_path: Path) -> None:
    truth = make_ratings(tmp_path)
    ratings = dreambench_ratings.read(tmp_path)
    assert ratings == truth
    results = {r.model: r for r in dreambench.published(ratings, NONE)}
    assert list(results) == [HUMAN, "gpt", "nearid"]
    for category in CATEGORIES:
        cells = []
        for method in SHOWN:
            one, two = (slow_r(truth, group, "nearid", method, category) for group in ("group1", "group2"))
            cells.append((one + two) / 2)
            rows = results["nearid"].rows
            assert value(rows, method, category).value == pytest.approx(cells[-1], abs=1e-12)
            assert value(rows, method, category, "±").value == pytest.approx(abs(one - two) / 2, abs=1e-12)
            human = value(results[HUMAN].rows, method, category)
            assert human.value == pytest.approx(slow_r(truth, "group1", "group2", method, category), abs=1e-12)
            assert human.count == 54
        mean = value(rows, FISHER_ROW, category)
        assert mean.value == pytest.approx(np.tanh(np.mean(np.arctanh(cells))), abs=1e-12)
        assert mean.count == 3 * 54
        error = value(rows, FISHER_ROW, category, "±").value
        assert error == pytest.approx(np.std(cells, ddof=1) / np.sqrt(3), abs=1e-12)
    means = [value(rows, FISHER_ROW, category).value for category in CATEGORIES]
    assert value(rows, FISHER_ROW, ALL_CATEGORIES).value == pytest.approx(
        np.tanh(np.mean(np.arctanh(means))), abs=1e-12
    )
    assert [r["method"] for r in rows[:4]] == ["dreambooth_sd", "emu2", "ip_adapter_plus_vit_h_sdxl", FISHER_ROW]
    images = results["nearid"].items["images"]
    assert len(images["score"]) == 3 * 4 * 54
    k = 500
    item = (images["collection"][k], images["prompt"][k])
    for rater in ("group1", "group2", "nearid"):
        column = "score" if rater == "nearid" else rater
        assert images[column][k] == truth[rater][images["method"][k]][item]


def test_the_papers_value_stands_beside_ours(tmp_path: Path) -> None:
    make_ratings(tmp_path)
    results = {r.model: r for r in dreambench.published(dreambench_ratings.read(tmp_path), NONE)}
    rows = results["nearid"].rows
    assert value(rows, "emu2").paper == 0.768
    assert value(rows, "emu2", metric="±").paper == 0.028
    assert value(rows, FISHER_ROW).paper == 0.545
    assert value(rows, FISHER_ROW, metric="±").paper == 0.071
    assert value(rows, FISHER_ROW, "animal").paper == 0.435
    assert value(rows, "emu2", "animal").paper is None
    assert value(rows, FISHER_ROW, ALL_CATEGORIES).paper == 0.445
    assert value(results[HUMAN].rows, "emu2").paper == 0.763


def test_images_without_a_score_are_left_out_and_counted(tmp_path: Path) -> None:
    truth = make_ratings(tmp_path)
    path = tmp_path / FOLDERS["gpt"].format("emu2")
    given = json.loads(path.read_text())
    gone = [k for k in given if k.startswith("object_03")][:4]
    for key, nothing in zip(gone, (None, float("nan"), None, float("nan")), strict=True):
        given[key] = nothing
    path.write_text(json.dumps(given))
    ratings = dreambench_ratings.read(tmp_path)
    rows, notes = rate(ratings, "gpt", NONE, ALL_FOUR)
    assert value(rows, "emu2").count == 50
    assert notes == ["object: 4 images that people rated have no score and are left out"]
    keys = sorted(k for k in ratings["gpt"]["emu2"] if k[0].startswith("object"))
    r = [
        np.corrcoef([truth[g]["emu2"][k] for k in keys], [truth["gpt"]["emu2"][k] for k in keys])[0, 1]
        for g in ("group1", "group2")
    ]
    assert value(rows, "emu2").value == pytest.approx(np.mean(r), abs=1e-12)


def test_wrong_ratings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        dreambench_ratings.read(tmp_path / "none")
    make_ratings(tmp_path / "all")
    with pytest.raises(ValueError, match="no human ratings"):
        dreambench_ratings.read(tmp_path / "all" / "data_nearid_rating")
    make_ratings(tmp_path / "both" / "copy")
    make_ratings(tmp_path / "both" / "other")
    with pytest.raises(ValueError, match=r"two folders of gpt's ratings, one of them other/data_gpt"):
        dreambench_ratings.read(tmp_path / "both")
    ratings = dreambench_ratings.read(tmp_path / "all")
    with pytest.raises(ValueError, match="needs two groups"):
        rate({"group1": ratings["group1"]}, HUMAN, NONE, ALL_FOUR)
    ratings["gpt"] = {"emu2": dict.fromkeys(ratings["gpt"]["emu2"], 2.0)}
    with pytest.raises(ValueError, match="emu2, object: a rater gave the same rating to all 54"):
        rate(ratings, "gpt", NONE, ALL_FOUR)
    ratings["gpt"] = {}
    with pytest.raises(ValueError, match="no image of object, animal, human, style is rated by both gpt"):
        rate(ratings, "gpt", NONE, ALL_FOUR)


# Intervals


def test_intervals_draw_whole_collections_for_all_methods_at_once(tmp_path: Path) -> None:
    truth = make_ratings(tmp_path, collections=21)
    ratings = dreambench_ratings.read(tmp_path)
    rows, _ = rate(ratings, "nearid", SOME, DreamBenchOptions(("object",)))
    items = sorted(k for k in truth["group1"]["emu2"] if k[0].startswith("object"))
    collections = [collection for collection, _ in items]

    def cell(method: str, chosen: np.ndarray) -> float:
        x, a, b = ([truth[rater][method][items[k]] for k in chosen] for rater in ("nearid", "group1", "group2"))
        return (pearson(a, x) + pearson(b, x)) / 2

    slow = bootstrap(lambda chosen: cell("emu2", chosen), collections, samples=200, seed=3)
    fast = value(rows, "emu2")
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high), abs=1e-9)
    slow = bootstrap(lambda chosen: fisher_mean([cell(m, chosen) for m in SHOWN])[0], collections, samples=200, seed=3)
    fast = value(rows, FISHER_ROW)
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high), abs=1e-9)


def test_the_interval_of_few_collections_is_of_the_jackknife(tmp_path: Path) -> None:
    truth = make_ratings(tmp_path, collections=4)
    rows, _ = rate(dreambench_ratings.read(tmp_path), HUMAN, SOME, DreamBenchOptions(("object",)))
    items = sorted(k for k in truth["group1"]["emu2"] if k[0].startswith("object"))
    without = []
    for left_out in sorted({collection for collection, _ in items}):
        rest = [item for item in items if item[0] != left_out]
        without.append(pearson(*([truth[group]["emu2"][item] for item in rest] for group in ("group1", "group2"))))
    half = stats.t.ppf(0.975, 3) * np.sqrt(3 / 4 * np.sum((without - np.mean(without)) ** 2))
    found = value(rows, "emu2")
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


# Krippendorff's alpha


def test_the_alpha_of_people_is_at_interval_level(tmp_path: Path) -> None:
    """Ordered pairs of ratings, counted one by one."""
    truth = make_ratings(tmp_path)
    ratings = dreambench_ratings.read(tmp_path)
    rows, _ = rate(ratings, HUMAN, NONE, DreamBenchOptions(("object",)))
    items = [k for k in truth["group1"]["emu2"] if k[0].startswith("object")]
    units = [[truth[group]["emu2"][item] for group in ("group1", "group2")] for item in items]
    pooled = [rating for unit in units for rating in unit]
    n = len(pooled)
    observed = sum(2 * (a - b) ** 2 for a, b in units) / n
    expected = sum((a - b) ** 2 for a in pooled for b in pooled) / (n * (n - 1))
    [row] = [row for row in rows if row["method"] == "emu2"]
    assert isinstance(row["alpha"], Value)
    assert row["alpha"].value == pytest.approx(1 - observed / expected)
    assert row["alpha"].count == len(items)
    gpt, _ = rate(ratings, "gpt", NONE, DreamBenchOptions(("object",)))
    assert not any("alpha" in row for row in gpt)


# Images


@pytest.fixture
def ratings(tmp_path: Path) -> Any:
    """Made-up images of two runs whose colors follow no rule, and ratings of three; returns the ratings."""
    rng = np.random.default_rng(1)
    for k in range(3):
        path = tmp_path / "data" / "images" / "object" / f"{k:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)).save(path)
        for run in (RUN, "ip_adapter_plus_vit_huge_sdxl_scale0_6_seed42"):
            folder = tmp_path / "samples" / run / "tgt_image" / f"object_{k:02d}_rubik's_cube"
            folder.mkdir(parents=True)
            for prompt in range(4):
                for number in (0, 1) if prompt == 0 else (0,):
                    made = Image.fromarray(rng.integers(0, 60 * (prompt + 1), (12, 12, 3), dtype=np.uint8))
                    made.save(folder / f"{prompt}_{number}.png")
    make_ratings(tmp_path / "ratings")
    return dreambench_ratings.read(tmp_path / "ratings")


def imported(root: Path, **options: str) -> DataFrame:
    return import_dataset("dreambench_pp", root / "data", options={"samples": str(root / "samples"), **options})


def score(result: Result) -> dict[tuple[str, str, int], float]:
    images = result.items["images"]
    keys = zip(images["method"], images["collection"], images["prompt"], strict=True)
    return dict(zip(keys, images["score"], strict=True))


def test_a_models_similarities_are_correlated_with_the_ratings(tmp_path: Path, ratings: Any) -> None:
    models = {"hsv": open_model("hsv")}
    [result] = dreambench.run(imported(tmp_path), models, NONE, ratings=ratings)
    assert (result.protocol, result.model, result.signature["model"]) == ("dreambench", "hsv", "hsv")
    found = score(result)
    assert len(found) == 2 * 3 * 4  # the second image of prompt 0 is not rated
    for k in (0, 2):
        for prompt in range(4):
            made = tmp_path / "samples" / RUN / "tgt_image" / f"object_{k:02d}_rubik's_cube" / f"{prompt}_0.png"
            reference = tmp_path / "data" / "images" / "object" / f"{k:02d}.png"
            a, b = (hsv_vector(Image.open(path)) for path in (reference, made))
            assert found["emu2", f"object_{k:02d}", prompt] == pytest.approx(float(a @ b), abs=1e-6)
    for method in ("emu2", "ip_adapter_plus_vit_h_sdxl"):  # vit_huge in the folder, vit_h in the ratings
        items = [k[1:] for k in found if k[0] == method]
        scores = [found[(method, *item)] for item in items]
        r = [np.corrcoef([ratings[g][method][i] for i in items], scores)[0, 1] for g in ("group1", "group2")]
        assert value(result.rows, method).value == pytest.approx(np.mean(r), abs=1e-9)
        assert value(result.rows, method).count == 12
    assert "no score" in result.notes[0]


def test_nearids_numbers_stand_beside_the_encoder_of_the_ratings_whatever_it_is_called(
    tmp_path: Path, ratings: Any
) -> None:
    clip_b32 = "Backbone:clip-i:dreambench++[hub-crop 1, bicubic]"
    models = {
        "clip": open_model("hsv"),
        "mine": Drawn(clip_b32),
        "dino": Drawn("Backbone:dinov2-i:dreambench++[hub-crop 0.875, bicubic]"),
        "siglip2": Drawn("Backbone:siglip2-mean:nearid"),
        "map": Drawn("Backbone:siglip2:nearid"),
        "nearid": Drawn("NearID:nearid"),
    }
    data = imported(tmp_path)
    printed_cells = {"clip": None, "mine": 0.744, "dino": 0.774, "siglip2": 0.766, "map": None, "nearid": 0.768}
    for result in dreambench.run(data, models, NONE, ratings=ratings):
        assert value(result.rows, "emu2").paper == printed_cells[result.model], result.model
    Image.new("L", read_image(data["path"][0]).size, 255).save(tmp_path / "mask.png")
    masks = [str(tmp_path / "mask.png")] * len(data)
    [masked] = dreambench.run(checked(data.assign(mask=masks)), {"nearid": models["nearid"]},
                              replace(NONE, look=Look(True)), ratings=ratings)  # fmt: skip
    assert value(masked.rows, "emu2").paper is None


def test_images_that_cannot_be_used_are_named(tmp_path: Path, ratings: Any) -> None:
    models = {"hsv": open_model("hsv")}
    data = imported(tmp_path)
    with pytest.raises(ValueError, match=r"no image of animal is rated: images are of emu2_gs3"):
        dreambench.run(data, models, NONE, DreamBenchOptions(("animal",)), ratings=ratings)
    (tmp_path / "samples" / "emu2_seed43").symlink_to(tmp_path / "samples" / RUN)
    with pytest.raises(ValueError, match="are both images of emu2"):
        dreambench.run(imported(tmp_path), models, NONE, ratings=ratings)


def test_pairs_without_an_answer_are_no_zeros(tmp_path: Path, ratings: Any) -> None:
    def scores(data: DataFrame, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        prompts = np.array([json.loads(data["parameters"][k])["prompt"] for k in b.tolist()])
        return np.where(prompts == 1, np.nan, np.linspace(0, 1, len(b)))  # never an answer about prompt 1

    [result] = dreambench.run(imported(tmp_path), {"j": Scripted(scores)}, NONE, ratings=ratings)
    found = score(result)
    assert len(found) == 18
    assert all(key[2] != 1 for key in found)
    assert value(result.rows, "emu2").count == 9


def test_pooled_ranks_are_those_of_scipy_over_animals_and_objects(tmp_path: Path) -> None:
    from scipy import stats

    truth = make_ratings(tmp_path)
    results = {r.model: r for r in dreambench.published(dreambench_ratings.read(tmp_path), SOME)}
    [row] = [r for r in results["nearid"].rows if r["method"] == "pooled"]
    people, scores = [], []
    for method in SHOWN:
        for key in truth["nearid"][method]:
            if key[0].startswith(("object", "live_subject_animal")):
                people.append((truth["group1"][method][key] + truth["group2"][method][key]) / 2)
                scores.append(truth["nearid"][method][key])
    assert isinstance(row["Spearman"], Value)
    assert isinstance(row["Kendall"], Value)
    assert row["Spearman"].value == pytest.approx(stats.spearmanr(people, scores)[0], abs=1e-12)
    assert row["Kendall"].value == pytest.approx(stats.kendalltau(people, scores)[0], abs=1e-12)
    assert row["Spearman"].count == 3 * 2 * 54
    assert row["Spearman"].low is not None
    assert row["Spearman"].low < row["Spearman"].value
    assert not [r for r in results[HUMAN].rows if r["method"] == "pooled"]
    [one] = dreambench.published({k: truth[k] for k in ("group1", "group2")}, NONE, DreamBenchOptions(("object",)))
    assert not [r for r in one.rows if r["method"] == "pooled"]


def test_id_sims_printed_ranks_belong_to_its_models(tmp_path: Path) -> None:
    make_ratings(tmp_path)
    ratings = dreambench_ratings.read(tmp_path)
    for paper_row, distance, expected in (
        ("ID-Sim", "cls", (0.6856, 0.5305)),
        ("ID-Sim", "patch_pooled", (0.6834, None)),
        ("LPIPS", "cls", (0.482, 0.354)),
        (None, "cls", (None, None)),
        ("ID-Sim", "joint", (None, None)),
    ):
        row = dreambench.rank(ratings, "nearid", replace(NONE, distance=distance), paper_row)
        assert row is not None
        assert tuple(v.paper for v in row.values() if isinstance(v, Value)) == expected


# The command


def test_the_command_prints_the_row_and_keeps_every_rating(
    emu2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    args = ["dreambench", "--ratings", str(emu2), "--out", str(tmp_path), "--bootstrap", "50", "--format", "csv"]
    assert eval_command(args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("dreambench,human,object,emu2,M-H,0.763")
    assert pq.read_table(tmp_path / "dreambench.nearid.images.parquet").num_rows == 585
