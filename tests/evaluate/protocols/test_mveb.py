"""MVEB: precision at 1 again by loops, and the texts that each kind of model gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import torch.nn.functional as F
from pandas import DataFrame
from safetensors.torch import load_file, save_file

from idmetric import CheckpointError, VisIDEmbed
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import checked, take
from idmetric.evaluate.protocols import mveb_visme_table1 as mveb
from idmetric.evaluate.protocols.common import paper_numbers
from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.mveb_visme_table1 import MVEBOptions, ask, edits, instructed, run
from idmetric.metric.embedding import Embedding
from idmetric.metric.idsim import IDSim
from idmetric.metric.images import read_image
from idmetric.metric.visid.config import TASKS
from tests.evaluate.protocols.parts import PLAIN, Scripted, broken, clip_folder, picture, values
from tests.table_parts import a_row, a_table, where

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Cars196 and Market1501: 6 queries each with 4 candidates; GPTImageEdit: with texts that describe the edit."""
    root, rows = tmp_path_factory.mktemp("mveb"), []
    for set_, name in enumerate(("Cars196", "Market1501", "GPTImageEdit")):
        for k in range(6):
            seed = 100 * set_ + k
            group = {"dataset": f"mveb/{name}", "group": f"{name}/{k}"}
            text = f"make it number {k}" if name == "GPTImageEdit" else "Find this car." if k else None
            rows.append(a_row(f"{name}/{k}", picture(root / f"{seed}-q.png", seed), slot="query", text=text, **group))
            for c in range(4):
                path = picture(root / f"{seed}-{c}.png", seed if c == 0 else seed + 10 + c, c + 1)
                text = None if c else "Look"
                rows.append(a_row(None, path, slot="candidate", label=float(c == 0), text=text, **group))
    return a_table(rows)


def value(result: Result, dataset: str) -> Value:
    return values(result, dataset=dataset)["P@1"]


def mean_row(result: Result, **labels: str) -> dict[str, Any]:
    [row] = [
        row for row in result.rows
        if str(row["dataset"]).startswith("mean") and all(row[k] == v for k, v in labels.items())
    ]  # fmt: skip
    return row


def slow(data: DataFrame, dataset: str, vector: Callable[[int], torch.Tensor]) -> list[bool]:
    """Whether each query's nearest candidate is right, one by one."""
    groups, slots, labels = data["group"].tolist(), data["slot"].tolist(), data["label"].tolist()
    won = []
    for q in range(len(data)):
        if slots[q] != "query" or data["dataset"].tolist()[q] != f"mveb/{dataset}":
            continue
        best, right = -2.0, False
        for row in range(len(data)):
            if groups[row] == groups[q] and slots[row] == "candidate":
                score = float(F.cosine_similarity(vector(q), vector(row), dim=0))
                if score > best:
                    best, right = score, labels[row] == 1
        won.append(right)
    return won


# Numbers


def test_queries_rank_their_own_candidates(model: IDSim, data: DataFrame) -> None:
    [result] = run(data, {"m": model}, PLAIN)
    vectors = model.embed(data["path"].tolist(), patches=False).cls.double()
    for name in ("Cars196", "Market1501", "GPTImageEdit"):
        won = slow(data, name, lambda row: vectors[row])
        assert value(result, name).value == pytest.approx(np.mean(won))
        assert value(result, name).count == 6
        own = [v for d, v in zip(result.items["questions"]["dataset"], result.items["questions"]["P@1"], strict=True)
               if d == name]  # fmt: skip
        assert own == won
    assert "no text tower: Identity Editing by images alone" in result.notes


def test_a_tie_with_a_wrong_candidate_loses(data: DataFrame) -> None:
    [result] = run(data, {"c": Scripted(lambda data, a, b: np.ones(len(a)))}, PLAIN)
    assert value(result, "Cars196").value == 0


def test_questions_without_an_answer_are_left_out(data: DataFrame) -> None:
    def scores(data: DataFrame, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        right = np.array(data["label"].tolist()) == 1
        return np.where(np.arange(len(a)) == 6, np.nan, right[b].astype(float))

    [result] = run(where(data, dataset="mveb/Cars196"), {"j": Scripted(scores)}, PLAIN)
    assert (value(result, "Cars196").value, value(result, "Cars196").count) == (1, 5)
    assert "Cars196: 1 questions have no answer and are left out" in result.notes


def test_means_are_over_sets_and_have_the_papers_number_only_when_whole(model: IDSim, data: DataFrame) -> None:
    [result] = run(data, {"m": model}, EvalSettings(bootstrap=50), MVEBOptions(paper="VisME (Qwen2.5-VL-3B)"))
    own = [value(result, name) for name in ("Cars196", "Market1501", "GPTImageEdit")]
    whole = mean_row(result, domain="MVEB")
    assert whole["dataset"] == "mean of 3 of 28"
    assert whole["P@1"].value == pytest.approx(np.mean([v.value for v in own]))
    assert whole["P@1"].high - whole["P@1"].value == pytest.approx(
        np.sqrt(sum((v.high - v.value) ** 2 for v in own)) / 3  # type: ignore[operator]
    )
    assert mean_row(result, domain="OOD")["P@1"] == replace(own[1])
    assert all(row["P@1"].paper is None for row in result.rows)
    assert mean_row(result, task="Re-ID")["dataset"] == "mean of 1 of 7"


def test_the_average_of_table_1_is_over_the_28_sets() -> None:
    counts = [list(mveb.MVEB.task_of.values()).count(task) for task in mveb.MVEB.sets]
    assert counts == [10, 7, 6, 5]
    assert sum(mveb.MVEB.domain(name) == "OOD" for name in mveb.MVEB.task_of) == 8
    off = {
        row: abs(float(np.average(values[:4], weights=counts)) - values[4])
        for row, values in paper_numbers.PAPERS["visme"]["mveb"]["rows"].items()
    }
    assert max(off.values()) < 0.1  # of rounding
    ind, ood = paper_numbers.PAPERS["visme"]["mveb_domains"]["rows"]["VisME (Qwen2.5-VL-3B)"]
    assert (20 * ind + 8 * ood) / 28 == pytest.approx(76.7, abs=0.1)


# Texts for models


def test_a_reader_gets_the_querys_text_or_its_meta_tasks_instruction(reader: VisIDEmbed, data: DataFrame) -> None:
    said = instructed(data, ask(data, {})[0])
    text, slot = data["text"].tolist(), data["slot"].tolist()
    assert said[0] == TASKS["recognition"]  # the first query has no text of its own
    assert all(said[row] == text[row] for row in range(1, len(data)) if text[row])
    assert all(row not in said for row in range(len(data)) if slot[row] == "candidate" and not text[row])
    few = where(data, dataset="mveb/GPTImageEdit")
    [result] = run(few, {"r": reader}, PLAIN)
    said = instructed(few, ask(few, {})[0])

    def vector(row: int) -> torch.Tensor:
        found: Embedding = reader.embed(few["path"][row], instruction=said.get(row), patches=False)
        return found.cls[0].double()

    vectors = [vector(row) for row in range(len(few))]
    assert value(result, "GPTImageEdit").value == pytest.approx(
        np.mean(slow(few, "GPTImageEdit", lambda r: vectors[r]))
    )
    assert not any("text tower" in note for note in result.notes)


def features(dual: DualEncoder, data: DataFrame, row: int) -> torch.Tensor:
    """The image's unit vector, by transformers alone."""
    pixels = dual.processor(images=read_image(data["path"][row]), return_tensors="pt")
    with torch.no_grad():
        out = dual.model.get_image_features(**pixels)
    return F.normalize(out if isinstance(out, torch.Tensor) else out.pooler_output, dim=-1)[0].double()


def test_a_dual_encoder_with_a_tensor_missing_is_refused(tmp_path: Path) -> None:
    folder = clip_folder(tmp_path / "clip", "clip")
    state = load_file(folder / "model.safetensors")
    del state["visual_projection.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing visual_projection\.weight"):
        DualEncoder(str(folder), device="cpu")


def test_a_dual_encoder_averages_image_and_text_in_editing_alone(dual: DualEncoder, data: DataFrame) -> None:
    few = where(data, dataset=("mveb/GPTImageEdit", "mveb/Cars196"))
    edited, text = edits(few, ask(few, {})[0]), few["text"].tolist()
    queries = [r for r in range(len(few)) if few["slot"].tolist()[r] == "query"]
    assert set(edited) == {r for r in queries if few["dataset"].tolist()[r] == "mveb/GPTImageEdit"}
    [result] = run(few, {"d": dual}, PLAIN)

    def vector(row: int) -> torch.Tensor:
        image = features(dual, few, row)
        if row not in edited:
            return image
        tokens = dual.tokenizer(text[row], padding="max_length", max_length=12, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = dual.model.get_text_features(input_ids=tokens)
        words = F.normalize(out if isinstance(out, torch.Tensor) else out.pooler_output, dim=-1)[0].double()
        return (image + words) / 2

    vectors = [vector(row) for row in range(len(few))]
    for name in ("GPTImageEdit", "Cars196"):
        assert value(result, name).value == pytest.approx(np.mean(slow(few, name, lambda r: vectors[r])))
    prepared = [dual.prepare(read_image(few["path"][r]), None, edited.get(r)) for r in (0, queries[-1])]
    found = dual.embed_prepared(prepared, False)
    np.testing.assert_allclose(found.cls[0], vectors[0], atol=1e-5)
    np.testing.assert_allclose(found.cls[1], vectors[queries[-1]], atol=1e-5)


# Other forms of data


def targets(data: DataFrame) -> DataFrame:
    """Queries of one set with their right candidates alone."""
    pairs = where(data, dataset="mveb/Cars196")
    pairs = take(pairs, (pairs["slot"] == "query") | (pairs["label"] == 1))
    return checked(pairs.assign(slot=pairs["slot"].replace("candidate", "positive"), label=None))


def test_sets_without_wrong_candidates_are_ranked_over_all_targets(model: IDSim, data: DataFrame) -> None:
    pairs = checked(targets(data).assign(identity=None))
    [result] = run(pairs, {"m": model}, PLAIN)
    vectors = F.normalize(model.embed(pairs["path"].tolist(), patches=False).cls.double(), dim=-1).numpy()
    won = []
    for k in range(6):
        scores = [float(vectors[2 * k] @ vectors[2 * j + 1]) for j in range(6)]
        won.append(max(range(6), key=scores.__getitem__) == k)
    assert value(result, "Cars196").value == pytest.approx(np.mean(won))
    assert "Cars196: no query has a wrong candidate of its own, so all targets of the set are ranked" in result.notes


def test_targets_of_the_querys_identity_are_right_too(data: DataFrame) -> None:
    one = checked(targets(data).assign(identity=["a" if k < 4 else None for k in range(12)]))
    [[found], _] = ask(one, {})
    assert found.pool is not None
    positives = [np.flatnonzero(is_positive).tolist() for is_positive, _ in found.pool.relevance(slice(0, 6))]
    assert positives == [[0, 1], [0, 1], [2], [3], [4], [5]]


def test_manifests_of_the_importer_are_read(model: IDSim, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"qry_img_path": [], "qry_inst": [], "qry_text": [], "tgt_img_path": []}
    for k in range(3):
        columns["qry_img_path"].append(picture(tmp_path / f"q{k}.png", k))
        columns["qry_inst"].append("Find it:")
        columns["qry_text"].append(f"number {k}")
        columns["tgt_img_path"].append(
            [picture(tmp_path / f"t{k}{c}.png", k if c == 0 else 50 + c, 7) for c in range(3)]
        )
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "COCOEdit.parquet")
    data = import_dataset("mveb", tmp_path / "COCOEdit.parquet")
    [[one], _] = ask(data, {})
    assert (one.dataset, one.task, len(one.queries), len(one.rows())) == ("COCOEdit", "ID-Edit", 3, 12)
    assert sorted(edits(data, [one]).values()) == [f"Find it: number {k}" for k in range(3)]
    [result] = run(data, {"m": model}, PLAIN)
    assert value(result, "COCOEdit").count == 3


def test_other_sets_have_separate_rows_and_a_meta_task_if_given(model: IDSim, data: DataFrame) -> None:
    mine = checked(data.assign(dataset=data["dataset"].str.replace("GPTImageEdit", "mine")))
    [result] = run(mine, {"m": model}, PLAIN)
    assert next(r for r in result.rows if r["dataset"] == "mveb/mine")["task"] == "-"
    assert "not among MVEB's sets, and in no mean over them: mveb/mine" in result.notes
    assert mean_row(result, domain="MVEB")["dataset"] == "mean of 2 of 28"
    assert len(edits(mine, ask(mine, {"mveb/mine": "ID-Edit"})[0])) == 6
    [told_result] = run(mine, {"m": model}, PLAIN, MVEBOptions(("mveb/mine=ID-Edit",)))
    assert next(r for r in told_result.rows if r["dataset"] == "mveb/mine")["task"] == "ID-Edit"
    with pytest.raises(ValueError, match="--task x: expected DATASET=TASK"):
        run(mine, {"m": model}, PLAIN, MVEBOptions(("x",)))
    with pytest.raises(ValueError, match="mine: no meta-task 'Editing'; there are ID-Rec, Re-ID"):
        run(mine, {"m": model}, PLAIN, MVEBOptions(("mine=Editing",)))


def test_names_of_sets_are_known_however_they_are_written() -> None:
    for given, name in (("mveb/cars196", "Cars196"), ("MVEB/MS-Celeb-1M", "MS-Celeb"), ("veri_776", "VeRi776"),
                        ("IDMROOD", "IDMROOD"), ("idmr", "IDMR"), ("mine", None)):  # fmt: skip
        assert mveb.MVEB.known_name(given) == name
    label = "VisIDEmbed:visid_3b[vlm2vec,sequential,ab12cd]"
    assert paper_numbers.visme_row("mveb", {"model": label}) == "VisME (Qwen2.5-VL-3B)"
    assert paper_numbers.visme_row("mveb", {"model": "VisIDEmbed:visid_3b_mine"}) is None


def test_bad_groups_and_images_are_named(model: IDSim, data: DataFrame, tmp_path: Path) -> None:
    cars = where(data, dataset="mveb/Cars196")
    with pytest.raises(ValueError, match=r"Cars196, row 2: a candidate with label None: 1 = right, 0 = wrong"):
        run(checked(cars.assign(label=None)), {"m": model}, PLAIN)
    bad = cars.assign(path=cars["path"].where(cars.index != 7, str(broken(tmp_path))))
    with pytest.raises(ValueError, match=r"broken\.png"):
        run(bad, {"m": model}, PLAIN)
    [result] = run(bad, {"m": model}, replace(PLAIN, on_error="skip"))
    assert value(result, "Cars196").count == 5
    name = cars["id"][7]
    assert f"1 images could not be used: {name} (5 rows that depend on them are left out)" in result.notes
    lone = take(cars, (cars["label"] != 1) | ~cars["group"].str.endswith("/0"))
    [result] = run(lone, {"m": model}, PLAIN)
    assert "Cars196: 1 groups are without one query and a right candidate, and left out" in result.notes
    with pytest.raises(ValueError, match="no questions: Cars196: 6 groups are without"):
        run(where(cars, slot="query"), {"m": model}, PLAIN)
