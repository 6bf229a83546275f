"""The protocols, each against a slow, obvious computation on random embeddings."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame

from idmetric.data.manifest import checked, take
from idmetric.evaluate.protocols import folder
from idmetric.evaluate.protocols import nearid_table1_margins as nearid
from idmetric.evaluate.protocols import retrieval_ilgen_table2 as retrieval
from idmetric.evaluate.protocols.common import intervals, matched, paper_numbers, ranked
from idmetric.evaluate.protocols.common.result import Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.folder import FolderOptions
from idmetric.evaluate.protocols.nearid_table1_margins import NearIDOptions
from idmetric.evaluate.protocols.retrieval_ilgen_table2 import RetrievalOptions
from idmetric.evaluate.statistics.bootstrap import bootstrap
from idmetric.evaluate.statistics.margins import margin_rates
from idmetric.evaluate.statistics.ranking import roc_auc
from idmetric.metric.embedding import Embedding
from idmetric.stream import Look
from tests.evaluate.protocols.parts import PLAIN, Drawn, Images, Scripted, values
from tests.table_parts import a_row, a_table

metrics = pytest.importorskip("sklearn.metrics")


# Intervals


@pytest.mark.parametrize("seed", range(3))
def test_quick_intervals_are_those_of_the_bootstrap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, 9, 60)
    x, n = rng.normal(size=60), rng.integers(1, 4, 60).astype(float)
    settings = EvalSettings(bootstrap=50, seed=seed)
    for found, slow in (
        (intervals.mean(x, owner, settings, limits=(-np.inf, np.inf)), lambda rows: x[rows].mean()),
        (intervals.ratio(x, n, owner, settings, limits=(-np.inf, np.inf)), lambda rows: x[rows].sum() / n[rows].sum()),
    ):
        expected = bootstrap(slow, owner, samples=50, seed=seed)
        assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))
    a, b = np.triu_indices(30, 1)
    scores = rng.normal(size=len(a)).round(1)
    same = owner[a] == owner[b]
    both = owner[np.stack([a, b], 1)]
    area = intervals.auc(scores, same, both, settings)["AUC"]
    expected = bootstrap(lambda rows: roc_auc(scores[rows], same[rows]), both, samples=50, seed=seed)
    assert (area.value, area.low, area.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_one_identity_has_no_interval_and_none_is_drawn_unasked() -> None:
    one = intervals.mean(np.ones(3), np.zeros(3), EvalSettings(bootstrap=20))
    assert (one.value, one.low, one.high, one.count) == (1.0, None, None, 3)
    assert intervals.mean(np.ones(3), np.arange(3), PLAIN).low is None
    assert intervals.auc(np.ones(3), np.ones(3, bool), np.zeros((3, 2)), PLAIN) == {}


def test_images_of_unknown_identity_do_not_match() -> None:
    """A gallery's distractors are drawn one by one, not all of them or none."""
    identity, rows = np.array([0, 1, -1, -1, -1]), np.array([[0, 2], [1, 3], [0, 3]])
    found = intervals.owners(identity, rows)
    assert found[:, 0].tolist() == [0, 1, 0]
    assert found[0, 1] != found[1, 1] == found[2, 1]
    assert found[:, 1].max() < 0
    search = ranked.Search(np.array([0, 2]), np.arange(5), identity, np.arange(5))
    positives = [np.flatnonzero(is_positive).tolist() for is_positive, _ in search.relevance(slice(0, 2))]
    assert positives == [[], []]  # two unnamed images are not the same


# Folder


@pytest.fixture
def photographed(draw: Images, tmp_path: Path) -> DataFrame:
    """Two datasets; an identity with one image, an image in two rows, rows of unknown identity."""
    rows = []
    for number, (dataset, sizes) in enumerate({"one": (4, 3, 1), "two": (2, 5, 3)}.items()):
        for k, size in enumerate(sizes):
            who = 10 * number + k
            rows += [a_row(f"i{who}", draw(who, v), dataset=dataset) for v in range(size)]
    rows.append(a_row("i0", draw(0, 1), id="twice", dataset="one"))
    rows.append(a_row(None, draw(200, 0), dataset="one"))
    return a_table(rows, tmp_path)


def test_folder_gives_scikit_learn_s_numbers(photographed: DataFrame) -> None:
    model = Drawn()
    [result] = folder.run(photographed, {"m": model}, PLAIN, FolderOptions((2,)))
    data = take(photographed, photographed["identity"].notna())
    x, path = model.of(data), data["path"].tolist()
    names, sets = data["identity"].to_numpy(), data["dataset"].to_numpy()
    for dataset in ("one", "two"):
        own = np.flatnonzero(sets == dataset)
        found = values(result, dataset=dataset)
        ap, first, recall, hits = [], [], [], []
        for q in own:
            others = [g for g in own if path[g] != path[q]]
            relevant = np.array([names[g] == names[q] for g in others])
            if not relevant.any():
                continue
            scores = np.array([x[q] @ x[g] for g in others])
            order = relevant[np.argsort(-scores)]
            ap.append(metrics.average_precision_score(relevant, scores))
            first.append(order[0])
            recall.append(order[:2].sum() / relevant.sum())
            hits.append(order[:2].any())
        assert found["mAP"].value == pytest.approx(np.mean(ap))
        assert found["P@1"].value == pytest.approx(np.mean(first))
        assert found["recall@2"].value == pytest.approx(np.mean(recall))
        assert found["hit@2"].value == pytest.approx(np.mean(hits))
        assert found["mAP"].count == len(ap)
        pairs = [(a, b) for a, b in itertools.combinations(own, 2) if path[a] != path[b]]
        area = metrics.roc_auc_score([names[a] == names[b] for a, b in pairs], [x[a] @ x[b] for a, b in pairs])
        assert found["AUC"].value == pytest.approx(area)
        assert found["AUC"].count == len(pairs)
    means = [np.mean([values(result, dataset=d)[m].value for d in ("one", "two")]) for m in ("mAP", "AUC")]
    assert [values(result, dataset="mean")[m].value for m in ("mAP", "AUC")] == pytest.approx(means)
    assert result.notes == ["1 images of one have no positive and are searched but not queried: i2"]


def test_of_many_pairs_all_of_one_identity_are_kept(photographed: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = folder.run(photographed, {"m": Drawn()}, PLAIN)[0].items["pairs"]
    monkeypatch.setattr(ranked, "PAIRS", 10)
    some = folder.run(photographed, {"m": Drawn()}, PLAIN)[0].items["pairs"]
    assert sum(some["same"]) == sum(whole["same"])
    assert 0 < len(some["same"]) - sum(some["same"]) < len(whole["same"]) - sum(whole["same"])
    monkeypatch.setattr(ranked, "OWN_PAIRS", 5)  # more than memory holds: identities of thousands of images
    fewer = folder.run(photographed, {"m": Drawn()}, PLAIN)[0].items["pairs"]
    assert 0 < sum(fewer["same"]) < sum(whole["same"])


def test_one_identity_alone_is_noted(draw: Images, tmp_path: Path) -> None:
    rows = [a_row("a", draw(1, view), dataset="one") for view in range(3)]
    [result] = folder.run(a_table(rows, tmp_path), {"m": Drawn()}, PLAIN)
    assert result.rows[0]["mAP"].value == 1.0
    assert "all images of one show one identity: no answer can be wrong, so that mAP is 1.000" in result.notes
    two = a_table([*rows, a_row("b", draw(9, 0), dataset="one")], tmp_path)
    [result] = folder.run(two, {"m": Drawn()}, PLAIN)
    assert not [note for note in result.notes if "show one identity" in note]


def test_copies_among_positives_are_noted(draw: Images, tmp_path: Path) -> None:
    rows = [a_row(f"i{who}", draw(who, view)) for who in range(2) for view in range(2)]
    [result] = folder.run(a_table(rows, tmp_path), {"m": Drawn()}, PLAIN)
    assert not any("copies" in note for note in result.notes)
    (tmp_path / "again.png").write_bytes((tmp_path / rows[0]["path"]).read_bytes())
    (tmp_path / "other.png").write_bytes((tmp_path / rows[0]["path"]).read_bytes())
    copied = a_table([*rows, a_row("i0", "again.png"), a_row("i1", "other.png")], tmp_path)
    [result] = folder.run(copied, {"m": Drawn()}, PLAIN)
    [note] = [note for note in result.notes if "copies" in note]
    assert "again.png" in note
    assert "other.png" not in note  # of another identity


def test_a_folder_without_a_positive_is_an_error(draw: Images, tmp_path: Path) -> None:
    lone = a_table([a_row("a", draw(1, 1)), a_row("b", draw(2, 1))], tmp_path)
    with pytest.raises(ValueError, match="no identity has two images"):
        folder.run(lone, {"m": Drawn()}, PLAIN)


# ILGen


def ilgen_rows(draw: Images, dataset: str, by: str) -> list[dict[str, Any]]:
    start = int(hashlib.sha256(dataset.encode()).hexdigest()[:2], 16) % 100
    rows = []
    for who in range(6):
        for k in range(5):
            query = k == 0
            place = {"split": "query" if query else "gallery"} if by == "split" else {
                "group": f"{dataset}{who}{k}", "slot": "query" if query else "candidate"
            }  # fmt: skip
            rows.append(
                a_row(f"{dataset}-{who}", draw(start + who, k), id=f"{dataset}/{who}/{k}", dataset=dataset, **place)
            )
    return rows


@pytest.mark.parametrize("by", ["split", "slot"])
def test_queries_search_the_gallery_alone_at_the_set_s_own_depth(draw: Images, tmp_path: Path, by: str) -> None:
    rows = [*ilgen_rows(draw, "met", by), *ilgen_rows(draw, "mine", by)]
    data = a_table(rows, tmp_path)
    model = Drawn(spread=2.0)
    [result] = retrieval.run(data, {"m": model}, PLAIN, RetrievalOptions(k=3))
    x, names = model.of(data), data["identity"].to_numpy()
    for dataset, depth, label in (("met", 100, "mAP@100"), ("mine", 3, "mAP@3")):
        precisions = []
        for q in range(len(data)):
            if not (rows[q]["dataset"] == dataset and "query" in (rows[q].get("split"), rows[q].get("slot"))):
                continue
            gallery = [g for g, row in enumerate(rows) if row["dataset"] == dataset and g % 5]
            ranking = sorted(gallery, key=lambda g: -x[q] @ x[g])[:depth]
            found, gained = 0, 0.0
            for place, g in enumerate(ranking, 1):
                if names[g] == names[q]:
                    found += 1
                    gained += found / place
            precisions.append(gained / min(depth, 4))
        assert values(result, dataset=dataset, measure=label)["mAP"].value == pytest.approx(np.mean(precisions))


def test_junk_is_neither_found_nor_missed(draw: Images, tmp_path: Path) -> None:
    rows = ilgen_rows(draw, "roxford_hard", "split")
    data = a_table(rows, tmp_path)
    plain = retrieval.run(data, {"m": Drawn()}, PLAIN)[0]
    junk = [r["id"] for r in rows[1:] if r["split"] == "gallery" and r["identity"] != rows[0]["identity"]]
    parameters = [{"x_ignore": junk} if r["id"] == rows[0]["id"] else None for r in rows]
    eased = retrieval.run(checked(data.assign(parameters=parameters)), {"m": Drawn()}, PLAIN)[0]
    first = [r.items["queries"]["mAP"][0] for r in (plain, eased)]
    assert first[1] == 1.0  # only positives are left to find
    assert plain.items["queries"]["mAP"][1:] == eased.items["queries"]["mAP"][1:]
    with pytest.raises(ValueError, match="row 1: x_ignore names 'nothing'"):
        retrieval.run(checked(data.assign(parameters=[{"x_ignore": ["nothing"]}] + [None] * 29)), {"m": Drawn()}, PLAIN)


def test_a_query_whose_positives_are_all_junk_has_none(draw: Images, tmp_path: Path) -> None:
    """As some of Revisited Oxford's have in the setting hard."""
    rows = ilgen_rows(draw, "roxford_hard", "split")
    own = [r["id"] for r in rows if r["split"] == "gallery" and r["identity"] == rows[0]["identity"]]
    data = checked(a_table(rows, tmp_path).assign(parameters=[{"x_ignore": own}] + [None] * 29))
    with pytest.raises(ValueError, match="1 queries have no positive in the gallery: roxford_hard-0"):
        retrieval.run(data, {"m": Drawn()}, PLAIN)
    [result] = retrieval.run(data, {"m": Drawn()}, EvalSettings(bootstrap=0, on_error="skip"))
    assert values(result, dataset="roxford_hard")["mAP"].count == 5
    assert "left out" in result.notes[0]


def test_the_landmarks_mean_is_over_equal_settings(draw: Images, tmp_path: Path) -> None:
    def summary(*names: str) -> list[tuple[str, float | None]]:
        data = a_table([r for n in names for r in ilgen_rows(draw, n, "split")], tmp_path)
        model = Drawn("Backbone:vit_large_patch16_siglip_384.webli")
        [result] = retrieval.run(data, {"m": model}, PLAIN)
        return [(str(r["measure"]), r["mAP"].paper) for r in result.rows if r["dataset"] == "rop"]  # type: ignore[union-attr]

    assert summary("roxford_hard", "roxford_medium", "rparis_hard") == []
    assert summary("roxford_hard", "rparis_hard") == [("mean of 2", None)]  # the paper's is over both settings
    four = ("roxford_hard", "roxford_medium", "rparis_hard", "rparis_medium")
    assert summary(*four) == [("mean of 4", pytest.approx(0.45))]


def test_all_six_sets_give_the_paper_s_columns_beside_ours(draw: Images, tmp_path: Path) -> None:
    names = ("met", "roxford_hard", "roxford_medium", "rparis_hard", "rparis_medium", "gldv2", "sop", "instre",
             "mini_ilias")  # fmt: skip
    data = a_table([r for n in names for r in ilgen_rows(draw, n, "split")], tmp_path)
    model = Drawn("Backbone:vit_large_patch16_siglip_384.webli")
    [result] = retrieval.run(data, {"m": model}, PLAIN)
    paper = {row["dataset"]: v.paper for row in result.rows if isinstance(v := row["mAP"], Value) and v.paper}
    assert paper == pytest.approx(
        {"met": 0.673, "gldv2": 0.157, "sop": 0.554, "instre": 0.806, "mini_ilias": 0.21, "rop": 0.45, "avg": 0.475}
    )
    ours = {str(row["dataset"]): row["mAP"].value for row in result.rows}  # type: ignore[union-attr]
    assert ours["rop"] == pytest.approx(np.mean([ours[n] for n in names if n.startswith("r")]))
    columns = ("met", "rop", "gldv2", "sop", "instre", "mini_ilias")
    assert ours["avg"] == pytest.approx(np.mean([ours[n] for n in columns]))
    for row in paper_numbers.PAPERS["ilgen"]["table_5"]["rows"].values():  # as the paper's averages are of its columns
        assert row[0] == pytest.approx(np.mean(row[1:]), abs=0.06)


def test_a_query_without_a_positive_or_gallery_is_named(draw: Images, tmp_path: Path) -> None:
    rows = ilgen_rows(draw, "mine", "split")
    lone = a_table([r for r in rows if r["identity"] != "mine-2" or r["split"] == "query"], tmp_path)
    with pytest.raises(ValueError, match="dataset mine: 1 queries have no positive in the gallery: mine-2"):
        retrieval.run(lone, {"m": Drawn()}, PLAIN)
    [result] = retrieval.run(lone, {"m": Drawn()}, EvalSettings(bootstrap=0, on_error="skip"))
    assert result.rows[0]["mAP"].count == 5  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"no gallery .*there are the splits 'query'"):
        retrieval.run(a_table([r for r in rows if r["split"] == "query"], tmp_path), {"m": Drawn()}, PLAIN)


# NearID


def bench(draw: Images, root: Path, engines: Sequence[str] = nearid.GROUPS["fill"], parts: bool = True) -> DataFrame:
    """Identities of three views, of which some are missing, with distractors of each engine; and part-edits."""
    rows = []
    for who in range(8):
        name = f"nearid/{who}"
        for view in (1, 2, 3):
            if (who, view) in ((1, 2), (2, 3)):
                continue
            rows.append(a_row(name, draw(who, view), id=f"{name}/view{view}", mask=draw(who, view), split="test",
                            parameters={"x_view": view}))  # fmt: skip
            for e, engine in enumerate(engines):
                if (who, view, e) == (3, 1, 0):
                    continue
                path = draw(100 + who, view, e + 1) if (who + view + e) % 3 else draw(who, view, e + 1)
                parent, made = f"{name}/view{view}", f"{name}/view{view}/{engine}"
                rows.append(a_row(made, path, id=made, role="distractor", mask=draw(who, view), engine=engine,
                                parent=parent, split="test"))  # fmt: skip
        for view in (1, 2) if parts else ():
            parent, made = f"mtg/{who}/view{view}", f"mtg/{who}/view{view}/edit"
            rows.append(a_row(f"mtg/{who}", draw(50 + who, view), id=parent, parameters={"x_view": view}, split="test"))
            rows.append(a_row(made, draw(50 + who, view, 9), id=made, role="part-edit", oracle=(who * view % 7) / 7,
                            parent=parent, split="test"))  # fmt: skip
    return a_table(rows, root)


def slow_margins(data: DataFrame, x: np.ndarray, engine: str, prefix: str = "nearid") -> list[np.ndarray]:
    at = {name: k for k, name in enumerate(data["id"].tolist())}
    found = []
    for who in range(8):
        own = []
        for i, j in itertools.permutations((1, 2, 3), 2):
            a, b = f"{prefix}/{who}/view{i}", f"{prefix}/{who}/view{j}"
            n = f"{a}/{engine}"
            if a in at and b in at and n in at:
                own.append(x[at[a]] @ x[at[b]] - x[at[a]] @ x[at[n]])
        found.append(np.array(own) if own else np.full(1, np.nan))
    return found


@pytest.mark.parametrize("masked", [False, True])
def test_ssr_and_pa_are_those_of_equation_5(draw: Images, tmp_path: Path, masked: bool) -> None:
    data = bench(draw, tmp_path, parts=False)
    model = Drawn("SigLIP", spread=1.0)
    settings = EvalSettings(bootstrap=0, look=Look(masked, "crop"))
    [result] = nearid.run(data, {"m": model}, settings)
    x = model.of(data, masked)
    every = []
    for engine in nearid.GROUPS["fill"]:
        margins = slow_margins(data, x, engine)
        every += list(margins)
        expected = margin_rates(margins)
        found = values(result, source=engine)
        assert (found["SSR"].value, found["SSR"].count) == (pytest.approx(expected.ssr), len(expected.samples))
        assert (found["PA"].value, found["PA"].count) == (pytest.approx(expected.pa), expected.trials.sum())
    pooled = margin_rates(every)
    assert 0 < pooled.ssr < pooled.pa < 1
    for name in ("fill", "all"):
        found = values(result, source=name)
        assert found["SSR"].value == pytest.approx(pooled.ssr)
        assert found["PA"].value == pytest.approx(pooled.pa)
    names = [row["source"] for row in result.rows]
    assert names == [*nearid.GROUPS["fill"], "training", "unseen fill", "fill", "all"]


def test_the_released_pa_counts_the_mean_margin(draw: Images, tmp_path: Path) -> None:
    data = bench(draw, tmp_path, ("SDXL",), parts=False)
    model = Drawn()
    [result] = nearid.run(data, {"m": model}, PLAIN, NearIDOptions(released_pa=True))
    expected = margin_rates(slow_margins(data, model.of(data), "SDXL"), count_mean=True)
    assert values(result, source="SDXL")["PA"].value == pytest.approx(expected.pa)
    assert values(result, source="SDXL")["SSR"].value == pytest.approx(expected.ssr)


def test_part_edits_give_margins_and_the_oracle_s_correlation(draw: Images, tmp_path: Path) -> None:
    data = bench(draw, tmp_path, ())
    model = Drawn()
    [result] = nearid.run(data, {"m": model}, EvalSettings(bootstrap=40))
    x, at = model.of(data), {name: k for k, name in enumerate(data["id"].tolist())}
    found = values(result, source="MTG")
    oracle = data["oracle"].tolist()
    z = {}
    for i, j in itertools.product((1, 2), repeat=2):
        edits = [at[f"mtg/{who}/view{j}/edit"] for who in range(8)]
        scores = [x[at[f"mtg/{who}/view{i}"]] @ x[e] for who, e in enumerate(edits)]
        z[i, j] = np.arctanh(np.corrcoef(scores, [oracle[e] for e in edits])[0, 1])
    assert found["M-O"].value == pytest.approx(np.tanh(np.mean(list(z.values()))))
    assert found["M-O-pair"].value == pytest.approx(np.tanh((z[1, 1] + z[2, 2]) / 2))
    assert found["M-O"].low is not None
    assert found["M-O"].low < found["M-O"].value < found["M-O"].high  # type: ignore[operator]
    expected = margin_rates(slow_margins(data, x, "edit", "mtg"))
    assert found["SSR"].value == pytest.approx(expected.ssr)
    assert found["PA"].value == pytest.approx(expected.pa)


def test_the_paper_s_values_stand_beside_its_models(draw: Images, tmp_path: Path) -> None:
    data = bench(draw, tmp_path)
    siglip = Drawn("Backbone:siglip2:nearid")
    whole = nearid.run(data, {"m": siglip, "other": Drawn()}, PLAIN)
    assert values(whole[0], source="Qwen_1328")["SSR"].paper == pytest.approx(0.162)
    assert values(whole[0], source="fill")["PA"].paper == pytest.approx(0.4881)
    assert values(whole[0], source="MTG")["M-O"].paper == pytest.approx(0.180)
    assert all(v.paper is None for row in whole[1].rows for v in row.values() if isinstance(v, Value))
    assert values(whole[0], source="all")["SSR"].paper is None  # the paper's is over nine engines, these are seven
    nine = bench(draw, tmp_path, nearid.GROUPS["fill"] + nearid.GROUPS["unseen canny"], parts=False)
    [all_nine] = nearid.run(checked(nine.assign(split="val")), {"m": siglip}, PLAIN)
    assert values(all_nine, source="all")["SSR"].paper == pytest.approx(0.298)
    assert "measured on the split val; the paper's numbers are of test (--split)" in all_nine.notes
    assert not any("split" in note for note in whole[0].notes)
    # the tables' own averages are those of their rows, to rounding
    for model in ("NearID", "SigLIP2"):
        for group, engines in nearid.GROUPS.items():
            for k in (0, 1):
                mean = np.mean([paper_numbers.PAPERS["nearid"]["table_5"]["rows"][model][e][k] for e in engines])  # type: ignore[arg-type]
                assert paper_numbers.PAPERS["nearid"]["table_5"]["rows"][model][group][k] == pytest.approx(
                    mean, abs=0.1
                )


def test_the_paper_s_foregrounds_are_on_black_and_not_cropped(draw: Images, tmp_path: Path) -> None:
    data = bench(draw, tmp_path, parts=False)
    clip = Drawn("Backbone:clip:nearid[hub-crop 1, bicubic]")
    for outside, paper in (("black", 0.513), ("crop", None), ("white", None)):
        settings = EvalSettings(bootstrap=0, look=Look(True, outside))  # type: ignore[arg-type]
        [result] = nearid.run(data, {"m": clip}, settings)
        assert values(result, source="fill")["SSR"].paper == paper
        assert values(result, source="Flux")["SSR"].paper is None


def test_the_papers_numbers_are_of_whole_images_and_class_features(draw: Images, tmp_path: Path) -> None:
    class Patches(Drawn):
        has_patches = True

        def embed_prepared(self, batch: Any, patches: bool = True) -> Embedding:
            cls = super().embed_prepared(batch, patches).cls
            return Embedding(cls, cls[:, None, :].repeat(1, 4, 1) if patches else None)

    siglip = Patches("Backbone:vit_large_patch16_siglip_384.webli")
    rows = [{**row, "mask": row["path"]} for row in ilgen_rows(draw, "met", "split")]
    data = a_table(rows, tmp_path)
    settings = (PLAIN, EvalSettings(bootstrap=0, look=Look(True)), EvalSettings(bootstrap=0, distance="patch"))
    printed = [retrieval.run(data, {"m": siglip}, each)[0].rows[0]["mAP"].paper for each in settings]  # type: ignore[union-attr]
    assert printed == [pytest.approx(0.673), None, None]

    near = Patches("Backbone:siglip2:nearid")
    [patch] = nearid.run(bench(draw, tmp_path), {"m": near}, EvalSettings(bootstrap=0, distance="patch"))
    assert all(v.paper is None for row in patch.rows for v in row.values() if isinstance(v, Value))


def test_pairs_without_an_answer_leave_no_margin_and_are_noted(draw: Images, tmp_path: Path) -> None:
    def scores(data: DataFrame, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(a)) % 5 == 4, np.nan, np.random.default_rng(len(a)).random(len(a)))

    data, wordless = bench(draw, tmp_path, ("SDXL",)), Scripted(scores)
    [whole] = nearid.run(data, {"m": Drawn()}, PLAIN)
    [result] = nearid.run(data, {"j": wordless}, PLAIN)
    for source in ("SDXL", "MTG"):
        counts = [values(r, source=source)["PA"].count for r in (whole, result)]
        assert 0 < counts[1] < counts[0]
    assert not any("answer" in note for note in whole.notes)
    assert any("comparisons have no answer: what needs them is left out" in note for note in result.notes)


def test_several_distractors_of_a_view_by_one_engine_are_separate_samples(draw: Images, tmp_path: Path) -> None:
    rows = [a_row("a", draw(1, v), id=f"a/{v}") for v in (1, 2)]
    rows += [a_row(f"a/{v}/{n}", draw(9, v, n + 1), id=f"a/{v}/{n}", role="distractor", parent=f"a/{v}")
             for v in (1, 2) for n in range(3 if v == 1 else 2)]  # fmt: skip
    found = matched.matched(a_table(rows, tmp_path), ("distractor",), ["x"] * len(rows))
    assert found.views.tolist() == [[0, 1]] * 3
    assert found.made.tolist() == [[2, 5], [3, 6], [4, -1]]


def test_numbers_name_rows_as_their_text_does(draw: Images, tmp_path: Path) -> None:
    """Ids of a column of whole numbers are text, and `x_ignore` in JSON has numbers."""
    rows = [{**row, "id": str(number)} for number, row in enumerate(ilgen_rows(draw, "roxford_hard", "split"))]
    junk = [int(r["id"]) for r in rows if r["split"] == "gallery" and r["identity"] != rows[0]["identity"]]
    data = checked(a_table(rows, tmp_path).assign(parameters=[{"x_ignore": junk}] + [None] * 29))
    [result] = retrieval.run(data, {"m": Drawn()}, PLAIN)
    assert result.items["queries"]["mAP"][0] == 1.0  # only positives are left to find
    with pytest.raises(ValueError, match="row 1: x_ignore names True, but no row"):
        retrieval.run(checked(data.assign(parameters=[{"x_ignore": [True]}] + [None] * 29)), {"m": Drawn()}, PLAIN)


def test_splits_that_are_neither_queries_nor_gallery_are_named(draw: Images, tmp_path: Path) -> None:
    rows = [{**row, "split": "fold 1"} for row in ilgen_rows(draw, "sop", "split")]
    [result] = retrieval.run(a_table(rows, tmp_path), {"m": Drawn()}, PLAIN)
    assert "dataset sop: no split of fold 1 is query or gallery: all images search all" in result.notes
